//! The score area: attention scores that the engine publishes without messages and without guaranteed delivery.
//!
//! Each lane has [`crate::layout::SCORE_SLOTS`] slots, which its owner writes in a circle; the daemon reads them at any time. No
//! side waits and the area is never full. An entry that was overwritten before it was read is lost and counted; an entry that was
//! overwritten while it was read is torn, discarded and counted. Entry n lies in slot n mod SCORE_SLOTS under a sequence lock of
//! atomics:
//!
//! 1. Writer: `version = 2n + 1` relaxed; release fence; the words, relaxed; `version = 2n + 2` release.
//! 2. Reader: `version` acquire; the words, relaxed; acquire fence; `version` relaxed: the same even value twice, or torn.
//!
//! The writer's fence pairs with the reader's: a reader that saw a word of entry m > n sees a version of at least 2m + 1.

use crate::entry::NONE_U32;
use crate::half::F16;
use crate::sync::{AtomicU64, Ordering, fence};
use core::ops::Deref;

/// Maximum pages in an entry; one in models, which explore every order of a slot's words.
pub const TOP_MAX: usize = if cfg!(loom) { 1 } else { 124 };
/// Words before the pages.
const HEAD_WORDS: usize = 3;
const WORDS: usize = HEAD_WORDS + TOP_MAX;

/// One score slot in shared memory.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ScoreSlot {
    /// Sequence lock.
    pub version: AtomicU64,
    /// `[0]` seq, plane << 32, count << 48, kind << 56; `[1]` step; `[2]` rest; then page index, log-mass << 32.
    pub words: [AtomicU64; WORDS],
}

#[cfg(not(loom))]
const _: () = {
    use crate::layout::{SCORE_BYTES, SCORE_SLOTS};
    assert!(size_of::<ScoreSlot>() == SCORE_BYTES as usize && align_of::<ScoreSlot>() == 64);
    assert!(SCORE_BYTES as usize == 8 * (1 + WORDS) && SCORE_SLOTS.is_power_of_two());
    assert!(TOP_MAX <= u8::MAX as usize);
};

pub use kvtide_types::ScoreKind;

/// A page and the natural logarithm of its share of a sequence's attention in one plane, summed over heads; at most 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Top {
    /// Page index within the sequence.
    pub index: u32,
    /// Logarithm of its share.
    pub log_mass: F16,
}

/// Attention scores of one step, sequence and plane, measured or expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scores {
    /// Meaning of the shares.
    pub kind: ScoreKind,
    /// Sequence slot.
    pub seq: u32,
    /// Plane.
    pub plane: u16,
    /// Step of the lane.
    pub step: u64,
    /// Logarithm of the share of all pages that `top` does not name.
    pub rest: F16,
    top: [Top; TOP_MAX],
    count: u16,
}

impl Scores {
    /// Create an entry. `None` for more than [`TOP_MAX`] pages: the caller must reduce them to the top first.
    #[must_use]
    pub fn new(kind: ScoreKind, seq: u32, plane: u16, step: u64, top: &[Top], rest: F16) -> Option<Scores> {
        let mut scores =
            Scores { kind, seq, plane, step, rest, top: [Top::default(); TOP_MAX], count: top.len() as u16 };
        scores.top.get_mut(..top.len())?.copy_from_slice(top);
        Some(scores)
    }

    /// Return the pages named.
    #[must_use]
    pub fn top(&self) -> &[Top] {
        &self.top[..usize::from(self.count)]
    }

    fn encode(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        words[0] =
            u64::from(self.seq) | u64::from(self.plane) << 32 | u64::from(self.count) << 48 | (self.kind as u64) << 56;
        words[1] = self.step;
        words[2] = u64::from(self.rest.0);
        for (word, top) in words[HEAD_WORDS..].iter_mut().zip(self.top()) {
            *word = u64::from(top.index) | u64::from(top.log_mass.0) << 32;
        }
        words
    }

    /// Decode an entry; `None` for words that no correct engine writes.
    fn decode(words: &[u64; WORDS]) -> Option<Scores> {
        let count = words[0] >> 48 & 0xff;
        let kind = ScoreKind::from_code((words[0] >> 56) as u8)?;
        let used = words[HEAD_WORDS..].get(..count as usize)?;
        let logarithm = |bits: u64| {
            let mass = F16(u16::try_from(bits).ok()?);
            (mass.to_f32() <= 0.0).then_some(mass) // neither NaN nor above the whole
        };
        let mut top = [Top::default(); TOP_MAX];
        for (top, word) in top.iter_mut().zip(used) {
            *top = Top { index: *word as u32, log_mass: logarithm(word >> 32)? };
            if top.index == NONE_U32 {
                return None;
            }
        }
        let rest = logarithm(words[2])?;
        let (seq, plane, count) = (words[0] as u32, (words[0] >> 32) as u16, count as u16);
        Some(Scores { kind, seq, plane, step: words[1], rest, top, count })
    }
}

impl ScoreSlot {
    /// Create an empty slot, for private memory (models, tests).
    #[must_use]
    pub fn new() -> ScoreSlot {
        ScoreSlot { version: AtomicU64::new(0), words: core::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Default for ScoreSlot {
    fn default() -> Self {
        ScoreSlot::new()
    }
}

/// The writing end of a lane's slots; one owner. Never waits.
#[derive(Debug)]
pub struct ScoreWriter<S> {
    slots: S,
    next: u64,
}

impl<S: Deref<Target = [ScoreSlot]>> ScoreWriter<S> {
    /// Create a writer of zeroed slots; their number is a power of two.
    pub fn new(slots: S) -> Self {
        assert!(slots.len().is_power_of_two(), "a lane's score slots are a power of two: {}", slots.len());
        ScoreWriter { slots, next: 0 }
    }

    /// Write one entry over the oldest one.
    pub fn write(&mut self, scores: &Scores) {
        let slot = &self.slots[self.next as usize & (self.slots.len() - 1)];
        let version = 2 * self.next;
        slot.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release); // rule 1
        for (place, word) in slot.words.iter().zip(scores.encode()) {
            place.store(word, Ordering::Relaxed);
        }
        slot.version.store(version + 2, Ordering::Release);
        self.next += 1;
    }
}

/// Entries that a reader missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// Overwritten before they were read.
    pub lost: u64,
    /// Overwritten while they were read.
    pub torn: u64,
    /// Contents, or versions, that no correct engine writes.
    pub malformed: u64,
}

/// The reading end of a lane's slots; one owner.
#[derive(Debug)]
pub struct ScoreReader<S> {
    slots: S,
    next: u64,
    missed: Missed,
}

impl<S: Deref<Target = [ScoreSlot]>> ScoreReader<S> {
    /// Create a reader that has seen nothing yet.
    pub fn new(slots: S) -> Self {
        assert!(slots.len().is_power_of_two(), "a lane's score slots are a power of two: {}", slots.len());
        ScoreReader { slots, next: 0, missed: Missed::default() }
    }

    /// Return the entries missed so far.
    #[must_use]
    pub fn missed(&self) -> Missed {
        self.missed
    }

    /// Return whether [`ScoreReader::read`] would find an entry or detect a lost one.
    #[must_use]
    pub fn has_next(&self) -> bool {
        let slot = &self.slots[self.next as usize & (self.slots.len() - 1)];
        slot.version.load(Ordering::Acquire) >= 2 * self.next + 2
    }

    /// Return the oldest unread entry; `None` if there is none yet or if the writer is just writing it. Examine at most twice as
    /// many slots as the lane has, whatever they contain.
    pub fn read(&mut self) -> Option<Scores> {
        for _ in 0..2 * self.slots.len() {
            let slot = &self.slots[self.next as usize & (self.slots.len() - 1)];
            let before = slot.version.load(Ordering::Acquire); // rule 2
            let done = 2 * self.next + 2;
            if before < done {
                return None;
            }
            if before != done {
                self.skip_to(before);
                continue;
            }
            let words = core::array::from_fn(|i| slot.words[i].load(Ordering::Relaxed));
            fence(Ordering::Acquire); // rule 2
            let torn = slot.version.load(Ordering::Relaxed) != before;
            self.next += 1;
            if torn {
                self.missed.torn += 1;
                continue;
            }
            match Scores::decode(&words) {
                Some(scores) => return Some(scores),
                None => self.missed.malformed += 1,
            }
        }
        None
    }

    /// Skip lost entries: the writer has wrapped around. Its version gives the current entry, and from it follows the oldest that
    /// can still exist.
    fn skip_to(&mut self, version: u64) {
        let slots = self.slots.len() as u64;
        let newest = (version - 1) / 2; // 2n + 1 and 2n + 2 both belong to entry n
        let oldest = newest.saturating_sub(slots - 1).max(self.next + 1);
        let fits = newest % slots == self.next % slots && newest <= u64::MAX / 4;
        if !fits {
            // No entry of this slot has this version: skip it without trusting it.
            self.missed.malformed += 1;
            self.next += 1;
            return;
        }
        self.missed.lost += oldest - self.next;
        self.next = oldest;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slots(count: usize) -> Vec<ScoreSlot> {
        (0..count).map(|_| ScoreSlot::new()).collect()
    }

    fn entry(step: u64) -> Scores {
        let top = [Top { index: step as u32, log_mass: F16::nearest(-1.5) }];
        Scores::new(ScoreKind::Mass, 3, 7, step, &top, F16::NEG_INFINITY).expect("short")
    }

    #[test]
    fn what_is_overwritten_is_lost_and_counted() {
        let slots = slots(4);
        let (mut writer, mut reader) = (ScoreWriter::new(&*slots), ScoreReader::new(&*slots));
        assert_eq!(reader.read(), None);
        for step in 0..3 {
            writer.write(&entry(step));
        }
        assert_eq!(reader.read(), Some(entry(0)));
        for step in 3..9 {
            writer.write(&entry(step));
        }
        // Entries 1 to 4 are gone, 5 to 8 are there.
        let read: Vec<u64> = std::iter::from_fn(|| reader.read()).map(|s| s.step).collect();
        assert_eq!(read, [5, 6, 7, 8]);
        assert_eq!(reader.missed(), Missed { lost: 4, torn: 0, malformed: 0 });
        assert_eq!(Scores::new(ScoreKind::Mass, 0, 0, 0, &[Top::default(); TOP_MAX + 1], F16(0)), None);
    }

    #[test]
    fn an_entry_that_is_being_written_is_not_read() {
        let slots = slots(2);
        let mut reader = ScoreReader::new(&*slots);
        slots[0].version.store(1, Ordering::Relaxed);
        assert_eq!(reader.read(), None);
        slots[0].version.store(2, Ordering::Relaxed);
        assert_eq!(reader.read().map(|s| s.seq), Some(0));
    }

    proptest! {
        #[test]
        fn entries_survive(kind in 0..ScoreKind::ALL.len(), seq in any::<u32>(), plane in any::<u16>(), step in any::<u64>(),
                           masses in proptest::collection::vec((0..u32::MAX, 0.0f32..80.0), 0..=TOP_MAX)) {
            let top: Vec<Top> = masses.iter()
                .map(|(index, mass)| Top { index: *index, log_mass: F16::nearest(-mass) }).collect();
            let scores = Scores::new(ScoreKind::ALL[kind], seq, plane, step, &top, F16::nearest(-0.25)).expect("short");
            let slots = slots(2);
            ScoreWriter::new(&*slots).write(&scores);
            prop_assert_eq!(ScoreReader::new(&*slots).read(), Some(scores));
        }

        /// For any content of the slots, reading ends, and every entry read is well-formed.
        #[test]
        fn any_memory_is_read_in_bounded_time(
            memory in proptest::collection::vec((0u64..64, any::<[u64; 4]>()), 8), versions in any::<[u64; 8]>(), wild in any::<bool>()
        ) {
            let slots = slots(8);
            for (i, (version, words)) in memory.iter().enumerate() {
                slots[i].version.store(if wild { versions[i] } else { *version }, Ordering::Relaxed);
                for (place, word) in slots[i].words.iter().zip(words.iter().cycle()) {
                    place.store(*word, Ordering::Relaxed);
                }
            }
            let mut reader = ScoreReader::new(&*slots);
            for _ in 0..100 {
                if let Some(scores) = reader.read() {
                    prop_assert!(scores.top().iter().all(|t| t.log_mass.to_f32() <= 0.0));
                }
            }
        }
    }
}
