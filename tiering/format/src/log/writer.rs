//! Writer: collects records of a half in batches, and writes them when the caller asks.

use super::batch::{BATCH_MAX, HEADER, Header};
use super::bytes::Buffer;
use super::error::LogError;
use super::record::Seed;
use super::scan::Half;
use super::storage::Storage;
use crate::SECTOR;

/// Maximum pending bytes before they must be written.
const PENDING_MAX: usize = 1 << 20;

/// Batches and pending bytes are limited to 1/8 of a half.
const SHARE: u64 = 8;
/// Upper bound for the bytes of a record and a batch header: an encrypted, coded block with the maximum number of planes.
const RECORD_MAX: usize = 16 << 10;

/// Writer at the end of a half.
#[derive(Debug)]
pub(super) struct Writer {
    pub half: Half,
    pub epoch: u64,
    store: u128,
    seed: Seed,
    /// Bytes written to the half.
    pub at: u64,
    /// Sequence of the open batch, or of the next one.
    sequence: u64,
    /// A device flush covered all batches with a lower sequence.
    pub flushed: u64,
    /// True if new batches mark the checkpoint as complete.
    pub complete: bool,
    pending: Buffer,
    /// Maximum pending bytes, and maximum bytes of a batch. They are smaller in small halves.
    pending_max: usize,
    batch_max: usize,
    /// The open batch: its offset in `pending`, and its number of records.
    open: Option<(usize, u32)>,
}

impl Writer {
    pub fn new(half: Half, store: u128, epoch: u64) -> Writer {
        let share = usize::try_from(half.bytes / SHARE).unwrap_or(usize::MAX);
        let (pending_max, batch_max) = (PENDING_MAX.min(share), BATCH_MAX.min(share));
        Writer {
            half,
            epoch,
            store,
            seed: Seed::new(store, epoch),
            at: 0,
            sequence: 0,
            flushed: 0,
            complete: false,
            // The record that reaches `pending_max` may still open a new batch.
            pending: Buffer::new(pending_max + SECTOR as usize + batch_max.max(RECORD_MAX)),
            pending_max,
            batch_max,
            open: None,
        }
    }

    /// Return the bytes used of the half, including pending ones.
    pub fn used(&self) -> u64 {
        self.at + (self.pending.len() as u64).next_multiple_of(SECTOR.into())
    }

    /// Return the pending bytes.
    pub fn pending(&self) -> u64 {
        self.pending.len() as u64
    }

    /// Return whether the pending bytes must be written before the next record.
    pub fn is_full(&self) -> bool {
        self.pending.len() >= self.pending_max
    }

    /// Check that a record of `bytes` fits in the first `limit` bytes of the half.
    pub fn fits(&self, bytes: usize, limit: u64) -> Result<(), LogError> {
        if self.used_with(bytes) <= limit {
            return Ok(());
        }
        let free_bytes = limit.saturating_sub(self.used());
        Err(LogError::Full { needed_bytes: bytes as u64, free_bytes, half_bytes: self.half.bytes, refused: None })
    }

    /// Return the bytes used of the half after a record of `bytes` is appended.
    fn used_with(&self, bytes: usize) -> u64 {
        let header = if self.opens(bytes) { HEADER } else { 0 };
        let begin = if header > 0 { self.pending.len().next_multiple_of(SECTOR as usize) } else { self.pending.len() };
        self.at + ((begin + header + bytes) as u64).next_multiple_of(SECTOR.into())
    }

    fn opens(&self, bytes: usize) -> bool {
        self.open.is_none_or(|(begin, _)| self.pending.len() - begin + bytes > self.batch_max)
    }

    /// Append a record. `encode` writes it into zeroed bytes, except its checksum. The caller has checked that it fits in the half,
    /// and that the writer is not [full](Writer::is_full).
    pub fn append<E>(&mut self, bytes: usize, encode: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<(), E> {
        if self.opens(bytes) {
            self.close();
            self.open = Some((self.pending.len(), 0));
            self.pending.grow(HEADER);
        }
        let before = self.pending.len();
        let record = self.pending.grow(bytes);
        if let Err(error) = encode(record) {
            self.pending.truncate(before);
            self.drop_empty();
            return Err(error);
        }
        self.seed.seal(record);
        if let Some((_, records)) = &mut self.open {
            *records += 1;
        }
        Ok(())
    }

    fn drop_empty(&mut self) {
        if let Some((begin, 0)) = self.open {
            self.pending.truncate(begin);
            self.open = None;
        }
    }

    /// Close the open batch.
    fn close(&mut self) {
        let Some((begin, records)) = self.open.take() else { return };
        let bytes = self.pending.len() - begin - HEADER;
        let header = Header {
            store: self.store,
            epoch: self.epoch,
            sequence: self.sequence,
            flushed: self.flushed,
            at: ((self.at + begin as u64) / u64::from(SECTOR)) as u32,
            bytes: bytes as u32,
            records,
            complete: self.complete,
        };
        self.sequence += 1;
        let padded = self.pending.len().next_multiple_of(SECTOR as usize);
        self.pending.grow(padded - self.pending.len());
        header.encode(&mut self.pending.bytes_mut()[begin..]);
    }

    /// Write the pending bytes and return their number. After an error, the next call writes the same bytes to the same offset.
    pub fn write(&mut self, storage: &mut dyn Storage) -> Result<u64, LogError> {
        self.close();
        let bytes = self.pending.len() as u64;
        if bytes > 0 {
            let offset = self.half.offset + self.at;
            let failed = |source| LogError::Io { tried: "write", offset, bytes, source };
            storage.write(offset, self.pending.bytes()).map_err(failed)?;
            self.at += bytes;
            self.pending.clear();
        }
        Ok(bytes)
    }

    /// Note that a device flush covered all batches written so far.
    pub fn covered(&mut self) {
        self.flushed = self.sequence;
    }

    /// Write an empty batch that contains the flushed sequence, unless a later batch contains it already or there is no space.
    pub fn mark(&mut self, storage: &mut dyn Storage) -> Result<u64, LogError> {
        let told = self.flushed < self.sequence || self.pending.len() > 0;
        if told || self.fits(0, self.half.bytes).is_err() {
            return Ok(0);
        }
        self.open = Some((self.pending.len(), 0));
        self.pending.grow(HEADER);
        self.write(storage)
    }

    /// Write the batch that marks the checkpoint as complete. The caller has flushed all earlier batches.
    pub fn end_checkpoint(&mut self, storage: &mut dyn Storage) -> Result<u64, LogError> {
        self.complete = true;
        self.close();
        self.open = Some((self.pending.len(), 0));
        self.pending.grow(HEADER);
        self.write(storage)
    }
}
