//! A lane: its announced steps, and what they use.

use crate::api::NONE;
use crate::lists::List;
use serde::{Deserialize, Serialize};

/// One lane of a session.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Lane {
    /// Steps announced and not ended, oldest first.
    pub active: [u64; 2],
    pub active_len: u8,
    /// Step after the announced ones that the lane's walk has found pages for.
    pub expected: Option<u64>,
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
    pub fn new(classes: usize) -> Lane {
        Lane { fault_frame: NONE, stream_lists: vec![List::default(); classes], ..Lane::default() }
    }

    /// Return whether a step is announced and not ended.
    pub fn is_active(&self, step: u64) -> bool {
        self.active[..usize::from(self.active_len)].contains(&step)
    }

    /// Return the latest announced step that has not ended.
    pub fn newest(&self) -> Option<u64> {
        self.active_len.checked_sub(1).map(|i| self.active[usize::from(i)])
    }
}
