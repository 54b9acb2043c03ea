//! Record of a cache entry: its hash, its place among its relatives, its first shard copy, and its place in the eviction order.

use super::shard_copy::ShardCopy;
use crate::api::NONE;
use crate::config::IDS_MAX;
use crate::lists::{Links, linked};
use serde::{Deserialize, Serialize};

/// List that a cache entry is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Listed {
    /// The list of free records.
    Free,
    /// None: sequences refer to at least one of its shard copies.
    Active,
    /// No sequence refers to it, and at least one shard copy has a block.
    Idle,
    /// All its shard copies are only on NVMe.
    IndexOnly,
}

/// One published cache entry.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct CacheEntry {
    links: Links,
    hash: [u32; 4],
    parent: u32,
    /// Newest child; children are chained by `sibling` and `elder`. The highest bits hold the highest bits of the `order` queue.
    child: u32,
    /// Next newer child of the same parent. The highest bits hold the rest of the `order` state.
    sibling: u32,
    /// Next older child of the same parent. The highest bits hold most of the `order` queue.
    elder: u32,
    /// First of its shard copies, and in the two highest bits its list.
    head: u32,
}

const _: () = assert!(size_of::<CacheEntry>() == 44);

const LISTED: u32 = 30;
/// Bits of an id in `sibling` and `elder`; all ones means none.
pub(super) const ID_BITS: u32 = 29;
pub(super) const NO_ID: u32 = (1 << ID_BITS) - 1;
/// Highest bits of `sibling`: the fourth bit of the queue, whether a use is in progress, whether a use was counted.
const QUEUE_FOURTH: u32 = 1 << ID_BITS;
const IN_USE: u32 = 2 << ID_BITS;
const KNOWN: u32 = 4 << ID_BITS;

fn id_of(packed: u32) -> u32 {
    if packed & NO_ID == NO_ID { NONE } else { packed & NO_ID }
}

fn with_id(packed: u32, id: u32) -> u32 {
    packed & !NO_ID | id & NO_ID
}

impl Default for CacheEntry {
    fn default() -> Self {
        CacheEntry {
            links: Links::default(),
            hash: [0; 4],
            parent: NONE,
            child: NO_ID,
            sibling: NO_ID,
            elder: NO_ID,
            head: ShardCopy::End.pack(),
        }
    }
}

linked!(CacheEntry.links);

impl CacheEntry {
    pub fn new(hash: u128, parent: u32) -> CacheEntry {
        CacheEntry { hash: words_of(hash), parent, ..CacheEntry::default() }
    }

    pub fn words(&self) -> [u32; 4] {
        self.hash
    }

    pub fn parent(&self) -> u32 {
        self.parent
    }

    pub fn hash(&self) -> u128 {
        self.hash.iter().rev().fold(0, |hash, &word| hash << 32 | u128::from(word))
    }

    /// Return the first of its shard copies.
    pub fn head(&self) -> ShardCopy {
        ShardCopy::unpack(self.head)
    }

    pub fn set_head(&mut self, copy: ShardCopy) {
        self.head = self.head >> LISTED << LISTED | copy.pack();
    }

    pub fn listed(&self) -> Listed {
        match self.head >> LISTED {
            0 => Listed::Free,
            1 => Listed::Active,
            2 => Listed::Idle,
            _ => Listed::IndexOnly,
        }
    }

    pub fn set_listed(&mut self, listed: Listed) {
        self.head = (listed as u32) << LISTED | self.head & ((1 << LISTED) - 1);
    }

    /// Return its newest child.
    pub fn child(&self) -> u32 {
        id_of(self.child)
    }

    pub fn set_child(&mut self, c: u32) {
        self.child = with_id(self.child, c);
    }

    /// Return the next older entry with the same parent.
    pub fn elder(&self) -> u32 {
        id_of(self.elder)
    }

    pub fn sibling(&self) -> u32 {
        id_of(self.sibling)
    }

    pub fn set_elder(&mut self, c: u32) {
        self.elder = with_id(self.elder, c);
    }

    pub fn set_sibling(&mut self, c: u32) {
        self.sibling = with_id(self.sibling, c);
    }

    /// Return the `order` queue that it is in while unreferenced.
    pub fn queue(&self) -> u8 {
        let fourth = u8::from(self.sibling & QUEUE_FOURTH != 0) << 3;
        (self.elder >> ID_BITS) as u8 | fourth | ((self.child >> ID_BITS) as u8) << 4
    }

    /// Return its queue, unless no use of it was counted.
    pub fn known_queue(&self) -> Option<u8> {
        (self.sibling & KNOWN != 0).then(|| self.queue())
    }

    pub fn begin_use(&mut self) {
        self.sibling |= IN_USE;
    }

    pub fn is_in_use(&self) -> bool {
        self.sibling & IN_USE != 0
    }

    /// Count the use in progress: it belongs to `queue` now.
    pub fn end_use(&mut self, queue: u8) {
        self.elder = self.elder & NO_ID | u32::from(queue & 7) << ID_BITS;
        let fourth = if queue & 8 != 0 { QUEUE_FOURTH } else { 0 };
        self.sibling = self.sibling & !(QUEUE_FOURTH | IN_USE) | KNOWN | fourth;
        self.child = self.child & NO_ID | u32::from(queue >> 4) << ID_BITS;
    }
}

/// Return the words of a hash, least significant first.
pub(super) fn words_of(hash: u128) -> [u32; 4] {
    [0, 32, 64, 96].map(|shift| (hash >> shift) as u32)
}

const _: () = assert!(IDS_MAX <= 1 << LISTED);
