//! The daemon's entry, the same for `kvtided` and `kvtide daemon`.

use crate::config::{Config, Machine, Source};
use crate::control::Control;
use crate::error::Error;
use crate::log::Log;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What the daemon says on stdout, before its socket's path, when engines can attach: a parent can wait for it.
pub const READY: &str = "kvtided is ready on ";
/// What it says, before the path, when it has written a status dump.
pub const DUMPED: &str = "kvtided wrote ";

/// What it says, before their directory, when it has written the flight recordings that it was asked for.
pub const RECORDED: &str = "kvtided recorded into ";

/// What it says, before the file's path, when it has read its configuration again, or found that wrong: the log says which.
pub const RELOADED: &str = "kvtided has read ";

/// What the command line says beyond the configuration, and what the daemon needs to read that again.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the configuration comes from.
    pub source: Source,
    /// The log that runs.
    pub log: Log,
    /// Process, this one's parent, whose end is this one's end.
    pub parent: Option<u32>,
    /// Directories that go too when the parent has ended: nobody else would remove them. In this order.
    pub remove: Vec<PathBuf>,
}

/// Serves until SIGTERM, SIGINT or the parent's end. Says on stdout when engines can attach, and where.
///
/// # Errors
/// The socket is in use or cannot be made, or the system refuses what every daemon needs.
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

/// What bounds the tiers and the domains, for the log.
fn print_bounds(config: &Config, machine: &Machine) {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let (total, available) = (gib(machine.total_bytes), gib(machine.available_bytes));
    let limit = match &machine.cgroup {
        Some(limit) => format!("{:.2} GiB may be used at most ({})", gib(limit.bytes), limit.file.display()),
        None => "no cgroup limits that".to_owned(),
    };
    tracing::info!("memory: {available:.2} of {total:.2} GiB are available, {limit}");
    for section in
        config.explanation().into_iter().filter(|section| ["host", "nvme", "who may attach"].contains(&&*section.title))
    {
        section.lines.iter().for_each(|line| tracing::info!("{}: {line}", section.title));
    }
}

/// One line on stdout, for whoever started the daemon and waits.
pub(crate) fn say(what: &str, path: &Path) {
    let mut stdout = io::stdout().lock();
    if let Err(error) = writeln!(stdout, "{what}{}", path.display()).and_then(|()| stdout.flush()) {
        tracing::warn!("nobody hears on stdout: {what}{}: {error}", path.display());
    }
}

/// A session takes about as many descriptors as it has channels, and the usual soft limit of 1024 is for programs that use
/// `select`.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(errno) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!("the limit of open files stays at {:?}: {errno}", limit.current);
    }
}
