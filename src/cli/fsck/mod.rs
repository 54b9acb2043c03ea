//! `kvtide fsck`: whether a disk holds what its index says, page by page, without a daemon.
//!
//! [`disk`] opens and locks the file and is the log's storage; [`check`] reads the index and every page that it names; [`reach`]
//! finds blocks whose ancestors are missing; [`repair`] erases what is bad; [`report`] says it. It changes nothing without
//! `--repair`, refuses while a daemon has the disk, and must not know the daemon's threads.

mod check;
mod disk;
mod error;
mod reach;
mod repair;
mod report;

use crate::io::{Encryption, KeySource, Keyring, MasterKey};
use crate::output;
use check::Findings;
use clap::Args;
use disk::Disk;
use error::FsckError;
use report::{Report, Verdict};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Flags of `kvtide fsck`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status, as that of fsck(8): 0: clean; 1: what was bad was dropped; 4: something is bad and was left; \
    8: it could not be checked (in use, foreign, a later version, a wrong key, not readable)."
)]
pub(super) struct FsckArgs {
    /// Directories of disks (as in the configuration), files, or block devices. Blocks whose ancestors are on another disk are
    /// unreachable without it
    #[arg(required = true)]
    disks: Vec<PathBuf>,
    /// Erases blocks that are not what was written, and writes the index anew
    #[arg(long)]
    repair: bool,
    /// Prints one JSON object
    #[arg(long)]
    json: bool,
    /// File of the master key; without it encrypted slabs are looked at only from outside
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

/// Exit status when everything bad was dropped.
const EXIT_REPAIRED: u8 = 1;
/// Exit status when something is bad.
const EXIT_DAMAGED: u8 = 4;
/// Exit status when a disk could not be checked.
const EXIT_REFUSED: u8 = 8;

pub(super) fn run(args: &FsckArgs) -> ExitCode {
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
    // The locks are held until everything is said.
    drop(disks);
    printed
}

/// A disk and what was found on it.
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
