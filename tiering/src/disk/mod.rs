//! NVMe: which blocks are written, recorded and admitted, and which entries give their blocks or slots up.
//!
//! - `publish`, `attach`: a block becomes findable, or is used again; its persistence starts
//! - `admit`: the decision to write a block, within the write budget
//! - `persist`: the way of a block to a valid record
//! - `records`: log requests; `io`: transfers
//! - `give`: slots for blocks; `ids`: block ids for requests
//! - `index_only`: entries without a block; `restore`: those of earlier runs
//! - `gone`: disks that go out of service
//!
//! It promises that a record is valid only if those of all ancestors are, that a slot is written again only after the erasure of its record,
//! and that a failed transfer changes no page. It takes host frames from nobody.
//!
//! Invariants: a block has at most one slot; a page that is on disk is in the slot of its block; a block that is to be written or recorded is
//! in the list of that state.

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
    has_read_by_hash: bool,
}

stands_on!(DiskTier, PrefixIndex);

impl DiskTier {
    pub fn new(below: PrefixIndex) -> DiskTier {
        DiskTier { below, ids_wanted: 0, has_read_by_hash: false }
    }

    /// A read by hash began: from now on readers are searched for one.
    pub fn begin_read_by_hash(&mut self) {
        self.has_read_by_hash = true;
    }
}
