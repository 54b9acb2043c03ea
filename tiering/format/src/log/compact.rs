//! Compaction: copies the live records of the half in use into the other half, in steps, while appends continue.
//!
//! 1. Write the slabs and salts that exist now.
//! 2. Copy the live block records in log order.
//! 3. Copy the records appended in the meantime, including frees and erasures: the blocks that they remove may have been copied.
//! 4. Flush. Then write the batch that marks the checkpoint as complete, and flush again.
//!
//! Nothing overwrites the source half before the second flush succeeds.

use super::error::LogError;
use super::live::Live;
use super::record::{self, Record};
use super::scan::{Found, Scan};
use super::storage::Storage;
use super::writer::Writer;

/// State of a running compaction.
#[derive(Debug)]
pub(super) struct Compaction {
    /// Source: the half in use, or a half found by a start.
    pub from: Scan,
    /// Destination: the other half.
    pub into: Writer,
    /// From this offset of the source on, slabs, salts, frees and erasures are copied too.
    tail: u64,
    /// A start cannot prove that a flush covered batches from this sequence on.
    unsure: u64,
    /// Bytes written.
    pub written: u64,
}

impl Compaction {
    /// Begin a compaction: write the slabs and salts. `tail` is the end of the source at this moment.
    pub fn begin(
        from: Scan,
        into: Writer,
        tail: u64,
        unsure: u64,
        live: &Live,
        storage: &mut dyn Storage,
    ) -> Result<Compaction, LogError> {
        let mut compaction = Compaction { from, into, tail, unsure, written: 0 };
        for slab in live.slabs() {
            let encode = |into: &mut [u8]| record::encode_slab(&slab.header, into);
            compaction.append(record::slab_bytes(&slab.header), encode, storage)?;
        }
        for salt in &live.salts {
            compaction.append(record::SALT_BYTES, |into| record::encode_salt(salt, into), storage)?;
        }
        Ok(compaction)
    }

    /// Continue with another source half.
    pub fn go_on(&mut self, from: Scan, unsure: u64) {
        (self.from, self.unsure) = (from, unsure);
    }

    fn append(
        &mut self,
        bytes: usize,
        encode: impl FnOnce(&mut [u8]),
        storage: &mut dyn Storage,
    ) -> Result<(), LogError> {
        if self.into.is_full() {
            self.written += self.into.write(storage)?;
        }
        self.into.fits(bytes, self.into.half.bytes)?;
        self.into.append(bytes, |into| {
            encode(into);
            Ok(())
        })
    }

    /// Copy batches of at least `bytes` bytes. Return true at the end of the source.
    pub fn step(&mut self, bytes: u64, live: &Live, storage: &mut dyn Storage) -> Result<bool, LogError> {
        let mut moved = 0;
        while moved < bytes {
            let Some(found) = self.from.next(storage)? else { return Ok(true) };
            self.batch(&found, live, storage)?;
            moved += found.header.batch_bytes() as u64;
        }
        Ok(false)
    }

    fn batch(&mut self, found: &Found, live: &Live, storage: &mut dyn Storage) -> Result<(), LogError> {
        let tail = self.from.given_end > self.tail;
        let unsure = found.header.sequence >= self.unsure;
        for record in self.from.records() {
            let Ok((bytes, record)) = record else { continue };
            let put = match record {
                Record::Slab(slab) if tail && live.slab(slab.region).is_some_and(|now| now.header == slab) => false,
                Record::Salt(_) | Record::Freed { .. } | Record::Erased { .. } if tail => false,
                // In the tail, copy also blocks that are gone again: each may supersede a block that was copied before.
                Record::Put(put) if live.holds_record(&put) || tail && live.holds_slab(&put) => true,
                _ => continue,
            };
            if self.into.is_full() {
                self.written += self.into.write(storage)?;
            }
            self.into.fits(bytes.len(), self.into.half.bytes)?;
            self.into.append(bytes.len(), |into| {
                into.copy_from_slice(bytes);
                if put && unsure {
                    record::mark_unsure(into);
                }
                Ok::<(), LogError>(())
            })?;
        }
        Ok(())
    }

    /// Complete the checkpoint. The caller has copied everything. After an error between the two flushes both halves may be
    /// complete; they have the same content.
    pub fn end(&mut self, storage: &mut dyn Storage) -> Result<(), LogError> {
        self.written += self.into.write(storage)?;
        flush(storage, &self.into)?;
        self.into.covered();
        self.written += self.into.end_checkpoint(storage)?;
        flush(storage, &self.into)?;
        self.into.covered();
        Ok(())
    }
}

/// Flush the device.
pub(super) fn flush(storage: &mut dyn Storage, writer: &Writer) -> Result<(), LogError> {
    let failed = |source| LogError::Io { tried: "flush", offset: writer.half.offset, bytes: writer.at, source };
    storage.flush().map_err(failed)
}
