//! A lane: which steps are announced, and how far the planner has walked through what they read.

use crate::api::{NONE, SeqId};
use crate::lists::List;
use serde::{Deserialize, Serialize};

/// A step and the sequences that it reads.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Batch {
    pub step: u64,
    pub seqs: Vec<SeqId>,
}

/// Planner's place in a step: the next page to look at, in order of use.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Cursor {
    pub step: u64,
    pub plane: u16,
    /// Position in the batch.
    pub pos: u32,
    /// Block index, or NONE: at the first that the sequence needs.
    pub index: u32,
    /// There is something left to walk.
    pub running: bool,
}

impl Cursor {
    /// What comes first is less.
    pub fn order(&self) -> (u64, u16, u32, u32) {
        (self.step, self.plane, self.pos, self.index.wrapping_add(1))
    }
}

/// One lane of a session.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Lane {
    /// Announced and not ended, oldest first.
    pub active: [u64; 2],
    pub active_len: u8,
    /// What the cursor walks.
    pub batch: Batch,
    /// Announced, not reached by the cursor.
    pub next: Batch,
    pub has_next: bool,
    pub cursor: Cursor,
    /// The same of the walk that has pages read from disk, ahead of the one above.
    pub ahead: Cursor,
    /// The session's step clock at its three newest announcements, newest first. A page that was touched since the last of
    /// them is needed: the walk may have touched it a step ahead.
    pub epochs: [u32; 3],
    /// The same by the space's step clock, which host frames are stamped with.
    pub host_epochs: [u32; 3],
    /// Its plan counts when others look for frames.
    pub live: bool,
    /// Something that the walk had found resident for the step that is expected was evicted since: it walks again.
    pub robbed: bool,
    /// Frame whose page it faulted for last and may not have consumed.
    pub hold: u32,
    /// Frames that stream for it, per class, in order of use.
    pub rings: Vec<List>,
}

impl Lane {
    pub fn new(seqs_max: usize, classes: usize) -> Lane {
        let batch = || Batch { step: 0, seqs: Vec::with_capacity(seqs_max) };
        Lane { batch: batch(), next: batch(), hold: NONE, rings: vec![List::default(); classes], ..Lane::default() }
    }

    /// Whether a step is announced and not ended.
    pub fn is_active(&self, step: u64) -> bool {
        self.active[..usize::from(self.active_len)].contains(&step)
    }

    /// The newest announced step that has not ended.
    pub fn newest(&self) -> Option<u64> {
        self.active_len.checked_sub(1).map(|i| self.active[usize::from(i)])
    }

    /// Starts the walk through `batch`.
    pub fn restart(&mut self) {
        self.cursor = Cursor { step: self.batch.step, plane: 0, pos: 0, index: NONE, running: true };
        self.ahead = self.cursor;
    }
}
