//! Paging: engines that read KV in tier 0. What moves between tier 0 and host, and when.
//!
//! One file for each request: `reserve`, `commit`, `fork` (with truncate), `park` (with resume), `attach_prefix`, `publish`, `acquire` (with
//! release and advice), `declare`, `resize`, `guarantee`, `fault`; steps are in `scan`.
//!
//! - `walk`, `scan`, `read_ahead`: the walk of a lane through the pages of its steps
//! - `pick`, `mapped`: the frame for a page
//! - `clean`, `evict`, `reclaim`: write-back from tier 0, and frames that become free
//! - `done`, `ops`, `sequences`: ends of jobs; phases of requests; creation of sequences
//! - `prefetch`: prefetch by attention; `scheduled`: prefetch for parked sequences with a due time
//! - `pager`: what it knows of a session
//!
//! It promises that a job waits for a lane only if that lane does not wait for the job, and that of the pages that a step needs as many stay in
//! tier 0 as fit. It does not know the block API.

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
mod walk;

use ops::Next;
pub(crate) use pager::Pager;
use pick::CHANCES;
use prefetch::burst_frames;
pub(crate) use prefetch::{Prediction, Prefetch, Scores};
pub(crate) use publish::PublishArgs;
use scan::WALK_MAX;
pub(crate) use scheduled::ScheduledPrefetches;
use walk::{Cursor, Walk};

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
