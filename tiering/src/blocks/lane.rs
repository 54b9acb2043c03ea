//! A lane: its announced steps, and the planner's progress through the pages that they read.

use crate::api::{NONE, SeqId};
use crate::lists::List;
use serde::{Deserialize, Serialize};

/// A step and the sequences that it reads.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Batch {
    pub step: u64,
    pub seqs: Vec<SeqId>,
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
    /// Return a sort key in order of use.
    pub fn order(&self) -> (u64, u16, u32, u32) {
        (self.step, self.plane, self.pos, self.index.wrapping_add(1))
    }
}

/// One lane of a session.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Lane {
    /// Steps announced and not ended, oldest first.
    pub active: [u64; 2],
    pub active_len: u8,
    /// Batch that the cursor walks through.
    pub batch: Batch,
    /// Batch announced and not reached by the cursor.
    pub next: Batch,
    pub has_next: bool,
    pub cursor: Cursor,
    /// Position of the walk that reads pages ahead from disk; it is ahead of `cursor`.
    pub read_ahead: Cursor,
    /// The session's step clock at its three latest announcements, latest first. A page touched since the last of them is needed,
    /// because the walk may have touched it one step ahead.
    pub epochs: [u32; 3],
    /// The same for the space's step clock, with which host frames are stamped.
    pub host_epochs: [u32; 3],
    /// The lane's plan counts when other requests search for frames.
    pub live: bool,
    /// Number of times that the announced sequences changed. Uses in steps from `plan_from` on are void if they were planned before the
    /// last change.
    pub plan: u32,
    pub plan_from: u64,
    /// A page that the walk found resident for the expected step was evicted since: the lane walks again.
    pub plan_overtaken: bool,
    /// Frame of the page of the lane's last fault, which the lane may not have used yet.
    pub fault_frame: u32,
    /// Frames that stream for the lane, per class, in order of use.
    pub stream_lists: Vec<List>,
}

impl Lane {
    pub fn new(seqs_max: usize, classes: usize) -> Lane {
        let batch = || Batch { step: 0, seqs: Vec::with_capacity(seqs_max) };
        Lane {
            batch: batch(),
            next: batch(),
            fault_frame: NONE,
            stream_lists: vec![List::default(); classes],
            ..Lane::default()
        }
    }

    /// Return whether a step is announced and not ended.
    pub fn is_active(&self, step: u64) -> bool {
        self.active[..usize::from(self.active_len)].contains(&step)
    }

    /// Return the latest announced step that has not ended.
    pub fn newest(&self) -> Option<u64> {
        self.active_len.checked_sub(1).map(|i| self.active[usize::from(i)])
    }

    /// Start the walk through `batch`.
    pub fn restart(&mut self) {
        self.cursor = Cursor { step: self.batch.step, plane: 0, pos: 0, index: NONE, running: true };
        self.read_ahead = self.cursor;
    }
}
