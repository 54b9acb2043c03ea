//! A shard copy of a cache entry. It has a block, or it is index-only: only on NVMe, with a slot.

use crate::api::NONE;
use crate::config::IDS_MAX;
use serde::{Deserialize, Serialize};

const INDEX_ONLY: u32 = IDS_MAX;
const END: u32 = 2 * IDS_MAX - 1;

/// One shard copy, or the end of a cache entry's chain of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ShardCopy {
    End,
    /// A block.
    Block(u32),
    /// A slot on NVMe.
    IndexOnly(u32),
}

impl ShardCopy {
    /// Return its 30-bit encoding.
    pub fn pack(self) -> u32 {
        match self {
            ShardCopy::End => END,
            ShardCopy::Block(b) => b,
            ShardCopy::IndexOnly(at) => INDEX_ONLY | at,
        }
    }

    pub fn unpack(bits: u32) -> ShardCopy {
        match bits & END {
            END => ShardCopy::End,
            bits if bits & INDEX_ONLY == 0 => ShardCopy::Block(bits),
            bits => ShardCopy::IndexOnly(bits & !INDEX_ONLY),
        }
    }

    /// Return its block, if it has one.
    pub fn block(self) -> Option<u32> {
        if let ShardCopy::Block(b) = self { Some(b) } else { None }
    }

    /// Return its slot, if it has no block.
    pub fn slot(self) -> Option<u32> {
        if let ShardCopy::IndexOnly(at) = self { Some(at) } else { None }
    }
}

/// A packed [`ShardCopy`], as other tables store it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Link(u32);

impl Default for Link {
    fn default() -> Self {
        Link(END)
    }
}

impl Link {
    pub fn to(copy: ShardCopy) -> Link {
        Link(copy.pack())
    }

    pub fn get(self) -> ShardCopy {
        ShardCopy::unpack(self.0)
    }
}

const _: () = assert!(END < NONE);
