//! `kvtide fsck`: checks the index and the pages of disks without a daemon.
//!
//! [`disk`] opens and locks the file and is the log's storage; [`check`] reads the index and all its pages; [`reach`] finds blocks
//! with missing ancestors; [`repair`] erases bad blocks; [`report`] prints the result. Without `--repair` it changes nothing.
//! It refuses a disk in use by a daemon, and does not depend on the daemon's threads.

mod check;
mod disk;
mod error;
mod reach;
mod repair;
mod report;

use super::confirm::Confirm;
use check::Findings;
use clap::Args;
use disk::Disk;
use error::FsckError;
use kvtide_daemon::output;
use kvtide_nvme::{Encryption, KeySource, Keyring, MasterKey};
use report::{Report, Verdict};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Flags of `kvtide fsck`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status, as of fsck(8): 0: clean; 1: damage repaired by dropping blocks; 4: damage found and not repaired; \
    8: not checked (in use, not a kvtide disk, newer version, wrong key, not readable).\n\nExamples:\n  kvtide fsck /var/lib/kvtide/nvme0\n  \
    kvtide fsck --repair --yes /var/lib/kvtide/nvme0"
)]
pub(super) struct FsckArgs {
    /// Directories of disks (as in the configuration), files, or block devices. List all disks of a daemon: blocks whose ancestors
    /// are on a missing disk count as unreachable
    #[arg(required = true)]
    disks: Vec<PathBuf>,
    /// Erase bad blocks and rewrite the index
    #[arg(long)]
    repair: bool,
    #[command(flatten)]
    confirm: Confirm,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Master key file; without it, the pages of encrypted slabs are not checked
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

/// Exit status when all damage was repaired.
const EXIT_REPAIRED: u8 = 1;
/// Exit status when damage remains.
const EXIT_DAMAGED: u8 = 4;
/// Exit status when a disk could not be checked.
const EXIT_REFUSED: u8 = 8;

pub(super) fn run(args: &FsckArgs) -> ExitCode {
    if args.repair {
        let disks: Vec<String> = args.disks.iter().map(|disk| disk.display().to_string()).collect();
        if let Err(status) =
            args.confirm.ask(&format!("erase the bad blocks of {}, and write its index again", disks.join(", ")))
        {
            return status;
        }
    }
    let (reports, disks) = look(args);
    let verdict = reports.iter().map(|report| report.verdict).max().unwrap_or(Verdict::Clean);
    let status = match verdict {
        Verdict::Clean => ExitCode::SUCCESS,
        Verdict::Repaired => ExitCode::from(EXIT_REPAIRED),
        Verdict::Damaged => ExitCode::from(EXIT_DAMAGED),
        Verdict::Refused => ExitCode::from(EXIT_REFUSED),
    };
    let printed = if args.json {
        output::print_json(&report::All { verdict, disks: &reports }, status)
    } else {
        output::ended(reports.iter().map(Report::print).fold(Ok(()), Result::and), status)
    };
    // Hold the locks until the results are printed.
    drop(disks);
    printed
}

/// A disk and its findings.
struct Looked {
    disk: Disk,
    findings: Findings,
    keyring: Option<Arc<Keyring>>,
}

fn look(args: &FsckArgs) -> (Vec<Report>, Vec<Looked>) {
    let mut reports = Vec::new();
    let mut looked = Vec::new();
    for path in &args.disks {
        match look_at(args, path) {
            Ok(disk) => looked.push(disk),
            Err(error) => reports.push(Report::refused(path, &error)),
        }
    }
    reach::mark(looked.iter_mut().map(|disk| &mut disk.findings));
    for Looked { disk, findings, keyring } in &mut looked {
        let mut report = Report::new(disk, findings, keyring.is_some());
        if args.repair && findings.needs_repair() {
            match repair::repair(disk, findings, keyring.as_ref()) {
                Ok(erased) => report.repaired(erased),
                Err(error) => report.failed(&error),
            }
        }
        reports.push(report);
    }
    (reports, looked)
}

fn look_at(args: &FsckArgs, path: &std::path::Path) -> Result<Looked, FsckError> {
    let mut disk = Disk::open(path, args.repair)?;
    let keyring = match &args.key {
        None => None,
        Some(key) => {
            let encryption = Encryption { source: KeySource::File(key.clone()), new_slabs: false };
            let master = MasterKey::load(&encryption.source)?;
            let area = disk.key_area()?;
            Some(Arc::new(Keyring::open(disk.superblock.store, &encryption, master.as_ref(), &area)?))
        }
    };
    let findings = check::check(&mut disk, keyring.as_ref(), !args.json)?;
    Ok(Looked { disk, findings, keyring })
}
