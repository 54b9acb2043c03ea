//! Drops what is bad: erases the blocks, and has the log write what is left as a clean checkpoint.

use super::check::Findings;
use super::disk::Disk;
use super::error::FsckError;
use crate::io::Keyring;
use kvtide_tiering::log::Log;
use std::sync::Arc;

/// Says how many blocks were erased. Blocks whose ancestors are missing stay: they may be on a disk that was not named, and the
/// daemon erases those that no space takes.
pub(super) fn repair(disk: &mut Disk, findings: &Findings, keyring: Option<&Arc<Keyring>>) -> Result<u64, FsckError> {
    // As a start does: its number first, so that no epoch of the log is used twice. Both copies of the superblock are good after
    // the second time.
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
