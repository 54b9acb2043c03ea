//! Recovery: which half counts, and what it holds.

use super::blocks::Recovered;
use super::cipher::{Cipher, lend};
use super::error::LogError;
use super::live::Live;
use super::replay::{Progress, Replay};
use super::scan::{Half, Scan};
use super::storage::Storage;
use crate::format::{SECTOR, Superblock};

/// Bytes of the smallest half; superblocks name larger ones.
const HALF_MIN: u64 = 64 << 10;

/// What a recovery found.
pub(super) struct Opened {
    pub live: Live,
    pub recovered: Recovered,
    /// Which half counts, its epoch, where it ends, and below which sequence a flush covered it; nothing: both are blank.
    pub source: Option<Source>,
}

/// The half that counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub index: usize,
    pub epoch: u64,
    pub end: u64,
    pub flushed: u64,
}

/// The two halves of the log area.
pub(super) fn halves(superblock: &Superblock) -> Result<[Half; 2], LogError> {
    let (log_offset, log_bytes) = (superblock.log_offset, superblock.log_bytes);
    let bytes = log_bytes / 2;
    let unit = u64::from(SECTOR);
    let whole = log_offset.is_multiple_of(unit) && bytes.is_multiple_of(unit) && log_bytes.is_multiple_of(2);
    // A smaller one has no room for the largest records beside a batch's worth of air; a larger one has sectors without a number.
    if !whole || bytes < HALF_MIN || bytes / unit > u64::from(u32::MAX) {
        return Err(LogError::Layout { log_offset, log_bytes });
    }
    Ok([Half { offset: log_offset, bytes }, Half { offset: log_offset + bytes, bytes }])
}

/// Reads the log; writes nothing.
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
    let mut partial = None;
    let mut chosen = None;
    for (epoch, index) in found {
        let mut scan = Scan::new(halves[index], superblock.store);
        let mut replay = Replay::new(superblock);
        replay.read(&mut scan, halves[index], storage, lend(&mut cipher), progress)?;
        replay.counts.read_bytes += scan.read_bytes;
        let source = Source { index, epoch, end: scan.given_end, flushed: scan.flushed };
        if scan.complete {
            chosen = Some((replay, source));
            break;
        }
        // Where no half is complete, a part of the newer one is better than nothing.
        partial.get_or_insert((replay, source));
    }
    let partial = chosen.is_none().then_some(partial).flatten();
    let is_partial = partial.as_ref().is_some_and(|(replay, _)| replay.counts.records > 0);
    let (replay, source) = match chosen.or(partial) {
        Some((replay, source)) => (replay, Some(source)),
        None => (Replay::new(superblock), None),
    };
    let (live, mut recovered) = replay.end(source.map_or(0, |source| source.flushed));
    recovered.run = run;
    recovered.counts.partial = is_partial;
    Ok(Opened { live, recovered, source })
}

/// The number of this start: unlike that of any start that wrote to the log.
fn run(starts: u32, highest: Option<u64>) -> Result<u32, LogError> {
    let Some(epoch) = highest else { return Ok(starts) };
    let last = (epoch >> 32) as u32;
    if last < starts { Ok(starts) } else { last.checked_add(1).ok_or(LogError::Epochs { epoch }) }
}

/// Reads the log of a disk without writing anything: what a start would recover.
///
/// # Errors
/// The device fails, or the superblock names no log area.
pub fn inspect(
    storage: &mut dyn Storage,
    superblock: &Superblock,
    cipher: Option<&mut dyn Cipher>,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Recovered, LogError> {
    Ok(open(storage, superblock, cipher, progress)?.recovered)
}
