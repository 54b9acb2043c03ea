//! Scan: reads the batches of a half in order, and distinguishes damage from the end of the log.
//!
//! A half is written from its start, so the first valid header defines its epoch, and only older epochs follow its end. A bad batch
//! is either the torn end, or damage that good batches follow. The scan therefore continues for [`SCAN_MAX`] bytes. If it finds a
//! whole batch of the same epoch there, it goes back and returns the bad batches in between as damaged.

use super::batch::{BATCH_MAX, HEADER, Header};
use super::bytes::Buffer;
use super::error::LogError;
use super::record::{Records, Seed};
use super::storage::Storage;
use crate::SECTOR;
use std::ops::Range;

/// Bytes to search for another good batch after the last one.
pub(super) const SCAN_MAX: u64 = 4 << 20;
/// Bytes of one read.
const WINDOW: usize = 2 << 20;
/// Maximum unreadable sectors of a half before the scan fails.
const UNREADABLE_MAX: u64 = 64;
const UNIT: u64 = SECTOR as u64;

/// One half of the log area, in bytes of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Half {
    pub offset: u64,
    pub bytes: u64,
}

/// A batch returned by a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub header: Header,
    /// True if some of its records are damaged.
    pub damaged: bool,
}

/// State of a scan.
#[derive(Debug)]
pub(super) struct Scan {
    half: Half,
    store: u128,
    /// Epoch of the half, from the first valid header.
    pub epoch: Option<u64>,
    /// Sequence of the next batch.
    sequence: u64,
    /// Offset of the next batch in the half.
    pub at: u64,
    /// Offset of the first bad batch since the last good one.
    bad_from: Option<u64>,
    /// Bad batches since then with valid headers.
    torn_there: u64,
    /// Before this offset a bad batch is damage, never the end of the log.
    known: u64,
    /// End of the scan.
    end: u64,
    /// End of the last batch returned.
    pub given_end: u64,
    window: Buffer,
    /// Offset of the window in the half.
    window_at: u64,
    given: Option<Found>,
    /// True if any header marks the checkpoint as complete.
    pub complete: bool,
    /// A device flush covered all batches with a lower sequence.
    pub flushed: u64,
    /// Sequences of damaged batches before the end.
    bad: Vec<Range<u64>>,
    /// Incomplete batches cut from the end.
    pub torn: u64,
    pub unreadable: u64,
    pub read_bytes: u64,
}

impl Scan {
    /// Create a scan from the start of a half to its unknown end.
    pub fn new(half: Half, store: u128) -> Scan {
        Scan {
            half,
            store,
            epoch: None,
            sequence: 0,
            at: 0,
            bad_from: None,
            torn_there: 0,
            known: 0,
            end: half.bytes,
            given_end: 0,
            window: Buffer::new(half.bytes.min(WINDOW as u64) as usize),
            window_at: 0,
            given: None,
            complete: false,
            flushed: 0,
            bad: Vec::new(),
            torn: 0,
            unreadable: 0,
            read_bytes: 0,
        }
    }

    /// Create a scan of a half that is known to hold `end` bytes of this epoch.
    pub fn known(half: Half, store: u128, epoch: u64, end: u64) -> Scan {
        Scan { epoch: Some(epoch), known: end, end, ..Scan::new(half, store) }
    }

    /// Move the known end to `end`, after more was written.
    pub fn extend(&mut self, end: u64) {
        self.known = end;
        self.end = end;
        // The window may contain bytes from before that write.
        self.window.clear();
    }

    /// Return the next batch, or `None` at the end. [`Scan::records`] returns its records until the next call.
    pub fn next(&mut self, storage: &mut dyn Storage) -> Result<Option<Found>, LogError> {
        self.given = None;
        while self.at < self.end {
            let behind = self.at >= self.known;
            if behind && self.bad_from.is_some_and(|from| self.at - from > SCAN_MAX) {
                break;
            }
            self.load(storage, UNIT)?;
            let header = Header::decode(self.window_from(self.at)).filter(|header| self.expected(header));
            let Some(header) = header else {
                self.bad_from.get_or_insert(self.at);
                self.at += UNIT;
                continue;
            };
            self.load(storage, header.batch_bytes() as u64)?;
            self.epoch = Some(header.epoch);
            let whole = self.whole(&header);
            if behind && (self.bad_from.is_some() || !whole) {
                if whole {
                    // The bad batches before this one are not a torn end. Go back and return them as damaged.
                    self.known = self.at + header.batch_bytes() as u64;
                    self.at = self.bad_from.take().unwrap_or(self.at);
                    self.torn_there = 0;
                } else {
                    self.bad_from.get_or_insert(self.at);
                    self.torn_there += 1;
                    self.at += header.batch_bytes() as u64;
                }
                continue;
            }
            return Ok(Some(self.give(header, whole)));
        }
        self.torn += std::mem::take(&mut self.torn_there);
        Ok(None)
    }

    fn give(&mut self, header: Header, whole: bool) -> Found {
        // Batches with lost headers, and this one if it is damaged.
        let bad = self.sequence..header.sequence + u64::from(!whole);
        self.sequence = header.sequence + 1;
        if !bad.is_empty() {
            self.bad.push(bad);
        }
        self.flushed = self.flushed.max(header.flushed);
        self.complete |= header.complete;
        self.bad_from = None;
        self.at += header.batch_bytes() as u64;
        self.given_end = self.at;
        let found = Found { header, damaged: !whole };
        self.given = Some(found);
        found
    }

    /// Return the number of damaged batches before the end: those that a device flush had covered, and the others.
    pub fn lost(&self) -> (u64, u64) {
        let all: u64 = self.bad.iter().map(|bad| bad.end - bad.start).sum();
        let covered = self.bad.iter().map(|bad| bad.end.min(self.flushed).saturating_sub(bad.start)).sum();
        (covered, all - covered)
    }

    /// Return the records of the last batch returned.
    pub fn records(&self) -> Records<'_> {
        let Some(found) = self.given else { return Records::new(Seed::new(0, 0), &[]) };
        let batch = self.window_from(self.at - found.header.batch_bytes() as u64);
        Records::new(Seed::new(self.store, found.header.epoch), &batch[HEADER..HEADER + found.header.bytes as usize])
    }

    /// Return whether the header can belong to the next batch or a later one.
    fn expected(&self, header: &Header) -> bool {
        header.store == self.store
            && self.epoch.is_none_or(|epoch| header.epoch == epoch)
            && header.sequence >= self.sequence
            && u64::from(header.at) * UNIT == self.at
            && self.at + header.batch_bytes() as u64 <= self.end
    }

    /// Return whether the whole batch is intact.
    fn whole(&self, header: &Header) -> bool {
        let batch = self.window_from(self.at);
        let end = HEADER + header.bytes as usize;
        let mut records = 0;
        for record in Records::new(Seed::new(self.store, header.epoch), &batch[HEADER..end]) {
            if record.is_err() {
                return false;
            }
            records += 1;
        }
        records == header.records && batch[end..header.batch_bytes()].iter().all(|&byte| byte == 0)
    }

    fn window_from(&self, at: u64) -> &[u8] {
        &self.window.bytes()[(at - self.window_at) as usize..]
    }

    /// Load the window so that it contains `bytes` bytes from `self.at`; they must end within the half.
    fn load(&mut self, storage: &mut dyn Storage, bytes: u64) -> Result<(), LogError> {
        let held = self.window_at..self.window_at + self.window.len() as u64;
        if held.contains(&self.at) && self.at + bytes <= held.end {
            return Ok(());
        }
        const { assert!(BATCH_MAX <= WINDOW) };
        let count = (self.end - self.at).min(WINDOW as u64);
        self.window.clear();
        self.window_at = self.at;
        let offset = self.half.offset + self.at;
        let into = self.window.grow(count as usize);
        self.read_bytes += count;
        if storage.read(offset, into).is_ok() {
            return Ok(());
        }
        // A bad sector damages only its batch: read sector by sector, and replace unreadable sectors by zeros.
        for (index, sector) in into.chunks_exact_mut(UNIT as usize).enumerate() {
            let offset = offset + index as u64 * UNIT;
            if let Err(source) = storage.read(offset, sector) {
                sector.fill(0);
                self.unreadable += 1;
                if self.unreadable > UNREADABLE_MAX {
                    self.window.clear();
                    return Err(LogError::Io { tried: "read", offset, bytes: UNIT, source });
                }
            }
        }
        Ok(())
    }
}
