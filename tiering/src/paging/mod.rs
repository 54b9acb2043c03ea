//! Paging: engines that read KV in tier 0.

mod acquire;
mod attach_prefix;
mod clean;
mod commit;
mod declare;
mod done;
mod evict;
mod fault;
mod fork;
mod guarantee;
mod mapped;
mod ops;
mod pager;
mod park;
mod pick;
mod prefetch;
mod publish;
mod read_ahead;
mod reclaim;
mod reserve;
mod resize;
mod scan;
mod scheduled;
mod sequences;

use ops::Next;
pub(crate) use pager::Pager;
use pick::CHANCES;
use prefetch::burst_frames;
pub(crate) use prefetch::{Prediction, Prefetch, Scores};
pub(crate) use publish::PublishArgs;
use scan::WALK_MAX;
pub(crate) use scheduled::ScheduledPrefetches;

use crate::host::HostTier;
use crate::layer::stands_on;
use crate::sessions::PerSession;

/// Paging over the cache, for one call.
pub(crate) struct Paging<'a> {
    pub(crate) below: &'a mut HostTier,
    pub(crate) pagers: &'a mut PerSession<Pager>,
    /// State learned from attention. Allocated with the first `approx` sequence.
    pub(crate) prefetch: &'a mut Option<Box<Prefetch>>,
}

stands_on!(Paging<'a>, HostTier);
