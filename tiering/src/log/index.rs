//! The log itself: what a log thread holds.

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
use crate::format::{SECTOR, Superblock};

/// Of a half, 1/16 is for erasures and releases alone: a full log can always be emptied.
const RESERVE: u64 = 16;
/// A half that is nearly full is compacted if that wins at least this part of it.
const WORTH: u64 = 32;
/// A half that has used more than this is compacted if more than half of it is dead, so that starts stay short.
const LARGE: u64 = 64 << 20;
/// Halves grow by a quarter of their area, within these bounds: with less, batches that end before the longest records would waste
/// more than [`RESERVE`].
const GROWTH: (u64, u64) = (1 << 20, 16 << 20);
/// Bytes that a step without appends copies.
const STEP: u64 = 1 << 20;

/// The index log of a disk.
///
/// Records are buffered: [`write`](Log::write) stores them, [`flush`](Log::flush) makes them durable. Nothing that was written
/// is overwritten before what replaces it is durable.
pub struct Log<S> {
    storage: S,
    store: u128,
    /// As far as they are reserved, both alike. They grow before they are compacted.
    halves: [Half; 2],
    /// Bytes of a half's area: it never grows beyond.
    area: u64,
    /// Bytes that a half is expected to grow to: its area, or what is reserved of it where no more could be.
    half_max: u64,
    /// Why no more could be reserved.
    refused: Option<String>,
    /// Which half is in use.
    active: usize,
    writer: Writer,
    live: Live,
    cipher: Option<Box<dyn Cipher>>,
    compaction: Option<Compaction>,
    /// Not before so many bytes are dead: a compaction found that it would not fit.
    dead_min: u64,
    /// The epoch used last.
    epoch: u64,
    /// Records encrypted in this run.
    sealed: u64,
    status: LogStatus,
}

impl<S: Storage> Log<S> {
    /// Reads what the log holds, and writes what counts of it into the other half. The superblock's `starts` has been counted up,
    /// written and flushed.
    ///
    /// # Errors
    /// The device fails, or the superblock names no log area. What the log held is not lost by that.
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
        // What counts is no more than what was written, and so much was reserved by whoever wrote it.
        let written = opened.sources.iter().map(|source| source.end).sum::<u64>().max(1);
        let halves = halves.map(|half| Half { bytes: written.next_multiple_of(growth(area)).min(area), ..half });
        for half in halves {
            reserve(&mut storage, half.offset, half.bytes)?;
        }
        let into = Writer::new(halves[active], store, epoch);
        let (live, all) = (&opened.live, u64::MAX);
        let mut compaction = match &*opened.sources {
            [older, newer] => {
                // The new checkpoint goes where a part of it is read from.
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

    /// A region is granted to a space; what was recorded of it does not count any more. Flush it before the slab's slots are
    /// written: until then a power cut brings back the records of the blocks that stood there.
    ///
    /// # Errors
    /// [`LogError::Full`], or the device fails: nothing is recorded.
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

    /// A region was taken back.
    ///
    /// # Errors
    /// [`LogError::Full`], or the device fails: it still counts as granted.
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

    /// Records a salt, once, before the first block that names it.
    ///
    /// # Errors
    /// [`LogError::Full`], or the device fails.
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

    /// Records a block; one that stood in its slot does not count any more.
    ///
    /// # Errors
    /// [`LogError::Full`], the device fails, it cannot be encrypted, or it makes no sense: nothing is recorded.
    pub fn put(&mut self, put: &Put<'_>) -> Result<(), LogError> {
        let region = put.region;
        let slab = self.live.slab(region).ok_or(LogError::NotGranted { region })?;
        let shape = slab.shape;
        let lengths = [put.present.len(), put.crcs.len(), put.sectors.len(), put.tags.len()];
        let nonsense = |what| Err(LogError::Nonsense { region, what });
        if lengths != [shape.words, shape.planes, shape.sectors, shape.tags] {
            return nonsense("it does not have the slab's planes");
        }
        if put.slot as usize >= slab.slots.len() || put.generation == 0 || put.shard >= slab.header.shards {
            return nonsense("there is no such slot, generation or shard");
        }
        if shape.tags > 0 && !self.live.knows_salt(put.salt) {
            return nonsense("its salt is not recorded");
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

    /// Records that the block is gone. Flush it before its slot is written again. Of a block that is not recorded nothing is.
    ///
    /// # Errors
    /// [`LogError::Full`], or the device fails: it still counts.
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

    /// Bytes that wait for [`write`](Log::write).
    pub fn pending(&self) -> u64 {
        self.writer.pending()
    }

    /// Stores what is buffered: it survives the death of the process. A compaction under way, or due, goes on in step with it.
    ///
    /// # Errors
    /// The device fails. What is buffered stays buffered: the same bytes go to the same place at the next call.
    pub fn write(&mut self) -> Result<(), LogError> {
        let bytes = self.append_pending()?;
        if bytes == 0 || !self.wants_compaction() {
            return Ok(());
        }
        // Done when half of the room that is left is used.
        let room = self.half_max.saturating_sub(self.writer.used()).max(1);
        let left = self.compaction.as_ref().map_or(self.writer.at, |c| self.writer.at.saturating_sub(c.from.at));
        let step = u128::from(bytes) * 2 * u128::from(left + room) / u128::from(room);
        match self.compact(u64::try_from(step).unwrap_or(u64::MAX)) {
            // What was appended is stored; that the live records do not fit is told by the record that has no room.
            Ok(_) | Err(LogError::Full { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Stores what is buffered and makes everything durable that was written to the disk before, pages included.
    ///
    /// # Errors
    /// The device fails. After a flush that failed nothing is taken any more: what the device dropped is not known.
    pub fn flush(&mut self) -> Result<(), LogError> {
        self.write()?;
        self.checked()?;
        let flushed = flush(&mut self.storage, &self.writer);
        self.note_flush(flushed)?;
        self.writer.covered();
        Ok(())
    }

    /// Writes down that the last flush succeeded, if nothing was written since that says so: what a later start finds damaged below
    /// is damage, and nothing that a power cut may do. It need not be flushed itself.
    ///
    /// # Errors
    /// The device fails; it may be tried again.
    pub fn mark(&mut self) -> Result<(), LogError> {
        self.checked()?;
        self.status.appended_bytes += self.writer.mark(&mut self.storage)?;
        Ok(())
    }

    /// Whether much of the log is dead, or a compaction is under way.
    pub fn wants_compaction(&self) -> bool {
        if self.compaction.is_some() {
            return true;
        }
        let (half, used, dead) = (self.half_max, self.writer.used(), self.dead());
        let full = used >= half / 4 * 3 && dead >= half / WORTH;
        let large = used >= LARGE.min(half / 4) && dead > used / 2;
        (full || large) && dead >= self.dead_min
    }

    /// Takes a compaction one step further, or begins one if that is wanted. False: nothing is left to do.
    ///
    /// # Errors
    /// The device fails, or what counts does not fit ([`LogError::Full`]): the half in use stays as it is.
    pub fn compact_step(&mut self) -> Result<bool, LogError> {
        if !self.wants_compaction() {
            return Ok(false);
        }
        self.compact(STEP)
    }

    /// How it stands.
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

    /// What it stands on.
    pub fn storage(&mut self) -> &mut S {
        &mut self.storage
    }

    /// Bytes of the half in use that do not count any more.
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

    /// Makes sure that a record has room. `last`: it may use the reserve.
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
            // Room that was refused may be there by now.
            if self.fits(bytes, last).is_ok() || !self.grow() {
                break;
            }
        }
        self.fits(bytes, last)
    }

    /// Whether a record has room in what is reserved. `last`: it may use the reserve.
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

    /// Reserves more of both halves. False: they have all of their areas, or the storage has no room.
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

    /// Copies at least so many bytes on. False: the compaction has ended.
    fn compact(&mut self, bytes: u64) -> Result<bool, LogError> {
        self.checked()?;
        let result = self.compact_some(bytes);
        if let Err(error) = &result {
            // The half in use has everything.
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
        // What was appended since. The last of it goes with the end, so that no record falls between the halves.
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

/// Bytes by which a half of such an area grows: whole sectors, as areas are.
fn growth(area: u64) -> u64 {
    (area / 4).clamp(GROWTH.0, GROWTH.1).next_multiple_of(SECTOR.into())
}

/// Makes sure that writes to the range find room.
fn reserve(storage: &mut dyn Storage, offset: u64, bytes: u64) -> Result<(), LogError> {
    let failed = |source| LogError::Io { tried: "reserve", offset, bytes, source };
    storage.reserve(offset, bytes).map_err(failed)
}
