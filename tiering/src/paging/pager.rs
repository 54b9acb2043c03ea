//! What paging knows of a session.

use super::{Prediction, ScheduledPrefetches, Walk};
use crate::actions::LIST_MAX;
use crate::api::Limits;
use crate::sessions::Pin;
use serde::{Deserialize, Serialize};

/// What paging knows of a session.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pager {
    /// Walk of each lane.
    pub walks: Vec<Walk>,
    /// Acquired ranges.
    pub pins: Vec<Pin>,
    pub scheduled: ScheduledPrefetches,
    /// Number of parked sequences with a due time.
    pub dues: u32,
    /// `approx` sequences and their predictions.
    pub prediction: Prediction,
    /// Time at which refused jobs are sent again; 0: none waits.
    pub again_at: u64,
    /// Time after which frames with a pinned page are requested again.
    pub ask_again_at: u64,
    /// Time after which pages with a refused `Move` are moved again.
    pub move_again_at: u64,
    /// Moves of a failed shrink must be canceled.
    pub moves_left: bool,
    /// Time at which refused `Evict` jobs are sent again.
    pub evict_again_at: u64,
    /// Their last waiting time in microseconds; 0 after an eviction succeeded.
    pub evict_wait_us: u64,
}

impl Pager {
    /// Allocate all memory that it will use.
    pub fn new(limits: &Limits, lanes: u16) -> Pager {
        let seqs_max = (limits.seqs_max as usize).min(LIST_MAX);
        Pager {
            walks: (0..lanes).map(|_| Walk::new(seqs_max)).collect(),
            pins: Vec::with_capacity(limits.requests_max as usize),
            scheduled: ScheduledPrefetches::new(),
            ..Pager::default()
        }
    }

    pub fn bytes(&self) -> usize {
        self.walks.capacity() * size_of::<Walk>()
            + self.walks.iter().map(Walk::bytes).sum::<usize>()
            + self.pins.capacity() * size_of::<Pin>()
            + self.scheduled.bytes()
            + self.prediction.bytes()
    }
}
