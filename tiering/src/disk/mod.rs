//! NVMe: what is written there, and admission of what asks for room.

mod admit;
mod attach;
mod give;
mod gone;
mod ids;
mod index_only;
mod io;
mod persist;
mod publish;
mod records;
mod restore;

pub(crate) use ids::Admit;
pub(crate) use io::IO_PAGES_MAX;
pub(crate) use persist::Why;
pub(crate) use publish::HASHES_MAX;

use crate::index::PrefixIndex;
use crate::layer::stands_on;
use serde::{Deserialize, Serialize};

/// NVMe: what is written there, and admission of what asks for room.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DiskTier {
    below: PrefixIndex,
    /// Block ids that a request still lacks while it waits for blocks to be recorded; 0 if no request waits.
    ids_wanted: u32,
    /// There was a read by hash: where no relay attaches, readers are not searched for one.
    pub(crate) has_read_by_hash: bool,
}

stands_on!(DiskTier, PrefixIndex);

impl DiskTier {
    pub fn new(below: PrefixIndex) -> DiskTier {
        DiskTier { below, ids_wanted: 0, has_read_by_hash: false }
    }
}
