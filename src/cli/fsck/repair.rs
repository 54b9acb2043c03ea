//! Repair: erases bad blocks and rewrites the index as a clean checkpoint.

use super::check::Findings;
use super::disk::Disk;
use super::error::FsckError;
use kvtide_format::log::Log;
use kvtide_nvme::Keyring;
use std::sync::Arc;

/// Erase bad blocks and return their number. Blocks with missing ancestors stay: these may be on a disk that was not given, and the
/// daemon erases blocks that no space takes.
pub(super) fn repair(disk: &mut Disk, findings: &Findings, keyring: Option<&Arc<Keyring>>) -> Result<u64, FsckError> {
    // As at a daemon start, the new start number is written first, so that no epoch of the log is used twice. The second write
    // makes both copies of the superblock good.
    for _ in 0..2 {
        disk.superblock.starts = disk.superblock.starts.max(findings.recovered.run) + 1;
        disk.write_superblock()?;
    }
    let superblock = disk.superblock;
    let cipher = keyring.map(|keyring| keyring.cipher());
    let (mut log, _) = Log::open(disk, &superblock, cipher, &mut |_| {})?;
    let mut erased = 0;
    for block in findings.bad_blocks() {
        log.erase(block.region, block.slot, block.generation)?;
        erased += 1;
    }
    log.flush()?;
    Ok(erased)
}
