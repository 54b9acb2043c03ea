//! Pinned ranges. Channels take pins; the mover checks them before it removes a page (rule 8).

use super::{SeqTable, zeroed};
use kvtide_wire::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// A pin: slot and generation, so that a second release is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PinId {
    /// Slot.
    pub slot: u32,
    /// Generation of the slot.
    pub generation: u32,
}

/// A range of pages of one sequence: blocks `first .. first + count` in planes `plane .. plane + planes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRange {
    /// Sequence.
    pub seq: u32,
    /// First block index.
    pub first: u32,
    /// Number of blocks.
    pub count: u32,
    /// First plane.
    pub plane: u16,
    /// Number of planes.
    pub planes: u16,
}

/// States of a slot: the low bits of its word. The generation is in the bits above.
const FREE: u64 = 0;
const BUSY: u64 = 1;
const LIVE: u64 = 2;
const STATES: u64 = 3;

/// A pinned range. Its other words are written only while the slot is `BUSY`.
struct Slot {
    /// Generation × 4 + state.
    word: AtomicU64,
    seq: AtomicU32,
    first: AtomicU32,
    count: AtomicU32,
    /// First plane, and number of planes in the upper half.
    planes: AtomicU32,
}

/// The pins of a session.
pub struct Pins {
    /// For each block, the number of live pins that cover one of its pages. Zero lets the mover skip the search.
    counts: Box<[AtomicU32]>,
    slots: Box<[Slot]>,
    /// Upper bound of the slots that were ever used.
    high: AtomicU32,
}

impl Pins {
    pub(super) fn new(blocks_max: u32, pins_max: u32) -> Option<Pins> {
        let slot = |_| Slot {
            word: AtomicU64::new(FREE),
            seq: AtomicU32::new(0),
            first: AtomicU32::new(0),
            count: AtomicU32::new(0),
            planes: AtomicU32::new(0),
        };
        let counts = zeroed::words(blocks_max as usize)?;
        Some(Pins { counts, slots: (0..pins_max).map(slot).collect(), high: AtomicU32::new(0) })
    }

    /// Pin a range. The sequence must contain the blocks, and keep them until the pin is released. From here on the mover
    /// removes none of these pages. Check whether they are resident only after this call. Return `None` if every pin is in use.
    pub fn pin(&self, seqs: &SeqTable, range: &PageRange) -> Option<PinId> {
        let (at, slot, word) = self.slots.iter().enumerate().find_map(|(at, slot)| {
            let word = slot.word.load(Ordering::Relaxed);
            let claim = || slot.word.compare_exchange(word, word + BUSY, Ordering::Acquire, Ordering::Relaxed);
            (word & STATES == FREE && claim().is_ok()).then_some((at as u32, slot, word))
        })?;
        slot.seq.store(range.seq, Ordering::Relaxed);
        slot.first.store(range.first, Ordering::Relaxed);
        slot.count.store(range.count, Ordering::Relaxed);
        slot.planes.store(u32::from(range.plane) | u32::from(range.planes) << 16, Ordering::Relaxed);
        slot.word.store(word + LIVE, Ordering::Release);
        self.high.fetch_max(at + 1, Ordering::Release);
        for count in self.counts_of(seqs, range) {
            count.fetch_add(1, Ordering::Release); // pairs with the load in `covers`
        }
        fence(Ordering::SeqCst); // rule 8
        Some(PinId { slot: at, generation: (word >> 2) as u32 })
    }

    fn counts_of(&self, seqs: &SeqTable, range: &PageRange) -> impl Iterator<Item = &AtomicU32> {
        let blocks = (range.first..range.first.saturating_add(range.count)).map_while(|i| seqs.block(range.seq, i));
        blocks.filter_map(|block| self.counts.get(block as usize))
    }

    /// Return the range of a live pin.
    #[must_use]
    pub fn range(&self, pin: PinId) -> Option<PageRange> {
        let slot = self.slots.get(pin.slot as usize)?;
        let word = slot.word.load(Ordering::Acquire);
        if word & STATES != LIVE || (word >> 2) as u32 != pin.generation {
            return None;
        }
        let planes = slot.planes.load(Ordering::Relaxed);
        Some(PageRange {
            seq: slot.seq.load(Ordering::Relaxed),
            first: slot.first.load(Ordering::Relaxed),
            count: slot.count.load(Ordering::Relaxed),
            plane: planes as u16,
            planes: (planes >> 16) as u16,
        })
    }

    /// Release a pin. Return false if it was released before.
    pub fn release(&self, seqs: &SeqTable, pin: PinId) -> bool {
        let Some(range) = self.range(pin) else { return false };
        let slot = &self.slots[pin.slot as usize];
        let live = u64::from(pin.generation) << 2 | LIVE;
        if slot.word.compare_exchange(live, live - LIVE + BUSY, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        for count in self.counts_of(seqs, &range) {
            count.fetch_sub(1, Ordering::Release);
        }
        slot.word.store(u64::from(pin.generation.wrapping_add(1)) << 2, Ordering::Release);
        true
    }

    /// Mover, after its SeqCst fence: report whether a page is pinned. A slot that is being taken or released counts as
    /// covering it.
    pub(super) fn covers(&self, seqs: &SeqTable, block: u32, plane: u16) -> bool {
        if self.counts[block as usize].load(Ordering::Acquire) == 0 {
            return false;
        }
        let high = self.high.load(Ordering::Acquire) as usize;
        self.slots[..high].iter().any(|slot| {
            let state = slot.word.load(Ordering::Acquire) & STATES;
            if state != LIVE {
                return state == BUSY;
            }
            let planes = slot.planes.load(Ordering::Relaxed);
            let (first_plane, count) = (planes & 0xffff, planes >> 16);
            let seq = slot.seq.load(Ordering::Relaxed);
            let first = slot.first.load(Ordering::Relaxed);
            let mut range = first..first.saturating_add(slot.count.load(Ordering::Relaxed));
            (first_plane..first_plane + count).contains(&u32::from(plane))
                && range.any(|index| seqs.block(seq, index) == Some(block))
        })
    }
}
