//! The session's mirror of its sequences: block ids and lengths. The channel that owns a sequence writes it; lanes read it
//! without locks.
//!
//! A sequence in a lane's step may only grow. For any other change the owner must first close it to lanes
//! ([`SeqTable::close`]).

use super::zeroed;
use kvtide_wire::{
    status::Status,
    sync::{AtomicU32, AtomicU64, Ordering},
};

/// State of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeqState {
    /// The slot is free.
    Free,
    /// In use.
    Live,
    /// A page of it exists nowhere any more. The sequence can only be dropped.
    Lost,
}

/// `lane` word: in no step.
const OPEN: u32 = 0;
/// `lane` word: closed, no step may take it.
const CLOSED: u32 = u32::MAX;

#[derive(Default)]
struct Slot {
    /// 0 free, 1 live, 2 lost.
    state: AtomicU32,
    /// Lane + 1 of the step that it is in, [`OPEN`] or [`CLOSED`].
    lane: AtomicU32,
    /// Number of blocks.
    len: AtomicU32,
    /// Counts all changes except growth.
    version: AtomicU32,
    /// Committed tokens.
    committed: AtomicU64,
    /// Encoded reading contract, opaque here; 0 at first.
    contract: AtomicU64,
}

/// The sequences of one session.
pub struct SeqTable {
    slots: Box<[Slot]>,
    blocks: Box<[AtomicU32]>,
    blocks_max: u32,
}

impl SeqTable {
    /// Create `seqs_max` free slots of at most `seq_blocks_max` blocks each; `None` if the system has no memory for them.
    #[must_use]
    pub fn new(seqs_max: u32, seq_blocks_max: u32) -> Option<SeqTable> {
        let count = (seqs_max as usize).checked_mul(seq_blocks_max as usize)?;
        let blocks = zeroed::words(count)?;
        Some(SeqTable { slots: (0..seqs_max).map(|_| Slot::default()).collect(), blocks, blocks_max: seq_blocks_max })
    }

    /// Return the number of slots.
    #[must_use]
    pub fn seqs_max(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Return the maximum number of blocks of a sequence.
    #[must_use]
    pub fn seq_blocks_max(&self) -> u32 {
        self.blocks_max
    }

    fn slot(&self, seq: u32) -> Option<&Slot> {
        self.slots.get(seq as usize)
    }

    /// Return the state of a slot; free for a slot out of range.
    #[must_use]
    pub fn state(&self, seq: u32) -> SeqState {
        match self.slot(seq).map_or(0, |slot| slot.state.load(Ordering::Acquire)) {
            1 => SeqState::Live,
            2 => SeqState::Lost,
            _ => SeqState::Free,
        }
    }

    /// Return the number of blocks of a sequence.
    #[must_use]
    pub fn len(&self, seq: u32) -> u32 {
        self.slot(seq).map_or(0, |slot| slot.len.load(Ordering::Acquire)) // pairs with `push`
    }

    /// Report whether a sequence has no blocks.
    #[must_use]
    pub fn is_empty(&self, seq: u32) -> bool {
        self.len(seq) == 0
    }

    /// Return the committed tokens of a sequence.
    #[must_use]
    pub fn committed(&self, seq: u32) -> u64 {
        self.slot(seq).map_or(0, |slot| slot.committed.load(Ordering::Acquire))
    }

    /// Return the block at an index of a sequence.
    #[must_use]
    pub fn block(&self, seq: u32, index: u32) -> Option<u32> {
        (index < self.len(seq)).then(|| self.place(seq, index).load(Ordering::Relaxed))
    }

    /// Return all block ids of a sequence.
    #[must_use]
    pub fn block_ids(&self, seq: u32) -> Vec<u32> {
        (0..self.len(seq)).filter_map(|index| self.block(seq, index)).collect()
    }

    fn place(&self, seq: u32, index: u32) -> &AtomicU32 {
        &self.blocks[seq as usize * self.blocks_max as usize + index as usize]
    }

    /// Return the change counter of a sequence. It counts all changes except growth.
    #[must_use]
    pub fn version(&self, seq: u32) -> u32 {
        self.slot(seq).map_or(0, |slot| slot.version.load(Ordering::Acquire))
    }

    /// Owner: create an empty sequence in a free slot. Return false if the slot is not free.
    pub fn create(&self, seq: u32) -> bool {
        let Some(slot) = self.slot(seq).filter(|slot| slot.state.load(Ordering::Relaxed) == 0) else { return false };
        slot.len.store(0, Ordering::Relaxed);
        slot.committed.store(0, Ordering::Relaxed);
        slot.contract.store(0, Ordering::Relaxed);
        slot.version.fetch_add(1, Ordering::Relaxed);
        slot.lane.store(OPEN, Ordering::Relaxed);
        slot.state.store(1, Ordering::Release);
        true
    }

    /// Owner, sequence closed: free the slot.
    pub fn free(&self, seq: u32) {
        if let Some(slot) = self.slot(seq) {
            slot.len.store(0, Ordering::Relaxed);
            slot.version.fetch_add(1, Ordering::Relaxed);
            slot.state.store(0, Ordering::Release);
        }
    }

    /// Mark a live sequence as lost.
    pub fn lose(&self, seq: u32) {
        if let Some(slot) = self.slot(seq) {
            slot.state.store(2, Ordering::Release);
        }
    }

    /// Owner: append a block. Return false if the sequence is full.
    pub fn push(&self, seq: u32, block: u32) -> bool {
        let Some(slot) = self.slot(seq) else { return false };
        let len = slot.len.load(Ordering::Relaxed);
        if len >= self.blocks_max {
            return false;
        }
        self.place(seq, len).store(block, Ordering::Relaxed);
        slot.len.store(len + 1, Ordering::Release); // pairs with `len`
        true
    }

    /// Owner: set the committed length.
    pub fn commit(&self, seq: u32, tokens: u64) {
        if let Some(slot) = self.slot(seq) {
            slot.committed.store(tokens, Ordering::Release);
        }
    }

    /// Owner: set how a sequence is read from its next step on.
    pub fn set_contract(&self, seq: u32, word: u64) {
        if let Some(slot) = self.slot(seq) {
            slot.contract.store(word, Ordering::Relaxed);
        }
    }

    /// Return how a sequence is read.
    #[must_use]
    pub fn contract(&self, seq: u32) -> u64 {
        self.slot(seq).map_or(0, |slot| slot.contract.load(Ordering::Relaxed))
    }

    /// Owner, sequence closed: keep only the first `len` blocks.
    pub fn cut(&self, seq: u32, len: u32) {
        if let Some(slot) = self.slot(seq) {
            slot.version.fetch_add(1, Ordering::Relaxed);
            slot.len.store(len.min(slot.len.load(Ordering::Relaxed)), Ordering::Release);
        }
    }

    /// Owner: close a sequence, so that no lane can take it into a step.
    ///
    /// # Errors
    /// `State`: it is in a lane's step, or already closed. `NotFound`: no such slot.
    pub fn close(&self, seq: u32) -> Result<(), Status> {
        let slot = self.slot(seq).ok_or(Status::NotFound)?;
        let swap = slot.lane.compare_exchange(OPEN, CLOSED, Ordering::Acquire, Ordering::Relaxed);
        swap.map(|_| ()).map_err(|_| Status::State)
    }

    /// Owner: open a closed sequence to lanes again.
    pub fn open(&self, seq: u32) {
        if let Some(slot) = self.slot(seq) {
            slot.lane.store(OPEN, Ordering::Release);
        }
    }

    /// Lane: take a sequence into its step.
    ///
    /// # Errors
    /// `NotFound`, `Lost`; `State`: it is in another step, closed or parked.
    pub fn enter(&self, seq: u32, lane: u16) -> Result<(), Status> {
        match self.state(seq) {
            SeqState::Live => {}
            SeqState::Lost => return Err(Status::Lost),
            SeqState::Free => return Err(Status::NotFound),
        }
        let slot = self.slot(seq).ok_or(Status::NotFound)?;
        let ours = u32::from(lane) + 1;
        let swap = slot.lane.compare_exchange(OPEN, ours, Ordering::Acquire, Ordering::Relaxed);
        swap.map(|_| ()).map_err(|_| Status::State)
    }

    /// Report whether a lane can take a sequence into its step.
    #[must_use]
    pub fn is_open(&self, seq: u32) -> bool {
        self.slot(seq).is_some_and(|slot| slot.lane.load(Ordering::Acquire) == OPEN)
    }

    /// Report whether a sequence is in a lane's step.
    #[must_use]
    pub fn in_step(&self, seq: u32) -> bool {
        let lane = self.slot(seq).map_or(OPEN, |slot| slot.lane.load(Ordering::Acquire));
        lane != OPEN && lane != CLOSED
    }

    /// Lane: release a sequence of its step.
    pub fn leave(&self, seq: u32, lane: u16) {
        if let Some(slot) = self.slot(seq) {
            let ours = u32::from(lane) + 1;
            // If the exchange fails, the sequence is not in this lane's step and nothing must change.
            let _ = slot.lane.compare_exchange(ours, OPEN, Ordering::Release, Ordering::Relaxed);
        }
    }
}
