//! Entry point of the daemon, shared by `kvtided` and `kvtide daemon`.

use crate::announce::{READY, say};
use crate::config::{Config, Machine};
use crate::control::{Control, Options, obstacles};
use crate::error::Error;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;

/// Serve until SIGTERM, SIGINT or the end of the parent process. Print the socket's path on stdout when engines can attach.
///
/// # Errors
/// The socket is in use or cannot be created, or a required system call fails.
pub(crate) fn run(config: Config, options: Options) -> Result<(), Error> {
    raise_descriptor_limit();
    if let Some(obstacle) = obstacles(&config, &options.source.machine).into_iter().next() {
        return Err(obstacle.error);
    }
    let dir = config.daemon.dir.clone();
    let failed = |source| Error::File { action: "create the daemon's directory", path: dir.clone(), source };
    fs::create_dir_all(&dir).map_err(failed)?;
    print_bounds(&config, &options.source.machine);
    let socket = config.daemon.socket.clone();
    let control = Control::new(config, options)?;
    tracing::info!("serving {}", socket.display());
    say(READY, &socket);
    control.run()
}

/// Log the limits of the tiers and the domains.
fn print_bounds(config: &Config, machine: &Machine) {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let (total, available) = (gib(machine.total_bytes), gib(machine.available_bytes));
    let limit = match &machine.cgroup {
        Some(limit) => format!("cgroup limit {:.2} GiB ({})", gib(limit.bytes), limit.file.display()),
        None => "no cgroup limit".to_owned(),
    };
    tracing::info!("memory: {available:.2} of {total:.2} GiB available, {limit}");
    for section in
        config.explanation().into_iter().filter(|section| ["host", "nvme", "access"].contains(&&*section.title))
    {
        section.lines.iter().for_each(|line| tracing::info!("{}: {line}", section.title));
    }
}

/// Raise the limit of open files to its maximum. A session needs about one descriptor a channel; the usual soft limit of 1024 is
/// meant for programs that use `select`.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(errno) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!("cannot raise the limit of open files, it remains {:?}: {errno}", limit.current);
    }
}
