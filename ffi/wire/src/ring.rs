//! Single-producer single-consumer rings of 64-byte entries between two processes.
//!
//! Rules of ownership:
//!
//! 1. The producer's half (the slots and the tail) lies in memory that only the producer writes; the consumer's half (the head) in
//!    memory that only the consumer writes. Each side may therefore map the other's half read-only.
//! 2. Indices are free-running `u32`; slot = index mod capacity, capacity a power of two. Full: tail − head = capacity.
//! 3. Slots [head, tail) belong to the consumer, the others to the producer.
//! 4. `tail.store(Release)` in [`Producer::push`] pairs with `tail.load(Acquire)` in [`Consumer::pop`]: it hands slots over.
//! 5. `head.store(Release)` in [`Consumer::pop`] pairs with `head.load(Acquire)` in [`Producer::free`]: it hands them back.
//! 6. Each side keeps its own index in private memory and never reads it back, so the peer cannot change it through shared memory.
//!    The peer's index is untrusted; an impossible one is an [`IndexError`], after which the ring is unusable for good.
//! 7. Entries are copied as eight relaxed atomic words. A peer that writes at the wrong time causes a mixed entry, which is
//!    validated like any other, but never undefined behaviour.

use crate::entry::{Completion, ENTRY_BYTES, Job, JobDone, Submission};
use crate::error::IndexError;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use core::marker::PhantomData;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// One ring slot in shared memory.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    /// The entry, little endian.
    pub words: [AtomicU64; 8],
}

/// Start of the indices. It makes `u32` wrap after a few entries of every ring's life, not after weeks in production.
pub const START: u32 = u32::MAX - 4;

/// A free-running index alone on its two cache lines (adjacent-line prefetch loads pairs).
#[repr(C, align(128))]
#[derive(Debug)]
pub struct IndexLine {
    /// The index.
    pub index: AtomicU32,
}

impl IndexLine {
    /// Create an index at [`START`], for rings in private memory (models, tests).
    #[must_use]
    pub fn new() -> IndexLine {
        IndexLine { index: AtomicU32::new(START) }
    }
}

impl Default for IndexLine {
    fn default() -> Self {
        IndexLine::new()
    }
}

impl Slot {
    /// Create an empty slot, for rings in private memory (models, tests).
    #[must_use]
    pub fn new() -> Slot {
        Slot { words: core::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Copy the words out, once.
    pub(crate) fn load(&self) -> [u64; 8] {
        core::array::from_fn(|i| self.words[i].load(Ordering::Relaxed))
    }

    pub(crate) fn store(&self, words: [u64; 8]) {
        for (place, word) in self.words.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
    }
}

impl Default for Slot {
    fn default() -> Self {
        Slot::new()
    }
}

/// Plain data of [`ENTRY_BYTES`] bytes for which all bit patterns are valid.
pub trait Entry: FromBytes + IntoBytes + Immutable + Copy {}
impl Entry for Submission {}
impl Entry for Completion {}
impl Entry for Job {}
impl Entry for JobDone {}

/// Memory of a ring. The slots' length is a power of two and never changes.
pub trait Memory {
    /// Return the producer's slots.
    fn slots(&self) -> &[Slot];
    /// Return the producer's index: the number of entries ever written.
    fn tail(&self) -> &AtomicU32;
    /// Return the consumer's index: the number of entries ever taken.
    fn head(&self) -> &AtomicU32;
}

/// Reason why an entry was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// Every slot still belongs to the consumer.
    #[error("the ring is full")]
    Full,
    /// The consumer's index is impossible.
    #[error(transparent)]
    Broken(#[from] IndexError),
}

/// The writing end; one owner.
#[derive(Debug)]
pub struct Producer<T, M> {
    memory: M,
    tail: u32,
    /// The head as last seen: the ring has at least the free slots that it implies.
    head_seen: u32,
    capacity: u32,
    entry: PhantomData<fn(T)>,
}

/// The reading end; one owner.
#[derive(Debug)]
pub struct Consumer<T, M> {
    memory: M,
    head: u32,
    tail_seen: u32,
    capacity: u32,
    entry: PhantomData<fn() -> T>,
}

fn capacity_of(memory: &impl Memory) -> u32 {
    let slots = memory.slots().len();
    assert!(slots.is_power_of_two() && slots <= 1 << 31, "a ring's slots are a power of two: {slots}");
    slots as u32
}

impl<T: Entry, M: Memory> Producer<T, M> {
    /// Return the writing end of a ring with both indices at [`START`].
    pub fn new(memory: M) -> Self {
        const { assert!(size_of::<T>() == ENTRY_BYTES) };
        let capacity = capacity_of(&memory);
        Producer { memory, tail: START, head_seen: START, capacity, entry: PhantomData }
    }

    /// Return how many entries fit now; read the peer's index only if fewer than `wanted` are known to fit.
    pub fn free(&mut self, wanted: u32) -> Result<u32, IndexError> {
        let known = self.capacity - self.tail.wrapping_sub(self.head_seen);
        if known >= wanted {
            return Ok(known);
        }
        let theirs = self.memory.head().load(Ordering::Acquire); // rule 5
        let (moved, used) = (theirs.wrapping_sub(self.head_seen), self.tail.wrapping_sub(theirs));
        if used > self.capacity || moved > self.tail.wrapping_sub(self.head_seen) {
            return Err(IndexError { what: "head", ours: self.tail, theirs, capacity: self.capacity });
        }
        self.head_seen = theirs;
        Ok(self.capacity - used)
    }

    /// Write one entry and hand it over. Does not wake the consumer (see [`crate::wake`]).
    pub fn push(&mut self, entry: &T) -> Result<(), PushError> {
        if self.free(1)? == 0 {
            return Err(PushError::Full);
        }
        let mut words = [0u64; 8];
        words.as_mut_bytes().copy_from_slice(entry.as_bytes());
        self.memory.slots()[(self.tail & (self.capacity - 1)) as usize].store(words);
        self.tail = self.tail.wrapping_add(1);
        self.memory.tail().store(self.tail, Ordering::Release); // rule 4
        Ok(())
    }

    /// Return the number of slots.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }
}

impl<T: Entry, M: Memory> Consumer<T, M> {
    /// Return the reading end of a ring with both indices at [`START`].
    pub fn new(memory: M) -> Self {
        const { assert!(size_of::<T>() == ENTRY_BYTES) };
        let capacity = capacity_of(&memory);
        Consumer { memory, head: START, tail_seen: START, capacity, entry: PhantomData }
    }

    /// Return how many entries are available; read the peer's index only if none are known.
    pub fn available(&mut self) -> Result<u32, IndexError> {
        let known = self.tail_seen.wrapping_sub(self.head);
        if known > 0 {
            return Ok(known);
        }
        let theirs = self.memory.tail().load(Ordering::Acquire); // rule 4
        let count = theirs.wrapping_sub(self.head);
        if count > self.capacity {
            return Err(IndexError { what: "tail", ours: self.head, theirs, capacity: self.capacity });
        }
        self.tail_seen = theirs;
        Ok(count)
    }

    /// Take one entry, copied once, and hand its slot back. `None`: the ring is empty.
    pub fn pop(&mut self) -> Result<Option<T>, IndexError> {
        if self.available()? == 0 {
            return Ok(None);
        }
        let words = self.memory.slots()[(self.head & (self.capacity - 1)) as usize].load();
        self.head = self.head.wrapping_add(1);
        self.memory.head().store(self.head, Ordering::Release); // rule 5
        Ok(T::read_from_bytes(words.as_bytes()).ok())
    }

    /// Return the number of slots.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }
}
