//! Host memory: which page gets a frame, and what leaves for it.
//!
//! - `admit`: whether new pages have a place at any time
//! - `take`: a frame for a page, and the victim if none is free
//! - `read_in`: reads from NVMe; `write_back`: writes to it; `copy_out`: stores from tier 0
//! - `unmap`: mapped frames that give their host frame up
//! - `give_back`: return of memory for another space
//! - `lost`: what a lost session leaves behind
//!
//! It promises that what was admitted finds a frame, that a page is evicted only if another copy of it exists or its block leaves the cache,
//! and that a frame which a lost process may access is not used again before it has exited.
//!
//! Invariants: the frames in quarantine are those of `Lost` and of late copies.

mod admit;
mod copy_out;
mod give_back;
mod lost;
mod read_in;
mod take;
mod unmap;
mod write_back;

pub(crate) use lost::Lost;
pub(crate) use read_in::{Fetch, Take, Want};
pub(crate) use take::For;
pub(crate) use unmap::UNMAP_BATCH;

use crate::disk::DiskTier;
use crate::layer::stands_on;
use crate::sessions::PerSession;
use serde::{Deserialize, Serialize};

/// Host memory: which page gets a frame, and what leaves for it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HostTier {
    below: DiskTier,
    lost: PerSession<Lost>,
}

stands_on!(HostTier, DiskTier);

impl HostTier {
    pub fn new(below: DiskTier) -> HostTier {
        let lost = PerSession::new(below.cfg().limits.sessions_max);
        HostTier { below, lost }
    }

    /// Return what is left of lost sessions.
    pub fn lost(&self) -> &PerSession<Lost> {
        &self.lost
    }
}
