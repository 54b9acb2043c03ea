//! Appends records to a half: they gather in batches, which go out when the caller says so.

use super::batch::{BATCH_MAX, HEADER, Header};
use super::bytes::Buffer;
use super::error::LogError;
use super::record::Seed;
use super::scan::Half;
use super::storage::Storage;
use crate::format::SECTOR;

/// Bytes that gather before they have to go out.
const PENDING_MAX: usize = 1 << 20;

/// A half has room for so many batches of the longest, and as many times what may be pending.
const SHARE: u64 = 8;
/// Bytes of the longest record and its header, at most: of an encrypted, coded block of as many planes as there can be.
const RECORD_MAX: usize = 16 << 10;

/// The end of a half.
#[derive(Debug)]
pub(super) struct Writer {
    pub half: Half,
    pub epoch: u64,
    store: u128,
    seed: Seed,
    /// Bytes of the half that have been written.
    pub at: u64,
    /// Sequence of the batch that is open, or of the next.
    sequence: u64,
    /// Batches below were covered by a device flush.
    pub flushed: u64,
    /// What batches say from now on.
    pub complete: bool,
    pending: Buffer,
    /// Bytes that gather before they have to go out, and of the longest batch: less in halves as small as tests have.
    pending_max: usize,
    batch_max: usize,
    /// The open batch: where it begins in `pending`, and its records.
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
            // The record that fills it up may still open a batch.
            pending: Buffer::new(pending_max + SECTOR as usize + batch_max.max(RECORD_MAX)),
            pending_max,
            batch_max,
            open: None,
        }
    }

    /// Bytes of the half that are written, or will be.
    pub fn used(&self) -> u64 {
        self.at + (self.pending.len() as u64).next_multiple_of(SECTOR.into())
    }

    /// Bytes that wait to be written.
    pub fn pending(&self) -> u64 {
        self.pending.len() as u64
    }

    /// Whether the next record shall wait until what is pending is written.
    pub fn is_full(&self) -> bool {
        self.pending.len() >= self.pending_max
    }

    /// Whether a record of `bytes` fits into the first `limit` bytes of the half.
    pub fn fits(&self, bytes: usize, limit: u64) -> Result<(), LogError> {
        if self.used_with(bytes) <= limit {
            return Ok(());
        }
        let free_bytes = limit.saturating_sub(self.used());
        Err(LogError::Full { needed_bytes: bytes as u64, free_bytes, half_bytes: self.half.bytes, refused: None })
    }

    /// Bytes that the half has used when a record of `bytes` is in it.
    fn used_with(&self, bytes: usize) -> u64 {
        let header = if self.opens(bytes) { HEADER } else { 0 };
        let begin = if header > 0 { self.pending.len().next_multiple_of(SECTOR as usize) } else { self.pending.len() };
        self.at + ((begin + header + bytes) as u64).next_multiple_of(SECTOR.into())
    }

    fn opens(&self, bytes: usize) -> bool {
        self.open.is_none_or(|(begin, _)| self.pending.len() - begin + bytes > self.batch_max)
    }

    /// Appends a record that `encode` writes into zeros, but for its checksum. There is room for it in the half, and not
    /// [`is_full`](Writer::is_full).
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

    /// Ends the open batch.
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

    /// Writes what is pending; says how many bytes. After an error the same bytes go to the same place again.
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

    /// Everything written was covered by a device flush.
    pub fn covered(&mut self) {
        self.flushed = self.sequence;
    }

    /// Writes an empty batch, which says how far flushes have come, if no batch has said so yet and there is room for one.
    pub fn mark(&mut self, storage: &mut dyn Storage) -> Result<u64, LogError> {
        let told = self.flushed < self.sequence || self.pending.len() > 0;
        if told || self.fits(0, self.half.bytes).is_err() {
            return Ok(0);
        }
        self.open = Some((self.pending.len(), 0));
        self.pending.grow(HEADER);
        self.write(storage)
    }

    /// Writes the batch that says that the checkpoint is complete. Everything before has been flushed.
    pub fn end_checkpoint(&mut self, storage: &mut dyn Storage) -> Result<u64, LogError> {
        self.complete = true;
        self.close();
        self.open = Some((self.pending.len(), 0));
        self.pending.grow(HEADER);
        self.write(storage)
    }
}
