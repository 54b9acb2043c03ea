//! Compaction: what counts is copied from the half in use into the other one, in steps, while appends go on.
//!
//! The copy begins with the slabs and salts of the moment, goes through the blocks in the order in which they were recorded, and
//! then through whatever was appended meanwhile, erasures included: what they erase may have been copied before. When it has caught
//! up it is flushed, and only then gets the mark that makes it count. Until that mark is flushed too, nothing overwrites
//! the half that it was copied from.

use super::error::LogError;
use super::live::Live;
use super::record::{self, Record};
use super::scan::{Found, Scan};
use super::storage::Storage;
use super::writer::Writer;

/// A copy under way.
#[derive(Debug)]
pub(super) struct Compaction {
    /// The half in use, or that a start found.
    pub from: Scan,
    /// The other one.
    pub into: Writer,
    /// From here on in the half in use, slabs, releases and erasures are copied too.
    tail: u64,
    /// Batches from this sequence on were not covered by a flush as far as a start knows.
    unsure: u64,
    /// Bytes written.
    pub written: u64,
}

impl Compaction {
    /// Begins with what holds for all blocks. `tail`: bytes of the half in use.
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

    /// Goes on with what another half holds.
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

    /// Copies batches of at least so many bytes. True: it has caught up with what there was to read.
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
                // A block that is gone again may have taken the place of one that was copied.
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

    /// Makes the copy count. It has caught up. An error between the two flushes leaves both halves complete, with the same content.
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

/// A device flush.
pub(super) fn flush(storage: &mut dyn Storage, writer: &Writer) -> Result<(), LogError> {
    let failed = |source| LogError::Io { tried: "flush", offset: writer.half.offset, bytes: writer.at, source };
    storage.flush().map_err(failed)
}
