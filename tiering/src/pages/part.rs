//! A shard copy of a cache entry. It has a block, or it is index-only: only on NVMe, with a slot.

use crate::api::NONE;
use serde::{Deserialize, Serialize};

/// Ids of blocks, slots and cache entries are below this.
pub(crate) const IDS_MAX: u32 = 1 << 29;

const INDEX_ONLY: u32 = IDS_MAX;
const END: u32 = 2 * IDS_MAX - 1;

/// One shard copy, or the end of a cache entry's chain of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Part {
    End,
    /// A block.
    Block(u32),
    /// A slot on NVMe.
    IndexOnly(u32),
}

impl Part {
    /// Return its 30-bit encoding.
    pub fn pack(self) -> u32 {
        match self {
            Part::End => END,
            Part::Block(b) => b,
            Part::IndexOnly(at) => INDEX_ONLY | at,
        }
    }

    pub fn unpack(bits: u32) -> Part {
        match bits & END {
            END => Part::End,
            bits if bits & INDEX_ONLY == 0 => Part::Block(bits),
            bits => Part::IndexOnly(bits & !INDEX_ONLY),
        }
    }

    /// Return its block, if it has one.
    pub fn block(self) -> Option<u32> {
        if let Part::Block(b) = self { Some(b) } else { None }
    }

    /// Return its slot, if it has no block.
    pub fn slot(self) -> Option<u32> {
        if let Part::IndexOnly(at) = self { Some(at) } else { None }
    }

    pub fn is_index_only(self) -> bool {
        self.slot().is_some()
    }
}

/// A packed [`Part`], as other tables store it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Link(u32);

impl Default for Link {
    fn default() -> Self {
        Link(END)
    }
}

impl Link {
    pub fn to(part: Part) -> Link {
        Link(part.pack())
    }

    pub fn get(self) -> Part {
        Part::unpack(self.0)
    }
}

const _: () = assert!(END < NONE);
