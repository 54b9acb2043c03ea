//! What a thread of the pool does with pages: frame to stored form, or back.
//!
//! Frames are shared with engines, which may change them at any time. A page is copied out of its frame once, and everything is
//! made of that copy: so what a checksum or a tag covers is what is stored, and no code reads a byte twice that an engine can
//! change in between. A page that was read goes into its frame when it was found good, whole. The one exception: encrypted pages
//! without a codec are read into the frame and decrypted there. The cipher's control flow depends on lengths alone, and an engine
//! that breaks the rule spoils its own page; who waits for it is told by the tag, or would have seen the same a moment later.

use super::SlabCode;
use super::arena::Extent;
use super::codec::{Codec, Coder, is_possible, stored_bytes};
use super::keys::{Stored, Subkey};
use super::stats::CodeStatus;
use crate::io::memory::Memory;
use crate::io::transfer::SlotKey;
use kvtide_tiering::format::PageKey;
use std::sync::Arc;
use std::time::Instant;

/// Pages of one transfer.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// What is to be done with them.
    pub task: Task,
    /// The pages.
    pub pages: Vec<Page>,
}

/// What is to be done.
#[derive(Debug, Default)]
pub(crate) struct Task {
    /// Whose it is: the I/O thread's number of the job.
    pub job: u32,
    /// Stored form to frames; else frames to stored form.
    pub loads: bool,
    /// Of the slab.
    pub codec: Codec,
    /// Of the slab and the salt, if it is encrypted.
    pub subkey: Option<Arc<Subkey>>,
    /// Of the disk.
    pub store: u128,
    /// Of the transfer.
    pub key: SlotKey,
    /// What was done, for the disk's counters.
    pub done: CodeStatus,
}

/// A page on its way through the pool.
#[derive(Debug)]
pub(crate) struct Page {
    /// Which of the transfer's.
    pub part: u32,
    /// Its plane.
    pub plane: u16,
    /// Its bytes.
    pub bytes: u32,
    /// Holds its frame.
    pub memory: Arc<Memory>,
    /// Where the frame begins in the memory.
    pub offset: u64,
    /// Where its stored form stands: the transfer's extent, and its place in it; nothing: in the frame.
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
    /// Read: it is what was written. Write: its stored form was made.
    pub ok: bool,
    /// Write: it is not what was stored ([`Page::digest`]).
    pub strange: bool,
}

/// Memory of one thread.
pub(crate) struct Desk {
    coder: Coder,
    /// A page as it is.
    plain: Vec<u8>,
}

/// What is known of a page's stored form: as a record says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept<'a> {
    /// Whose page it is.
    pub page: PageKey,
    /// Its bytes.
    pub page_bytes: u32,
    /// Of the slab.
    pub codec: Codec,
    /// Of the slab and the salt, if it is encrypted.
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
        Stored { codec: self.codec.id(), sectors: self.sectors, page_bytes: self.page_bytes }
    }
}

impl Desk {
    /// # Errors
    /// There is no memory for it.
    pub fn new() -> std::io::Result<Desk> {
        Ok(Desk { coder: Coder::new()?, plain: Vec::new() })
    }

    /// The page, of its stored form, which is spoilt; nothing if it is not what was written.
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
            done.codec(kept.codec).decoded.add(kept.page_bytes, stored.len() as u32, began.elapsed());
            if let Err(error) = decoded {
                let PageKey { region, slot, plane, .. } = kept.page;
                tracing::error!("plane {plane} of slot {slot} of region {region}: {error}");
                return None;
            }
            &self.plain[..]
        };
        (kept.subkey.is_some() || checksum(&kept.page, plain, done) == kept.crc).then_some(plain)
    }
}

/// CRC-32C of the page alone.
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
    /// Does it. Every page says what came of it.
    pub fn carry_out(&mut self, desk: &mut Desk) {
        let Work { task, pages } = self;
        for page in pages {
            page.ok = if task.loads { task.load(page, desk) } else { task.store(page, desk) };
        }
    }
}

impl Task {
    /// What is to be done with the pages of a transfer.
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

    /// From frame to stored form.
    fn store(&mut self, page: &mut Page, desk: &mut Desk) -> bool {
        let bytes = page.bytes as usize;
        let Some(place) = page.place(bytes) else { return false };
        // SAFETY: `place` checked the range; until the work comes back, the extent is the job's and this work alone has this page's
        // part of it. The arena's memory is shared with no other process.
        let stored = unsafe { std::slice::from_raw_parts_mut(place, bytes) };
        page.sectors = 0;
        let key = self.page_key(page);
        if self.codec == Codec::None {
            page.copy_out(stored);
            page.strange = page.digest.is_some_and(|digest| digest != plain_crc(&key, stored, &mut self.done));
        } else {
            desk.plain.resize(bytes, 0);
            page.copy_out(&mut desk.plain);
            if self.subkey.is_none() {
                page.crc = checksum(&key, &desk.plain, &mut self.done);
                page.strange = page.digest.is_some_and(|digest| digest != key.digest(page.crc, page.bytes.into()));
            } else {
                page.strange = page.digest.is_some_and(|digest| digest != plain_crc(&key, &desk.plain, &mut self.done));
            }
            let began = Instant::now();
            page.sectors = desk.coder.encode(self.codec, &desk.plain, stored);
            if page.sectors == 0 {
                stored.copy_from_slice(&desk.plain);
            }
            let way = &mut self.done.codec(self.codec).encoded;
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

    /// From stored form to frame.
    fn load(&mut self, page: &mut Page, desk: &mut Desk) -> bool {
        let bytes = stored_bytes(page.bytes, page.sectors) as usize;
        let Some(place) = page.place(bytes) else { return false };
        // SAFETY: `place` checked the range. In an extent: as in `store`. In a frame: it is the transfer's until it ends, no thread
        // of this process uses it meanwhile; what an engine may do to it is said at the head of this file.
        let stored = unsafe { std::slice::from_raw_parts_mut(place, bytes) };
        let mut done = std::mem::take(&mut self.done);
        let plain = desk.open(&self.kept(page), stored, &mut done);
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
    /// Where its stored form of so many bytes stands, if that is in memory.
    fn place(&self, bytes: usize) -> Option<*mut u8> {
        let (memory, at) = match &self.stored {
            Some((extent, at)) => (&extent.memory, extent.at + at),
            None => (&self.memory, self.offset),
        };
        memory.holds(at, bytes as u64).then(|| memory.at(at))
    }

    /// Copies the frame, whatever it holds this moment.
    fn copy_out(&self, into: &mut [u8]) {
        assert!(self.memory.holds(self.offset, into.len() as u64), "a page beyond its memory");
        // SAFETY: the range was checked; `into` is memory of the daemon's own. An engine that writes the frame meanwhile changes
        // what the copy holds, and nothing else.
        unsafe { std::ptr::copy_nonoverlapping(self.memory.at(self.offset), into.as_mut_ptr(), into.len()) }
    }

    /// Copies a whole page into the frame.
    fn copy_in(&self, from: &[u8]) {
        assert!(from.len() == self.bytes as usize, "a part of a page");
        assert!(self.memory.holds(self.offset, from.len() as u64), "a page beyond its memory");
        // SAFETY: the range was checked; the frame is the transfer's until it ends. `from` is memory of the daemon's own.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.memory.at(self.offset), from.len()) }
    }
}
