//! The log of page-table updates: one writer (the mover), many readers (lanes). Slots are reused lap by lap (rule 7).

use super::zeroed;
use kvtide_wire::{
    entry::NONE_U16,
    sync::{AtomicU64, Ordering},
};

/// One change of the page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Update {
    pub page: u32,
    pub frame: u32,
    /// True: install the page. False: invalidate it.
    pub install: bool,
    /// The installed frame was not written by a copy: other lanes may still read its earlier content (rule 11).
    pub blank: bool,
    /// Lane that may hold an invalidation until its use is over.
    pub use_lane: u16,
    /// Slot of the job that the invalidation belongs to.
    pub slot: u32,
    /// Position of that use.
    pub use_pos: u64,
}

impl Update {
    pub fn install(page: u32, frame: u32) -> Update {
        Update { page, frame, install: true, blank: false, use_lane: NONE_U16, slot: 0, use_pos: 0 }
    }

    pub fn invalidate(page: u32, frame: u32, slot: u32, use_lane: u16, use_pos: u64) -> Update {
        Update { page, frame, install: false, blank: false, use_lane, slot, use_pos }
    }
}

/// Words that an update takes in the log.
const WORDS: usize = 3;

pub(super) struct Log {
    words: Box<[AtomicU64]>,
    mask: u64,
    /// Updates written so far.
    end: AtomicU64,
    /// Number of updates that the mover may write before it claims more.
    limit: AtomicU64,
}

impl Log {
    pub fn new(entries: u32) -> Option<Log> {
        let words = zeroed::words(entries as usize * WORDS)?;
        Some(Log { words, mask: u64::from(entries) - 1, end: AtomicU64::new(0), limit: AtomicU64::new(0) })
    }

    pub fn capacity(&self) -> u64 {
        self.mask + 1
    }

    fn slot(&self, index: u64) -> &[AtomicU64] {
        let start = (index & self.mask) as usize * WORDS;
        &self.words[start..start + WORDS]
    }

    /// Writer: store an update and hand it over. `index` is the writer's own count of updates, below its claimed limit.
    pub fn append(&self, index: u64, update: Update) {
        let flags = u64::from(update.install) | u64::from(update.blank) << 1;
        let kind = flags | u64::from(update.use_lane) << 16 | u64::from(update.slot) << 32;
        let words = [u64::from(update.page) | u64::from(update.frame) << 32, kind, update.use_pos];
        for (place, word) in self.slot(index).iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        self.end.store(index + 1, Ordering::Release); // pairs with the load in `end`
    }

    /// Reader: return the number of updates handed over so far.
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire) // pairs with the store in `append`
    }

    /// Reader: return an update below `end` that is at most one lap old (rule 7).
    pub fn read(&self, index: u64) -> Update {
        let slot = self.slot(index);
        let [at, kind, use_pos] = std::array::from_fn(|i| slot[i].load(Ordering::Relaxed));
        Update {
            page: at as u32,
            frame: (at >> 32) as u32,
            install: kind & 1 == 1,
            blank: kind & 2 == 2,
            use_lane: (kind >> 16) as u16,
            slot: (kind >> 32) as u32,
            use_pos,
        }
    }

    /// Writer: announce the indices that it may write from now on. A SeqCst fence must follow.
    pub fn claim(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Reader that has become active, after its SeqCst fence: report whether entries from `cursor` on may already be
    /// overwritten.
    pub fn lapped(&self, cursor: u64) -> bool {
        self.limit.load(Ordering::Relaxed) > cursor + self.capacity()
    }
}
