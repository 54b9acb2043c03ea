//! `kvtide daemon` and `kvtided`: flags, configuration and logging, then the daemon itself.

use crate::check::Report;
use crate::config::{ByteSize, Capacity, ConfigError, Overrides, Source};
use crate::control::Options;
use crate::log::{self, Log};
use crate::output;
use crate::serve;
use clap::{Args, CommandFactory, Parser};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit status for errors that need a changed configuration or environment, as sysexits' `EX_CONFIG`. A supervisor need not retry.
const EXIT_CONFIG: u8 = 78;

/// Flags of the daemon. Each takes precedence over the configuration file.
#[derive(Debug, Args)]
pub struct DaemonArgs {
    /// Configuration file in TOML (default: built-in settings)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Validate the configuration with these flags, print the effective settings and exit
    #[arg(long)]
    check: bool,
    /// Socket that engines attach to
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Directory of the status dump, and of the socket unless --socket is given
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Host memory for all spaces, e.g. 2GiB or 25% (default: half of the available memory, 64MiB to 8GiB)
    #[arg(long, value_name = "SIZE")]
    host_bytes: Option<Capacity>,
    /// Size of one host slab, e.g. 64MiB
    #[arg(long, value_name = "SIZE")]
    slab_bytes: Option<ByteSize>,
    /// Number of tier-0 frames used for a scan
    #[arg(long, value_name = "N")]
    scan_frames: Option<u32>,
    /// NVMe directory (replaces the configured disks); created if missing
    #[arg(long, value_name = "DIR")]
    nvme_dir: Option<PathBuf>,
    /// NVMe capacity in --nvme-dir, e.g. 64GiB, 80% or max (default: max, all that is free less 5%)
    #[arg(long, value_name = "SIZE", requires = "nvme_dir")]
    nvme_bytes: Option<Capacity>,
    /// HTTP address for metrics and health, e.g. 127.0.0.1:9417; an empty string disables HTTP
    #[arg(long, value_name = "ADDRESS")]
    http: Option<String>,
    /// Exit when the parent process PID exits (for private daemons)
    #[arg(long, value_name = "PID")]
    parent: Option<u32>,
    /// Remove --dir and --nvme-dir with their contents on exit because of --parent
    #[arg(long, requires = "parent", requires = "dir")]
    remove_dir: bool,
}

impl DaemonArgs {
    fn source(&self) -> Result<Source, ConfigError> {
        let overrides = Overrides {
            socket: self.socket.clone(),
            dir: self.dir.clone(),
            host_bytes: self.host_bytes,
            slab_bytes: self.slab_bytes,
            scan_frames: self.scan_frames,
            nvme_dir: self.nvme_dir.clone(),
            remove_dir: self.remove_dir,
            nvme_bytes: self.nvme_bytes,
            http: self.http.clone(),
        };
        Source::new(self.config.clone(), overrides)
    }
}

/// Keep the KV cache of LLM inference engines in host memory and on NVMe: the daemon that they attach to
#[derive(Debug, Parser)]
#[command(
    name = "kvtided",
    version,
    after_help = "Exit status: 0: ended; 1: failed; 2: wrong usage; 78: configuration or disk must be fixed.\n\n\
        Examples:\n  kvtided --config /etc/kvtide/kvtided.toml --check\n  kvtided --dir /tmp/kvtide --nvme-dir /var/tmp/kvtide"
)]
struct Kvtided {
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// Run `kvtided`: parse its command line and run the daemon.
#[must_use]
pub fn kvtided() -> ExitCode {
    match parse::<Kvtided>() {
        Ok(command) => run(&command.daemon),
        Err(status) => status,
    }
}

/// Return the definition of `kvtided`: of its manual page.
#[must_use]
pub fn definition() -> clap::Command {
    Kvtided::command()
}

/// Parse the command line.
///
/// # Errors
/// The exit status, if help, the version or a usage error was printed.
pub fn parse<P: Parser>() -> Result<P, ExitCode> {
    parsed(P::try_parse())
}

/// Print what clap says instead of a command line: help, the version, or a usage error.
///
/// # Errors
/// The exit status, if something was printed.
pub fn parsed<P>(parsed: Result<P, clap::Error>) -> Result<P, ExitCode> {
    parsed.map_err(|error| {
        let status = ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(u8::MAX));
        let printed = error.print().and_then(|()| io::stdout().flush());
        // Usage errors go to stderr and keep their status, even if stderr cannot be written.
        if error.use_stderr() { status } else { output::ended(printed, status) }
    })
}

/// Run the daemon until it is stopped.
#[must_use]
pub fn run(args: &DaemonArgs) -> ExitCode {
    let refuse = |error: ConfigError| {
        output::say(format_args!("kvtided: {error}"));
        ExitCode::from(EXIT_CONFIG)
    };
    let source = match args.source() {
        Ok(source) => source,
        Err(error) => return refuse(error),
    };
    if args.check {
        // The daemon would start with this environment.
        let report = match log::environment() {
            Ok(_) => Report::of_daemon(&source),
            Err(error) => Report::refused(&source.name(), &error),
        };
        return report.print(if report.starts() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_CONFIG) });
    }
    let config = match source.load() {
        Ok(config) => config,
        Err(error) => return refuse(error),
    };
    let log = match Log::start(&config.daemon.log) {
        Ok(log) => log,
        Err(error) => return refuse(error),
    };
    let own = args.remove_dir.then(|| args.nvme_dir.iter().chain(&args.dir).cloned());
    let remove = own.into_iter().flatten().collect();
    match serve::run(config, Options { source, log, parent: args.parent, remove }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            if error.is_settled() { ExitCode::from(EXIT_CONFIG) } else { ExitCode::FAILURE }
        }
    }
}
