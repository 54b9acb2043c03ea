//! Host memory: which page gets a frame, and what leaves for it.

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
    pub(crate) lost: PerSession<Lost>,
}

stands_on!(HostTier, DiskTier);

impl HostTier {
    pub fn new(below: DiskTier) -> HostTier {
        let lost = PerSession::new(below.cfg.limits.sessions_max);
        HostTier { below, lost }
    }
}
