//! `kvtide daemon` and `kvtided`: flags, configuration, logs, then the daemon's own entry.

use super::check_config::Report;
use crate::config::{ByteSize, ConfigError, Overrides, Source};
use crate::daemon::{self, Options};
use crate::log::Log;
use crate::output;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit status for what is wrong until somebody changes the configuration or what it names, as sysexits' `EX_CONFIG`: a supervisor need not retry.
const EXIT_CONFIG: u8 = 78;

/// Flags of the daemon; each wins over the file.
#[derive(Debug, Args)]
pub struct DaemonArgs {
    /// Configuration file (TOML); without it the defaults hold
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Explains the configuration with these flags as `kvtide check-config` does, and ends
    #[arg(long)]
    check: bool,
    /// Socket that engines attach to
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Directory of the status dump, and of the socket unless that is named
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Host tier over all spaces, such as 2GiB
    #[arg(long, value_name = "SIZE")]
    host_bytes: Option<ByteSize>,
    /// One slab of the host tier, such as 64MiB
    #[arg(long, value_name = "SIZE")]
    slab_bytes: Option<ByteSize>,
    /// Tier-0 frames that a scan streams through
    #[arg(long, value_name = "N")]
    scan_frames: Option<u32>,
    /// Directory that is the only disk of the NVMe tier; made if it is not there
    #[arg(long, value_name = "DIR", requires = "nvme_bytes")]
    nvme_dir: Option<PathBuf>,
    /// NVMe tier in --nvme-dir, such as 64GiB
    #[arg(long, value_name = "SIZE", requires = "nvme_dir")]
    nvme_bytes: Option<ByteSize>,
    /// Where metrics and health are served, such as 127.0.0.1:9417; "": nowhere
    #[arg(long, value_name = "ADDRESS")]
    http: Option<String>,
    /// Ends when the process PID, which started this one, ends (for private daemons)
    #[arg(long, value_name = "PID")]
    parent: Option<u32>,
    /// Removes --dir and --nvme-dir with everything in them when it ends because --parent did
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
            nvme_bytes: self.nvme_bytes,
            http: self.http.clone(),
        };
        Source::new(self.config.clone(), overrides)
    }
}

/// Runs the daemon until it is told to end.
pub(super) fn run(args: &DaemonArgs) -> ExitCode {
    let refuse = |error: ConfigError| {
        output::say(format_args!("kvtided: {error}"));
        ExitCode::from(EXIT_CONFIG)
    };
    let source = match args.source() {
        Ok(source) => source,
        Err(error) => return refuse(error),
    };
    if args.check {
        let report = Report::of(&source, false);
        return report.print(if report.starts() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_CONFIG) });
    }
    let config = match source.load() {
        Ok(config) => config,
        Err(error) => return refuse(error),
    };
    let log = Log::start(&config.daemon.log);
    let own = args.remove_dir.then(|| args.nvme_dir.iter().chain(&args.dir).cloned());
    let remove = own.into_iter().flatten().collect();
    match daemon::run(config, Options { source, log, parent: args.parent, remove }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            if error.is_settled() { ExitCode::from(EXIT_CONFIG) } else { ExitCode::FAILURE }
        }
    }
}
