//! Work of a coding thread: convert frames to their stored form, and back.
//!
//! Engines can change frames at any time, since they share them. A page is therefore copied out of its frame once, and everything
//! is computed from that copy: checksum and tag cover exactly the stored bytes, and no code reads a byte twice that an engine could
//! change in between. A page that was read is copied into its frame as a whole, after it was verified. There is one exception:
//! encrypted pages without a codec are read into the frame and decrypted there. The cipher's control flow depends only on lengths.
//! An engine that writes to the frame meanwhile damages only its own page: the tag detects it, or the page would have been
//! overwritten a moment later anyway.

use super::SlabCode;
use super::arena::Extent;
use super::codec::{Codec, Coder, is_possible, stored_bytes};
use super::keys::{Stored, Subkey};
use super::stats::CodeStatus;
use crate::memory::Memory;
use crate::transfer::SlotKey;
use kvtide_format::PageKey;
use std::sync::Arc;
use std::time::Instant;

/// Pages of one transfer.
#[derive(Debug, Default)]
pub struct Work {
    /// The operation.
    pub task: Task,
    /// The pages.
    pub pages: Vec<Page>,
}

/// The operation on the pages.
#[derive(Debug, Default)]
pub struct Task {
    /// Number of the job in the I/O thread.
    pub job: u32,
    /// True: stored form to frames; false: frames to stored form.
    pub loads: bool,
    /// Codec of the slab.
    pub codec: Codec,
    /// Subkey for the slab and salt, if encrypted.
    pub subkey: Option<Arc<Subkey>>,
    /// Store id of the disk.
    pub store: u128,
    /// Slot of the transfer.
    pub key: SlotKey,
    /// Stats, added to the disk's counters.
    pub done: CodeStatus,
}

/// A page in the pool.
#[derive(Debug)]
pub struct Page {
    /// Index in the transfer's parts.
    pub part: u32,
    /// Its plane.
    pub plane: u16,
    /// Its bytes.
    pub bytes: u32,
    /// The memory that contains its frame.
    pub memory: Arc<Memory>,
    /// Offset of the frame in the memory.
    pub offset: u64,
    /// Location of its stored form: the transfer's extent and the offset in it; None: the frame.
    pub stored: Option<(Extent, u64)>,
    /// As in `Part`.
    pub crc: u32,
    /// As in `Part`.
    pub sectors: u16,
    /// As in `Part`.
    pub tag: [u8; 16],
    /// As in `Part`.
    pub digest: Option<u32>,
    /// As in `Part`.
    pub sampled: bool,
    /// Read: the page is valid. Write: its stored form was created.
    pub ok: bool,
    /// Write: the page differs from its sampled digest ([`Page::digest`]).
    pub strange: bool,
}

/// Working memory of one thread.
pub struct WorkerScratch {
    coder: Coder,
    /// A decoded page.
    plain: Vec<u8>,
}

/// A page's stored form as described by its index record.
#[derive(Clone, Copy, Debug)]
pub struct Kept<'a> {
    /// Identity of the page.
    pub page: PageKey,
    /// Its bytes.
    pub page_bytes: u32,
    /// Codec of the slab.
    pub codec: Codec,
    /// Subkey for the slab and salt, if encrypted.
    pub subkey: Option<&'a Subkey>,
    /// As in `Part`.
    pub crc: u32,
    /// As in `Part`.
    pub sectors: u16,
    /// As in `Part`.
    pub tag: &'a [u8; 16],
}

impl Kept<'_> {
    fn how(&self) -> Stored {
        Stored { codec: self.codec.code(), sectors: self.sectors, page_bytes: self.page_bytes }
    }
}

impl WorkerScratch {
    /// # Errors
    /// There is not enough memory.
    pub fn new() -> std::io::Result<WorkerScratch> {
        Ok(WorkerScratch { coder: Coder::new()?, plain: Vec::new() })
    }

    /// Decode a page from its stored form, which is overwritten. Return None if it is invalid.
    pub fn open<'a>(&'a mut self, kept: &Kept<'_>, stored: &'a mut [u8], done: &mut CodeStatus) -> Option<&'a [u8]> {
        let whole = stored.len() == stored_bytes(kept.page_bytes, kept.sectors) as usize;
        if !whole || !is_possible(kept.codec, kept.page_bytes, kept.sectors) {
            return None;
        }
        if let Some(subkey) = kept.subkey {
            let began = Instant::now();
            let good = subkey.open_page(&kept.page, kept.crc, kept.how(), stored, kept.tag);
            done.decrypted.add(stored.len(), began.elapsed());
            if !good {
                return None;
            }
        }
        let plain = if kept.sectors == 0 {
            &*stored
        } else {
            self.plain.resize(kept.page_bytes as usize, 0);
            let began = Instant::now();
            let decoded = self.coder.decode(kept.codec, stored, &mut self.plain);
            done.codecs[kept.codec].decoded.add(kept.page_bytes, stored.len() as u32, began.elapsed());
            if let Err(error) = decoded {
                let PageKey { region, slot, plane, .. } = kept.page;
                tracing::error!("region {region}, slot {slot}, plane {plane}: {error}");
                return None;
            }
            &self.plain[..]
        };
        (kept.subkey.is_some() || checksum(&kept.page, plain, done) == kept.crc).then_some(plain)
    }
}

/// Return the CRC-32C of the page alone, without its key.
fn plain_crc(page: &PageKey, plain: &[u8], done: &mut CodeStatus) -> u32 {
    page.digest(checksum(page, plain, done), plain.len() as u64)
}

fn checksum(page: &PageKey, plain: &[u8], done: &mut CodeStatus) -> u32 {
    let began = Instant::now();
    let crc = page.checksum(plain);
    done.checksum_ns += began.elapsed().as_nanos() as u64;
    crc
}

impl Work {
    /// Process all pages; each page gets its result.
    pub fn carry_out(&mut self, scratch: &mut WorkerScratch) {
        let Work { task, pages } = self;
        for page in pages {
            page.ok = if task.loads { task.load(page, scratch) } else { task.store(page, scratch) };
        }
    }
}

impl Task {
    /// Set the operation for the pages of a transfer.
    pub fn set(&mut self, job: u32, loads: bool, code: &SlabCode, subkey: Option<Arc<Subkey>>, key: SlotKey) {
        (self.job, self.loads, self.codec, self.store) = (job, loads, code.codec, code.store);
        (self.subkey, self.key) = (subkey, key);
    }

    fn page_key(&self, page: &Page) -> PageKey {
        let SlotKey { region, slot, generation } = self.key;
        PageKey { store: self.store, region, slot, generation, plane: page.plane }
    }

    fn kept<'a>(&'a self, page: &'a Page) -> Kept<'a> {
        Kept {
            page: self.page_key(page),
            page_bytes: page.bytes,
            codec: self.codec,
            subkey: self.subkey.as_deref(),
            crc: page.crc,
            sectors: page.sectors,
            tag: &page.tag,
        }
    }

    /// Convert a frame to its stored form.
    fn store(&mut self, page: &mut Page, scratch: &mut WorkerScratch) -> bool {
        let bytes = page.bytes as usize;
        let Some(place) = page.place(bytes) else { return false };
        // SAFETY: `place` checked the range. Until the work comes back, the extent belongs to the job, and only this work uses this
        // page's part of it. The arena's memory is not shared with other processes.
        let stored = unsafe { std::slice::from_raw_parts_mut(place, bytes) };
        page.sectors = 0;
        let key = self.page_key(page);
        if self.codec == Codec::None {
            page.copy_out(stored);
            page.strange = page.digest.is_some_and(|digest| digest != plain_crc(&key, stored, &mut self.done));
        } else {
            scratch.plain.resize(bytes, 0);
            page.copy_out(&mut scratch.plain);
            if self.subkey.is_none() {
                page.crc = checksum(&key, &scratch.plain, &mut self.done);
                page.strange = page.digest.is_some_and(|digest| digest != key.digest(page.crc, page.bytes.into()));
            } else {
                page.strange =
                    page.digest.is_some_and(|digest| digest != plain_crc(&key, &scratch.plain, &mut self.done));
            }
            let began = Instant::now();
            page.sectors = scratch.coder.encode(self.codec, &scratch.plain, stored);
            if page.sectors == 0 {
                stored.copy_from_slice(&scratch.plain);
            }
            let way = &mut self.done.codecs[self.codec].encoded;
            way.add(page.bytes, stored_bytes(page.bytes, page.sectors), began.elapsed());
        }
        if let Some(subkey) = &self.subkey {
            let began = Instant::now();
            let stored = &mut stored[..stored_bytes(page.bytes, page.sectors) as usize];
            page.tag = subkey.seal_page(&key, page.crc, self.kept(page).how(), stored);
            self.done.encrypted.add(stored.len(), began.elapsed());
        }
        true
    }

    /// Convert a stored form to its frame.
    fn load(&mut self, page: &mut Page, scratch: &mut WorkerScratch) -> bool {
        let bytes = stored_bytes(page.bytes, page.sectors) as usize;
        let Some(place) = page.place(bytes) else { return false };
        // SAFETY: `place` checked the range. For an extent: as in `store`. A frame belongs to the transfer until it ends, and no
        // thread of this process uses it meanwhile; for engines see the module documentation.
        let stored = unsafe { std::slice::from_raw_parts_mut(place, bytes) };
        let mut done = std::mem::take(&mut self.done);
        let plain = scratch.open(&self.kept(page), stored, &mut done);
        page.digest = plain.filter(|_| page.sampled).map(|plain| {
            let key = self.page_key(page);
            if self.subkey.is_some() {
                plain_crc(&key, plain, &mut done)
            } else {
                key.digest(page.crc, page.bytes.into())
            }
        });
        self.done = done;
        match plain {
            Some(plain) if page.stored.is_some() => page.copy_in(plain),
            Some(_) => {}
            None => return false,
        }
        true
    }
}

impl Page {
    /// Return the address of its stored form of `bytes`, if the range is valid.
    fn place(&self, bytes: usize) -> Option<*mut u8> {
        let (memory, at) = match &self.stored {
            Some((extent, at)) => (&extent.memory, extent.at + at),
            None => (&self.memory, self.offset),
        };
        memory.holds(at, bytes as u64).then(|| memory.at(at))
    }

    /// Copy the frame's current bytes.
    fn copy_out(&self, into: &mut [u8]) {
        assert!(self.memory.holds(self.offset, into.len() as u64), "the page exceeds its memory");
        // SAFETY: the range was checked; `into` is private memory of the daemon. An engine that writes the frame meanwhile changes
        // only the bytes copied.
        unsafe { std::ptr::copy_nonoverlapping(self.memory.at(self.offset), into.as_mut_ptr(), into.len()) }
    }

    /// Copy a whole page into the frame.
    fn copy_in(&self, from: &[u8]) {
        assert!(from.len() == self.bytes as usize, "the page is incomplete");
        assert!(self.memory.holds(self.offset, from.len() as u64), "the page exceeds its memory");
        // SAFETY: the range was checked; the frame belongs to the transfer until it ends. `from` is private memory of the daemon.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.memory.at(self.offset), from.len()) }
    }
}
