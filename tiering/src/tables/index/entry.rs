//! Record of a cache entry: its hash, its place among its relatives, its first shard copy, and its place in the eviction order.

use super::evict::Used;
use super::shard_copy::ShardCopy;
use super::steps;
use crate::api::NONE;
use crate::config::IDS_MAX;
use crate::lists::{Links, linked};
use serde::{Deserialize, Serialize};

/// State of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum State {
    Free,
    /// Sequences refer to at least one of its shard copies.
    Active,
    /// No sequence refers to it.
    Idle,
}

/// One published cache entry.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct CacheEntry {
    links: Links,
    hash: [u32; 4],
    /// The highest bits hold `SLOT` and `HELD`.
    parent: u32,
    /// Newest child; children are chained by `sibling` and `elder`. The highest bits hold the highest bits of the `order` queue.
    child: u32,
    /// Next newer child of the same parent. The highest bits hold the rest of the `order` state.
    sibling: u32,
    /// Next older child of the same parent. The highest bits hold most of the `order` queue.
    elder: u32,
    /// First of its shard copies, and in the two highest bits its state.
    head: u32,
    /// Lowest bits of the time of its last use, on the clock of `order`. After 2^32 uses it counts as younger than it is.
    used: u32,
}

const _: () = assert!(size_of::<CacheEntry>() == 48);

const STATE: u32 = 30;
/// Bits of an id in `sibling` and `elder`; all ones means none.
pub(super) const ID_BITS: u32 = 29;
pub(super) const NO_ID: u32 = (1 << ID_BITS) - 1;
/// Highest bits of `sibling`: the fourth bit of the queue, whether a use is in progress, whether a use was counted.
const QUEUE_FOURTH: u32 = 1 << ID_BITS;
const IN_USE: u32 = 2 << ID_BITS;
const KNOWN: u32 = 4 << ID_BITS;
/// Highest bits of `parent`: whether a copy has a slot, whether a store in progress adds children to it.
const SLOT: u32 = 1 << ID_BITS;
const HELD: u32 = 2 << ID_BITS;

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
            parent: NO_ID,
            child: NO_ID,
            sibling: NO_ID,
            elder: NO_ID,
            head: ShardCopy::End.pack(),
            used: 0,
        }
    }
}

linked!(CacheEntry.links);

impl Used for CacheEntry {
    fn used(&self, now: u64) -> u64 {
        now.saturating_sub((now as u32).wrapping_sub(self.used).into())
    }
}

impl CacheEntry {
    pub fn new(hash: u128, parent: u32) -> CacheEntry {
        CacheEntry { hash: words_of(hash), parent: parent & NO_ID, ..CacheEntry::default() }
    }

    pub fn words(&self) -> [u32; 4] {
        self.hash
    }

    pub fn parent(&self) -> u32 {
        steps::count();
        id_of(self.parent)
    }

    pub fn hash(&self) -> u128 {
        self.hash.iter().rev().fold(0, |hash, &word| hash << 32 | u128::from(word))
    }

    /// Return the first of its shard copies.
    pub fn head(&self) -> ShardCopy {
        ShardCopy::unpack(self.head)
    }

    pub fn set_head(&mut self, copy: ShardCopy) {
        self.head = self.head >> STATE << STATE | copy.pack();
    }

    pub fn state(&self) -> State {
        match self.head >> STATE {
            0 => State::Free,
            1 => State::Active,
            _ => State::Idle,
        }
    }

    pub fn set_state(&mut self, state: State) {
        self.head = (state as u32) << STATE | self.head & ((1 << STATE) - 1);
    }

    /// Return whether one of its shard copies has a slot.
    pub fn has_slot(&self) -> bool {
        self.parent & SLOT != 0
    }

    pub fn set_slot(&mut self, has: bool) {
        self.parent = self.parent & !SLOT | if has { SLOT } else { 0 };
    }

    /// Return whether a store in progress adds children to it.
    pub fn is_held(&self) -> bool {
        self.parent & HELD != 0
    }

    pub fn set_held(&mut self, held: bool) {
        self.parent = self.parent & !HELD | if held { HELD } else { 0 };
    }

    pub fn set_used(&mut self, now: u64) {
        self.used = now as u32;
    }

    /// Return its newest child.
    pub fn child(&self) -> u32 {
        steps::count();
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

const _: () = assert!(IDS_MAX <= 1 << STATE);
