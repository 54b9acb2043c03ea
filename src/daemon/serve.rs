//! Entry point of the daemon, shared by `kvtided` and `kvtide daemon`.

use crate::config::{Config, Machine, Source};
use crate::control::Control;
use crate::error::Error;
use crate::log::Log;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Prefix of the line on stdout, followed by the socket's path, that reports that engines can attach. A parent process can wait for
/// it.
pub const READY: &str = "kvtided is ready on ";
/// Prefix of the line on stdout, followed by the path, that reports a written status dump.
pub const DUMPED: &str = "kvtided wrote ";

/// Prefix of the line on stdout, followed by their directory, that reports written flight recordings.
pub const RECORDED: &str = "kvtided recorded into ";

/// Prefix of the line on stdout, followed by the file's path, that reports a configuration reload. The log says whether it was
/// valid.
pub const RELOADED: &str = "kvtided has read ";

/// Settings from the command line that are not part of the configuration, and the data needed to reload the configuration.
#[derive(Clone, Debug)]
pub struct Options {
    /// Source of the configuration.
    pub source: Source,
    /// The running log.
    pub log: Log,
    /// Parent process. The daemon ends when it ends.
    pub parent: Option<u32>,
    /// Directories to remove, in this order, after the parent has ended.
    pub remove: Vec<PathBuf>,
}

/// Serve until SIGTERM, SIGINT or the end of the parent process. Print the socket's path on stdout when engines can attach.
///
/// # Errors
/// The socket is in use or cannot be created, or a required system call fails.
pub fn run(config: Config, options: Options) -> Result<(), Error> {
    raise_descriptor_limit();
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

/// Print one line on stdout for the process that started the daemon.
pub(crate) fn say(what: &str, path: &Path) {
    let mut stdout = io::stdout().lock();
    if let Err(error) = writeln!(stdout, "{what}{}", path.display()).and_then(|()| stdout.flush()) {
        tracing::warn!("cannot write to stdout: {what}{}: {error}", path.display());
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
