//! Recovery: choose the half to read, and read it.

use super::blocks::Recovered;
use super::cipher::{Cipher, lend};
use super::error::LogError;
use super::live::Live;
use super::replay::{Progress, Replay};
use super::scan::{Half, Scan};
use super::storage::Storage;
use crate::{SECTOR, Superblock};

/// Minimum bytes of a half. The halves of real superblocks are larger.
const HALF_MIN: u64 = 64 << 10;

/// Result of a recovery.
pub(super) struct Opened {
    pub live: Live,
    pub recovered: Recovered,
    /// Halves that were used, the older first; empty if both are blank.
    pub sources: Vec<Source>,
}

/// A half that was used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub index: usize,
    pub epoch: u64,
    /// End of its last batch, in bytes from the start of the half.
    pub end: u64,
    /// A device flush covered all batches with a lower sequence.
    pub flushed: u64,
    /// True if its checkpoint is complete.
    pub complete: bool,
    /// True if batches before its end are damaged.
    pub damaged: bool,
}

/// Return the two halves of the log area.
pub(super) fn halves(superblock: &Superblock) -> Result<[Half; 2], LogError> {
    let (log_offset, log_bytes) = (superblock.log_offset, superblock.log_bytes);
    let bytes = log_bytes / 2;
    let unit = u64::from(SECTOR);
    let whole = log_offset.is_multiple_of(unit) && bytes.is_multiple_of(unit) && log_bytes.is_multiple_of(2);
    // A smaller half has no space for the largest records plus the padding of a batch. In a larger half, sector numbers overflow.
    if !whole || bytes < HALF_MIN || bytes / unit > u64::from(u32::MAX) {
        return Err(LogError::Layout { log_offset, log_bytes });
    }
    Ok([Half { offset: log_offset, bytes }, Half { offset: log_offset + bytes, bytes }])
}

/// Read the log without writing.
pub(super) fn open(
    storage: &mut dyn Storage,
    superblock: &Superblock,
    mut cipher: Option<&mut dyn Cipher>,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Opened, LogError> {
    let halves = halves(superblock)?;
    let mut found = Vec::new();
    for (index, half) in halves.into_iter().enumerate() {
        let mut head = Scan::new(half, superblock.store);
        head.next(storage)?;
        found.extend(head.epoch.map(|epoch| (epoch, index)));
    }
    found.sort_unstable_by(|a, b| b.cmp(a));
    let highest = found.first().map(|&(epoch, _)| epoch);
    let run = run(superblock.starts, highest)?;
    let mut read = |sources: &[(u64, usize)]| -> Result<(Replay, Vec<Source>), LogError> {
        let mut replay = Replay::new(superblock);
        let mut from = Vec::new();
        for &(epoch, index) in sources {
            let mut scan = Scan::new(halves[index], superblock.store);
            replay.read(&mut scan, halves[index], storage, lend(&mut cipher), progress)?;
            let (complete, flushed, end) = (scan.complete, scan.flushed, scan.given_end);
            from.push(Source { index, epoch, end, flushed, complete, damaged: scan.lost() != (0, 0) });
        }
        Ok((replay, from))
    };
    let mut chosen = (Replay::new(superblock), Vec::new());
    let (mut partial, mut mended) = (false, false);
    if let Some(&newer) = found.first() {
        chosen = read(&[newer])?;
        let (replay, sources) = &chosen;
        let Source { complete, damaged, .. } = sources[0];
        // If no half is complete, use the readable part of the newer one.
        partial = !complete && replay.counts.records > 0;
        if let Some(&older) = found.get(1)
            && (!complete || damaged)
        {
            // The checkpoint of the newer half equals the final state of the older half. The older half stays intact until the next
            // compaction.
            let other = if complete { read(&[older, newer])? } else { read(&[older])? };
            if other.1[0].complete {
                (chosen, mended, partial) = (other, complete, false);
            }
        }
    }
    let (replay, sources) = chosen;
    let (live, mut recovered) = replay.end();
    recovered.run = run;
    (recovered.counts.partial, recovered.counts.mended) = (partial, mended);
    Ok(Opened { live, recovered, sources })
}

/// Return the number of this start: higher than that of any start that wrote to the log.
fn run(starts: u32, highest: Option<u64>) -> Result<u32, LogError> {
    let Some(epoch) = highest else { return Ok(starts) };
    let last = (epoch >> 32) as u32;
    if last < starts { Ok(starts) } else { last.checked_add(1).ok_or(LogError::Epochs { epoch }) }
}

/// Return what a start would recover from the log of a disk. Nothing is written.
///
/// # Errors
/// An I/O error, or an invalid log area in the superblock.
pub fn inspect(
    storage: &mut dyn Storage,
    superblock: &Superblock,
    cipher: Option<&mut dyn Cipher>,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Recovered, LogError> {
    Ok(open(storage, superblock, cipher, progress)?.recovered)
}
