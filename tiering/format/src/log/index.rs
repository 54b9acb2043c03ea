//! The index log: append, flush, growth and compaction.

use super::blocks::Recovered;
use super::cipher::{Cipher, CipherError, NONCE_BYTES};
use super::compact::{Compaction, flush};
use super::error::LogError;
use super::live::Live;
use super::open::{Source, halves, open};
use super::record;
use super::replay::Progress;
use super::scan::{Half, Scan};
use super::spool::Spool;
use super::storage::Storage;
use super::types::{LogStatus, Put, Salt, SlabHeader};
use super::writer::Writer;
use crate::{SECTOR, Superblock};

/// 1/16 of a half is reserved for erasures and frees, so a full log can always be emptied.
const RESERVE: u64 = 16;
/// A half that is 3/4 full is compacted if at least 1/32 of it is dead.
const WORTH: u64 = 32;
/// A half with at least this many bytes used is compacted if more than half of them are dead. This keeps starts short.
const LARGE: u64 = 64 << 20;
/// Minimum and maximum growth of a half; it grows by a quarter of its area within these bounds. With smaller steps, the padding of
/// batches that end before a long record could waste more than the reserve of 1/16.
const GROWTH: (u64, u64) = (1 << 20, 16 << 20);
/// Records refused between two tries to reserve more, once a try was refused.
const REFUSALS: u32 = 256;
/// Bytes copied by one compaction step that no append triggered.
const STEP: u64 = 1 << 20;

/// The index log of a disk.
///
/// Records are buffered: [`write`](Log::write) stores them, [`flush`](Log::flush) makes them durable. Written records are not
/// overwritten before their replacement is durable.
pub struct Log<S> {
    storage: S,
    store: u128,
    /// Reserved part of each half; both have the same size. Halves grow before they are compacted.
    halves: [Half; 2],
    /// Bytes of a half's area: the maximum size of a half.
    area: u64,
    /// Expected maximum size of a half: its area, or the reserved size if the storage refused more.
    half_max: u64,
    /// Error of the last failed reservation.
    refused: Option<String>,
    /// Records to refuse before the next reservation is tried, after one was refused.
    skips: u32,
    /// Index of the half in use.
    active: usize,
    writer: Writer,
    live: Live,
    cipher: Option<Box<dyn Cipher>>,
    compaction: Option<Compaction>,
    /// Minimum number of dead bytes for the next compaction; raised when a compaction did not fit.
    dead_min: u64,
    /// Highest epoch used so far.
    epoch: u64,
    /// Number of records encrypted since the start; part of the nonce.
    sealed: u64,
    status: LogStatus,
}

impl<S: Storage> Log<S> {
    /// Recover the log: read the newest complete half and write its live records into the other half.
    ///
    /// The caller has incremented the superblock's `starts`, and written and flushed the superblock.
    ///
    /// # Errors
    /// An I/O error, or an invalid log area in the superblock. The recorded blocks are not lost.
    pub fn open(
        mut storage: S,
        superblock: &Superblock,
        mut cipher: Option<Box<dyn Cipher>>,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<(Log<S>, Recovered), LogError> {
        let halves = halves(superblock)?;
        let borrowed = cipher.as_mut().map(|cipher| &mut **cipher as &mut dyn Cipher);
        let opened = open(&mut storage, superblock, borrowed, progress)?;
        let (store, run) = (superblock.store, opened.recovered.run);
        let epoch = u64::from(run) << 32;
        let scan = |source: &Source| Scan::known(halves[source.index], store, source.epoch, source.end);
        let blank = Source { index: 1, epoch: 0, end: 0, flushed: 0, complete: false, damaged: false };
        let newest = opened.sources.last().unwrap_or(&blank);
        let active = 1 - newest.index;
        let area = halves[0].bytes;
        // The live records take at most the bytes written, and the writer had reserved those.
        let written = opened.sources.iter().map(|source| source.end).sum::<u64>().max(1);
        let halves = halves.map(|half| Half { bytes: written.next_multiple_of(growth(area)).min(area), ..half });
        for half in halves {
            reserve(&mut storage, half.offset, half.bytes)?;
        }
        let into = Writer::new(halves[active], store, epoch);
        let (live, all) = (&opened.live, u64::MAX);
        let mut compaction = match &*opened.sources {
            [older, newer] => {
                // The new checkpoint overwrites a half that it is partly read from, so it is buffered in memory first.
                let mut spool = Spool::new(&mut storage, halves[active].offset);
                let mut compaction = Compaction::begin(scan(older), into, all, older.flushed, live, &mut spool)?;
                compaction.step(all, live, &mut spool)?;
                compaction.go_on(scan(newer), newer.flushed);
                compaction.step(all, live, &mut spool)?;
                spool.pour()?;
                compaction
            }
            _ => {
                let mut compaction = Compaction::begin(scan(newest), into, all, newest.flushed, live, &mut storage)?;
                compaction.step(all, live, &mut storage)?;
                compaction
            }
        };
        compaction.end(&mut storage)?;
        let status =
            LogStatus { run, compacted_bytes: compaction.written, compactions: 1, flushes: 2, ..LogStatus::default() };
        let log = Log {
            storage,
            store,
            halves,
            area,
            half_max: area,
            refused: None,
            skips: 0,
            active,
            writer: compaction.into,
            live: opened.live,
            cipher,
            compaction: None,
            dead_min: 0,
            epoch,
            sealed: 0,
            status,
        };
        Ok((log, opened.recovered))
    }

    /// Record that a region was granted to a space. Earlier records of the region become obsolete.
    ///
    /// Flush the log before the slab's slots are written: until then a power failure restores the records of the previous blocks.
    ///
    /// # Errors
    /// [`LogError::Full`], an invalid slab, or an I/O error; nothing is recorded.
    pub fn grant(&mut self, slab: &SlabHeader) -> Result<(), LogError> {
        self.live.check(slab).map_err(|what| LogError::Nonsense { region: slab.region, what })?;
        let bytes = record::slab_bytes(slab);
        self.room(bytes, false)?;
        self.writer.append(bytes, |into| {
            record::encode_slab(slab, into);
            Ok::<(), LogError>(())
        })?;
        self.live.grant(slab.clone());
        Ok(())
    }

    /// Record that a region was freed.
    ///
    /// # Errors
    /// [`LogError::Full`] or an I/O error; the region stays granted.
    pub fn free(&mut self, region: u32) -> Result<(), LogError> {
        let Some(grant) = self.live.slab(region).map(|slab| slab.header.grant) else { return Ok(()) };
        self.room(record::FREED_BYTES, true)?;
        self.writer.append(record::FREED_BYTES, |into| {
            record::encode_freed(region, grant, into);
            Ok::<(), LogError>(())
        })?;
        self.live.free(region);
        Ok(())
    }

    /// Record a salt. Call this once for each salt, before the first block that refers to it.
    ///
    /// # Errors
    /// [`LogError::Full`] or an I/O error.
    pub fn salt(&mut self, salt: &Salt) -> Result<(), LogError> {
        self.room(record::SALT_BYTES, false)?;
        self.writer.append(record::SALT_BYTES, |into| {
            record::encode_salt(salt, into);
            Ok::<(), LogError>(())
        })?;
        if let Some(cipher) = &mut self.cipher {
            cipher.learn(salt);
        }
        self.live.salt(*salt);
        Ok(())
    }

    /// Record a block. It supersedes the block that was recorded for its slot.
    ///
    /// # Errors
    /// [`LogError::Full`], an I/O error, a failed encryption, or an invalid block; nothing is recorded.
    pub fn put(&mut self, put: &Put<'_>) -> Result<(), LogError> {
        let region = put.region;
        let slab = self.live.slab(region).ok_or(LogError::NotGranted { region })?;
        let shape = slab.shape;
        let lengths = [put.present.len(), put.crcs.len(), put.sectors.len(), put.tags.len()];
        let nonsense = |what| Err(LogError::Nonsense { region, what });
        if lengths != [shape.words, shape.planes, shape.sectors, shape.tags] {
            return nonsense("its planes do not match the slab");
        }
        if put.slot as usize >= slab.slots.len() || put.generation == 0 || put.shard >= slab.header.shards {
            return nonsense("slot, generation or shard out of range");
        }
        if shape.tags > 0 && !self.live.knows_salt(put.salt) {
            return nonsense("its salt is not in the log");
        }
        let bytes = slab.record_bytes;
        self.room(bytes, false)?;
        let Log { live, writer, cipher, sealed, status, .. } = self;
        let slab = live.slab(region).ok_or(LogError::NotGranted { region })?;
        writer.append(bytes, |into| {
            record::encode_put(put, slab.header.grant, shape, into);
            if shape.tags == 0 {
                return Ok(());
            }
            let failed = |source| LogError::Cipher { region, source };
            let cipher = cipher.as_mut().ok_or(failed(CipherError::NoKey))?;
            let seal = record::seal_parts(into, shape);
            let mut nonce = [0; NONCE_BYTES];
            nonce[..4].copy_from_slice(&status.run.to_le_bytes());
            nonce[4..].copy_from_slice(&sealed.to_le_bytes());
            *sealed += 1;
            seal.nonce.copy_from_slice(&nonce);
            let tag = cipher.seal(&slab.header, put.salt, &nonce, &seal.associated, seal.body);
            seal.tag.copy_from_slice(&tag.map_err(failed)?);
            Ok(())
        })?;
        self.live.put(region, put.slot, put.generation);
        Ok(())
    }

    /// Record that a block was erased. Flush the log before the slot is written again. A block that is not recorded is ignored.
    ///
    /// # Errors
    /// [`LogError::Full`] or an I/O error; the block stays recorded.
    pub fn erase(&mut self, region: u32, slot: u32, generation: u32) -> Result<(), LogError> {
        let Some(slab) = self.live.slab(region) else { return Ok(()) };
        if !self.live.holds(region, slot, generation) {
            return Ok(());
        }
        let grant = slab.header.grant;
        self.room(record::ERASED_BYTES, true)?;
        self.writer.append(record::ERASED_BYTES, |into| {
            record::encode_erased(region, grant, slot, generation, into);
            Ok::<(), LogError>(())
        })?;
        self.live.erase(region, slot, generation);
        Ok(())
    }

    /// Return the buffered bytes, which [`write`](Log::write) will store.
    pub fn pending(&self) -> u64 {
        self.writer.pending()
    }

    /// Store the buffered records; they then survive the end of the process. Advance a running or due compaction in proportion.
    ///
    /// # Errors
    /// An I/O error. The records stay buffered; the next call writes the same bytes to the same offset.
    pub fn write(&mut self) -> Result<(), LogError> {
        let bytes = self.append_pending()?;
        if bytes == 0 || !self.wants_compaction() {
            return Ok(());
        }
        // This pace ends the compaction when half of the remaining space is used.
        let room = self.half_max.saturating_sub(self.writer.used()).max(1);
        let left = self.compaction.as_ref().map_or(self.writer.at, |c| self.writer.at.saturating_sub(c.from.at));
        let step = u128::from(bytes) * 2 * u128::from(left + room) / u128::from(room);
        match self.compact(u64::try_from(step).unwrap_or(u64::MAX)) {
            // The appended records are stored. If the live records do not fit, a later record that has no space reports it.
            Ok(_) | Err(LogError::Full { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Store the buffered records and flush the device. Everything written to the disk before, pages included, is then durable.
    ///
    /// # Errors
    /// An I/O error. After a failed flush the log accepts no more records, because it is unknown which writes the device dropped.
    pub fn flush(&mut self) -> Result<(), LogError> {
        self.write()?;
        self.checked()?;
        let flushed = flush(&mut self.storage, &self.writer);
        self.note_flush(flushed)?;
        self.writer.covered();
        Ok(())
    }

    /// Record that the last flush succeeded, if no later batch does. A later start then counts damage before this point as
    /// corruption, not as the effect of a power failure. The mark itself need not be flushed.
    ///
    /// # Errors
    /// An I/O error; the call can be repeated.
    pub fn mark(&mut self) -> Result<(), LogError> {
        self.checked()?;
        self.status.appended_bytes += self.writer.mark(&mut self.storage)?;
        Ok(())
    }

    /// Return whether a compaction is running, or due because much of the log is dead.
    pub fn wants_compaction(&self) -> bool {
        if self.compaction.is_some() {
            return true;
        }
        let (half, used, dead) = (self.half_max, self.writer.used(), self.dead());
        let full = used >= half / 4 * 3 && dead >= half / WORTH;
        let large = used >= LARGE.min(half / 4) && dead > used / 2;
        (full || large) && dead >= self.dead_min
    }

    /// Advance a compaction by one step, or begin one if it is due. Return false if there is nothing left to do.
    ///
    /// # Errors
    /// An I/O error, or [`LogError::Full`] if the live records do not fit. The half in use stays unchanged.
    pub fn compact_step(&mut self) -> Result<bool, LogError> {
        if !self.wants_compaction() {
            return Ok(false);
        }
        self.compact(STEP)
    }

    /// Return the status of the log.
    pub fn status(&self) -> LogStatus {
        LogStatus {
            half_bytes: self.half_max,
            used_bytes: self.writer.used(),
            live_bytes: self.live.bytes,
            blocks: self.live.blocks,
            slabs: self.live.granted,
            compacting: self.compaction.is_some(),
            ..self.status
        }
    }

    /// Return the storage.
    pub fn storage(&mut self) -> &mut S {
        &mut self.storage
    }

    /// Return the dead bytes of the half in use.
    fn dead(&self) -> u64 {
        self.writer.used().saturating_sub(self.live.bytes)
    }

    fn checked(&self) -> Result<(), LogError> {
        if self.status.failed { Err(LogError::Failed) } else { Ok(()) }
    }

    fn append_pending(&mut self) -> Result<u64, LogError> {
        self.checked()?;
        let bytes = self.writer.write(&mut self.storage)?;
        self.status.appended_bytes += bytes;
        Ok(bytes)
    }

    fn note_flush(&mut self, result: Result<(), LogError>) -> Result<(), LogError> {
        self.status.flushes += 1;
        self.status.failed |= result.is_err();
        result
    }

    /// Make space for a record: write, grow or compact. `last`: the record may use the reserve.
    fn room(&mut self, bytes: usize, last: bool) -> Result<(), LogError> {
        self.checked()?;
        if self.writer.is_full() {
            self.write()?;
        }
        while self.fits(bytes, last).is_err() {
            if self.halves[0].bytes < self.half_max && self.grow() {
                continue;
            }
            let half = self.halves[0].bytes;
            if self.compaction.is_some() || self.dead() >= (half / WORTH).max(self.dead_min) {
                while self.compact(STEP)? {}
            }
            if self.fits(bytes, last).is_ok() {
                break;
            }
            // A reservation that was refused before may succeed now. Each try can cost a full file system a commit of its journal.
            if self.refused.is_some() && self.skips > 0 {
                self.skips -= 1;
                break;
            }
            if !self.grow() {
                break;
            }
        }
        self.fits(bytes, last)
    }

    /// Check that a record fits in the reserved part of the half. `last`: the record may use the reserve.
    fn fits(&self, bytes: usize, last: bool) -> Result<(), LogError> {
        let half = self.halves[0].bytes;
        let limit = if last { half } else { half - half / RESERVE };
        self.writer.fits(bytes, limit).map_err(|error| match error {
            LogError::Full { needed_bytes, free_bytes, half_bytes, .. } => {
                LogError::Full { needed_bytes, free_bytes, half_bytes, refused: self.refused.clone() }
            }
            error => error,
        })
    }

    /// Grow both halves. Return false if they have reached their area, or if the storage has no space.
    fn grow(&mut self) -> bool {
        let reach = self.halves[0].bytes;
        let more = growth(self.area).min(self.area - reach);
        if more == 0 {
            return false;
        }
        let reserved = self.halves.iter().try_for_each(|half| reserve(&mut self.storage, half.offset + reach, more));
        (self.half_max, self.refused) = match reserved {
            Ok(()) => (self.area, None),
            Err(error) => (reach, Some(error.to_string())),
        };
        self.skips = REFUSALS;
        if self.refused.is_some() {
            return false;
        }
        for half in &mut self.halves {
            half.bytes += more;
        }
        self.writer.half.bytes += more;
        if let Some(compaction) = &mut self.compaction {
            compaction.into.half.bytes += more;
        }
        true
    }

    /// Copy at least `bytes` bytes. Return false when the compaction has ended.
    fn compact(&mut self, bytes: u64) -> Result<bool, LogError> {
        self.checked()?;
        let result = self.compact_some(bytes);
        if let Err(error) = &result {
            // Abandon the copy: the half in use is complete.
            self.status.compacted_bytes += self.compaction.take().map_or(0, |compaction| compaction.written);
            if let LogError::Full { half_bytes, .. } = error {
                self.dead_min = self.dead() + half_bytes / WORTH;
            }
        }
        result
    }

    fn compact_some(&mut self, bytes: u64) -> Result<bool, LogError> {
        let mut compaction = match self.compaction.take() {
            Some(compaction) => compaction,
            None => self.begin()?,
        };
        if !compaction.step(bytes, &self.live, &mut self.storage)? {
            self.compaction = Some(compaction);
            return Ok(true);
        }
        // Copy the records appended since. Write the buffered ones first, so that no record is missing from the new half.
        self.append_pending()?;
        compaction.from.extend(self.writer.at);
        compaction.step(u64::MAX, &self.live, &mut self.storage)?;
        let ended = compaction.end(&mut self.storage);
        self.status.flushes += 1;
        self.note_flush(ended)?;
        self.status.compacted_bytes += compaction.written;
        self.status.compactions += 1;
        let (corrupt, lost) = compaction.from.lost();
        self.status.corrupt += corrupt + lost;
        self.active = 1 - self.active;
        self.writer = compaction.into;
        self.dead_min = 0;
        Ok(false)
    }

    fn begin(&mut self) -> Result<Compaction, LogError> {
        let tail = self.writer.at;
        let from = Scan::known(self.halves[self.active], self.store, self.writer.epoch, tail);
        self.epoch += 1;
        let into = Writer::new(self.halves[1 - self.active], self.store, self.epoch);
        Compaction::begin(from, into, tail, u64::MAX, &self.live, &mut self.storage)
    }
}

/// Return the growth step of a half, in whole sectors.
fn growth(area: u64) -> u64 {
    (area / 4).clamp(GROWTH.0, GROWTH.1).next_multiple_of(SECTOR.into())
}

/// Reserve space for writes to the range.
fn reserve(storage: &mut dyn Storage, offset: u64, bytes: u64) -> Result<(), LogError> {
    let failed = |source| LogError::Io { tried: "reserve", offset, bytes, source };
    storage.reserve(offset, bytes).map_err(failed)
}
