//! A lane's walk: how far the planner got through the pages that the lane's steps read.

use crate::api::{NONE, SeqId};
use serde::{Deserialize, Serialize};

/// A step and the sequences that it reads.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Batch {
    pub step: u64,
    pub seqs: Vec<SeqId>,
}

impl Batch {
    fn set(&mut self, step: u64, seqs: &[SeqId]) {
        self.step = step;
        self.seqs.clear();
        self.seqs.extend_from_slice(seqs);
    }
}

/// The planner's position in a step: the next page to check, in order of use.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Cursor {
    pub step: u64,
    pub plane: u16,
    /// Position in the batch.
    pub pos: u32,
    /// Block index; `NONE`: the first that the sequence needs.
    pub index: u32,
    /// The walk has not ended.
    pub running: bool,
}

impl Cursor {
    /// Return the position of a step's first page.
    fn at(step: u64) -> Cursor {
        Cursor { step, plane: 0, pos: 0, index: NONE, running: true }
    }

    /// Return a sort key in order of use.
    pub fn order(&self) -> (u64, u16, u32, u32) {
        (self.step, self.plane, self.pos, self.index.wrapping_add(1))
    }
}

/// The walk of one lane.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Walk {
    /// Batch that the cursor walks through.
    pub batch: Batch,
    /// Batch announced and not reached by the cursor.
    pub next: Batch,
    pub has_next: bool,
    pub cursor: Cursor,
    /// Position of the walk that reads pages ahead from disk; it is ahead of `cursor`.
    pub read_ahead: Cursor,
}

impl Walk {
    pub fn new(seqs_max: usize) -> Walk {
        let batch = || Batch { step: 0, seqs: Vec::with_capacity(seqs_max) };
        Walk {
            batch: batch(),
            next: batch(),
            has_next: false,
            cursor: Cursor::default(),
            read_ahead: Cursor::default(),
        }
    }

    pub fn bytes(&self) -> usize {
        (self.batch.seqs.capacity() + self.next.seqs.capacity()) * size_of::<SeqId>()
    }

    /// Return the step after the announced ones that the cursor has reached.
    pub fn expected(&self) -> Option<u64> {
        (self.cursor.step > self.batch.step).then_some(self.cursor.step)
    }

    /// Walk through `step` after the batch that the cursor walks through now.
    pub fn queue(&mut self, step: u64, seqs: &[SeqId]) {
        self.next.set(step, seqs);
        self.has_next = true;
    }

    /// Walk through `step` from its first page.
    pub fn begin(&mut self, step: u64, seqs: &[SeqId]) {
        self.batch.set(step, seqs);
        self.has_next = false;
        self.restart();
    }

    /// Start the walk through `batch`.
    fn restart(&mut self) {
        self.cursor = Cursor::at(self.batch.step);
        self.read_ahead = self.cursor;
    }

    /// Advance after a whole step to the step announced after it, or to the one expected after it.
    pub fn advance(&mut self) {
        if self.has_next {
            std::mem::swap(&mut self.batch, &mut self.next);
            self.has_next = false;
            self.restart();
        } else if self.cursor.step == self.batch.step && !self.batch.seqs.is_empty() {
            self.cursor = Cursor::at(self.batch.step + 1);
        } else {
            self.cursor.running = false;
        }
    }

    pub fn stop(&mut self) {
        self.has_next = false;
        self.cursor.running = false;
    }
}
