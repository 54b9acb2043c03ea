//! The first write of regions, one after another, in the background: what was never written is slow to write (extents must be
//! converted, on the file system or in the drive), and a full disk shall be found now.

use super::super::memory::Aligned;
use kvtide_tiering::format::Superblock;
use std::collections::VecDeque;
use std::io;

/// Bytes of one request, at most.
const CHUNK_BYTES: u64 = 1 << 20;

/// A part of a region to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Its region.
    pub region: u32,
    /// Where it stands in the file.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// How far the regions are written.
#[derive(Debug)]
pub(super) struct Regions {
    /// What is written: noise, so that no layer below takes it for nothing. `None` when all is written, or after a leak.
    pub noise: Option<Aligned>,
    regions: u32,
    region_bytes: u64,
    begin: u64,
    /// The next part to write: region, and bytes into it.
    next: (u32, u64),
    /// Regions with parts on their way or to come, in order: parts that are missing.
    open: VecDeque<u64>,
    /// Regions below this are written whole.
    pub ready: u32,
    /// What ended it before all were.
    pub errno: i32,
}

impl Regions {
    /// Goes on where the superblock says that it was left.
    pub fn new(block: &Superblock) -> io::Result<Regions> {
        let ready = block.regions_written;
        let noise = if ready < block.regions { Some(noise(block.store)?) } else { None };
        let (regions, region_bytes) = (block.regions, block.region_bytes);
        let begin = block.regions_offset;
        Ok(Regions { noise, regions, region_bytes, begin, next: (ready, 0), open: VecDeque::new(), ready, errno: 0 })
    }

    /// The next part to write; nothing if there is nothing more.
    pub fn next(&self) -> Option<Part> {
        let (region, at) = self.next;
        let more = region < self.regions && self.errno == 0;
        let offset = self.begin + u64::from(region) * self.region_bytes + at;
        more.then(|| Part { region, offset, bytes: (self.region_bytes - at).min(CHUNK_BYTES) })
    }

    /// That part is on its way.
    pub fn begun(&mut self) {
        let (region, at) = self.next;
        if at == 0 {
            self.open.push_back(self.region_bytes.div_ceil(CHUNK_BYTES));
        }
        self.next = if at + CHUNK_BYTES < self.region_bytes { (region, at + CHUNK_BYTES) } else { (region + 1, 0) };
    }

    /// A part of a region was written. True: more regions are ready than before.
    pub fn written(&mut self, region: u32) -> bool {
        let before = self.ready;
        if let Some(missing) = self.open.get_mut((region - self.ready) as usize) {
            *missing -= 1;
        }
        while self.open.front() == Some(&0) {
            self.open.pop_front();
            self.ready += 1;
        }
        before < self.ready
    }

    /// A part could not be written: no more are begun.
    pub fn failed(&mut self, errno: i32) {
        if self.errno == 0 {
            self.errno = errno;
        }
    }

    /// Whether all are written.
    pub fn complete(&self) -> bool {
        self.ready == self.regions
    }
}

/// Bytes that do not repeat within a request (SplitMix64).
fn noise(store: u128) -> io::Result<Aligned> {
    let mut memory = Aligned::new(CHUNK_BYTES as usize)?;
    let mut state = store as u64;
    for at in (0..CHUNK_BYTES as usize).step_by(8) {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        memory.write(at, &(word ^ (word >> 31)).to_le_bytes());
    }
    Ok(memory)
}
