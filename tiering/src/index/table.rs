//! Index of published cache entries (`CacheEntry`): hash → entry, its parent and children, and the eviction order of unreferenced
//! entries. The index is closed under ancestors: removing an entry removes its descendants.
//!
//! Records are compact: NVMe may hold many times more entries than there are blocks.

use super::evict::{Order, Priority, Use};
use super::shard_copy::{IDS_MAX, ShardCopy};
use crate::api::NONE;
use crate::api::{Eviction, Retention};
use crate::lists::{Links, List, linked};
use crate::mutants::{self, Mutant};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// List that a cache entry is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Listed {
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
pub(crate) struct CacheEntry {
    links: Links,
    hash: [u32; 4],
    pub parent: u32,
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
const ID_BITS: u32 = 29;
const NO_ID: u32 = (1 << ID_BITS) - 1;
/// Largest probe distance that a table word can hold, in the bits beside the id; greater distances are stored as this one.
const FAR: usize = (1 << (u32::BITS - ID_BITS)) - 1;
/// Highest bits of `sibling`: the fourth bit of the queue, whether a use is in progress, whether a use was counted.
const QUEUE_FOURTH: u32 = 1 << ID_BITS;
const IN_USE: u32 = 2 << ID_BITS;
const KNOWN: u32 = 4 << ID_BITS;

/// Pack a table word for entry `c` at distance `far` from its home position.
fn table_word(c: u32, far: usize) -> u32 {
    (far.min(FAR) as u32) << ID_BITS | (c + 1)
}

/// Return the entry id of a non-empty table word.
fn entry_of(word: u32) -> u32 {
    (word & NO_ID) - 1
}

fn distance(word: u32) -> usize {
    (word >> ID_BITS) as usize
}

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

    fn set_listed(&mut self, listed: Listed) {
        self.head = (listed as u32) << LISTED | self.head & ((1 << LISTED) - 1);
    }

    /// Return its newest child.
    pub fn child(&self) -> u32 {
        id_of(self.child)
    }

    fn set_child(&mut self, c: u32) {
        self.child = with_id(self.child, c);
    }

    /// Return the next older entry with the same parent.
    pub fn elder(&self) -> u32 {
        id_of(self.elder)
    }

    fn sibling(&self) -> u32 {
        id_of(self.sibling)
    }

    fn set_elder(&mut self, c: u32) {
        self.elder = with_id(self.elder, c);
    }

    fn set_sibling(&mut self, c: u32) {
        self.sibling = with_id(self.sibling, c);
    }

    /// Return the `order` queue that it is in while unreferenced.
    fn queue(&self) -> u8 {
        let fourth = u8::from(self.sibling & QUEUE_FOURTH != 0) << 3;
        (self.elder >> ID_BITS) as u8 | fourth | ((self.child >> ID_BITS) as u8) << 4
    }

    fn set_queue(&mut self, queue: u8) {
        self.elder = self.elder & NO_ID | u32::from(queue & 7) << ID_BITS;
        self.sibling = self.sibling & !QUEUE_FOURTH | if queue & 8 != 0 { QUEUE_FOURTH } else { 0 };
        self.child = self.child & NO_ID | u32::from(queue >> 4) << ID_BITS;
    }
}

/// Return the words of a hash, least significant first.
pub(crate) fn words_of(hash: u128) -> [u32; 4] {
    [0, 32, 64, 96].map(|shift| (hash >> shift) as u32)
}

/// Number of shard copies of a cache entry. Stored only in spaces with several shards; otherwise derived from the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopyCounts {
    pub all: u16,
    /// Copies with a block.
    pub with_block: u16,
    /// Copies that sequences refer to.
    pub active: u16,
}

/// Hash table of cache entries: open addressing with linear probing over ids, at most two thirds full.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Index {
    pub recs: Vec<CacheEntry>,
    copies: Vec<CopyCounts>,
    several: bool,
    max: u32,
    /// Id plus one, and in the highest bits the distance from the home position ([`FAR`] stands for this distance or more); 0
    /// means empty. An entry at a distance other than the probe's has another home, so the probe skips it without reading its
    /// record.
    table: Vec<u32>,
    free: List,
    /// Eviction order of the entries that are [`Listed::Idle`] or [`Listed::IndexOnly`].
    pub order: Order,
    /// Entries of pinned prefixes: of how many each is part. They are in no queue of `order`, whatever their [`Listed`].
    pins: BTreeMap<u32, u32>,
    /// The last entries of the pinned prefixes.
    pinned: BTreeSet<u32>,
    /// The entry below which the last leaf to evict was searched, and the parent of that leaf. The next search starts there.
    descent: (u32, u32),
}

impl Index {
    /// Create an index for at most `max` entries of `tokens` tokens each. Memory is touched as entries are added.
    pub fn new(max: u32, shards: u16, tokens: u32, eviction: Eviction, retention: Retention) -> Index {
        let several = shards > 1;
        Index {
            recs: Vec::with_capacity(max as usize),
            copies: Vec::with_capacity(if several { max as usize } else { 0 }),
            several,
            max,
            table: vec![0; max as usize + max as usize / 2 + 1],
            free: List::default(),
            order: Order::new(max, tokens, eviction, retention),
            pins: BTreeMap::new(),
            pinned: BTreeSet::new(),
            descent: (NONE, NONE),
        }
    }

    fn home(&self, hash: u128) -> usize {
        let folded = (hash as u64 ^ (hash >> 64) as u64).wrapping_mul(0x9e37_79b1_85eb_ca87);
        (((folded >> 32) * self.table.len() as u64) >> 32) as usize
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.table.len() { 0 } else { at + 1 }
    }

    /// Return the entry with this hash.
    pub fn find(&self, hash: u128) -> Option<u32> {
        let words = words_of(hash);
        let (mut at, mut far) = (self.home(hash), 0);
        loop {
            match self.table[at] {
                0 => return None,
                e if distance(e) == far && self.recs[entry_of(e) as usize].hash == words => return Some(entry_of(e)),
                _ => (at, far) = (self.after(at), (far + 1).min(FAR)),
            }
        }
    }

    /// Read the home positions of hashes before they are looked up. Their cache misses then overlap instead of following one
    /// another.
    pub fn warm(&self, hashes: &[u128]) {
        // No iteration depends on the value read before.
        std::hint::black_box(hashes.iter().fold(0, |read, &hash| read ^ self.table[self.home(hash)]));
    }

    /// Return whether there is room for one more entry.
    pub fn has_room(&self) -> bool {
        self.free.len > 0 || (self.recs.len() as u32) < self.max
    }

    /// Add a new entry without shard copies; it is idle. Return `None` if the index is full.
    pub fn insert(&mut self, hash: u128, parent: u32) -> Option<u32> {
        if !self.has_room() {
            return None;
        }
        let c = match self.free.pop_front(&mut self.recs) {
            Some(c) => c,
            None => {
                self.recs.push(CacheEntry::default());
                if self.several {
                    self.copies.push(CopyCounts::default());
                }
                self.recs.len() as u32 - 1
            }
        };
        let elder = if parent == NONE { NONE } else { self.recs[parent as usize].child() };
        self.recs[c as usize] = CacheEntry { hash: words_of(hash), parent, ..CacheEntry::default() };
        self.recs[c as usize].set_elder(elder);
        if parent != NONE {
            if elder != NONE {
                self.recs[elder as usize].set_sibling(c);
            }
            self.recs[parent as usize].set_child(c);
        }
        let (mut at, mut far) = (self.home(hash), 0);
        while self.table[at] != 0 {
            (at, far) = (self.after(at), far + 1);
        }
        self.table[at] = table_word(c, far);
        self.enter(c, Listed::Idle, self.order.now());
        Some(c)
    }

    /// Remove a leaf.
    pub fn remove(&mut self, c: u32) {
        let rec = self.recs[c as usize];
        // Checked in every build: the eviction loop runs until there is room, and would not end otherwise.
        assert!(rec.listed() != Listed::Free, "cache entry {c} was removed twice");
        debug_assert!(rec.child() == NONE);
        self.unpin(c);
        let (sibling, elder) = (rec.sibling(), rec.elder());
        if sibling != NONE {
            self.recs[sibling as usize].set_elder(elder);
        } else if rec.parent != NONE {
            self.recs[rec.parent as usize].set_child(elder);
        }
        if elder != NONE {
            self.recs[elder as usize].set_sibling(sibling);
        }
        if !mutants::on(Mutant::DroppedStaysInOrder) {
            self.leave(c);
        }
        self.unlink_hash(rec.hash(), c);
        self.recs[c as usize] = CacheEntry::default();
        if self.several {
            self.copies[c as usize] = CopyCounts::default();
        }
        self.free.push_back(&mut self.recs, c);
        if self.descent.0 == c || self.descent.1 == c {
            self.descent = (NONE, NONE);
        }
    }

    /// Backward-shift deletion, without tombstones.
    fn unlink_hash(&mut self, hash: u128, c: u32) {
        let mut hole = self.home(hash);
        while self.table[hole] & NO_ID != c + 1 {
            hole = self.after(hole);
        }
        let (mut at, mut gap) = (hole, 0);
        loop {
            (at, gap) = (self.after(at), gap + 1);
            let next = self.table[at];
            if next == 0 {
                break;
            }
            let far = match distance(next) {
                FAR => self.between(self.home(self.recs[entry_of(next) as usize].hash()), at),
                far => far,
            };
            // `next` may move into the hole unless its home lies behind the hole.
            if far >= gap {
                self.table[hole] = table_word(entry_of(next), far - gap);
                (hole, gap) = (at, 0);
            }
        }
        self.table[hole] = 0;
    }

    /// Return the distance from `from` forward to `to`, in table positions.
    fn between(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.table.len() - from }
    }

    fn leave(&mut self, c: u32) {
        let (listed, queue) = (self.recs[c as usize].listed(), self.recs[c as usize].queue());
        if matches!(listed, Listed::Idle | Listed::IndexOnly) && !self.is_pinned(c) {
            self.order.leave(&mut self.recs, c, queue, listed == Listed::IndexOnly);
        }
        self.recs[c as usize].set_listed(Listed::Active);
    }

    /// Append an entry that is in no list to the list `listed`. `since`: its last use, on the clock of `order`.
    fn enter(&mut self, c: u32, listed: Listed, since: u64) {
        self.recs[c as usize].set_listed(listed);
        if matches!(listed, Listed::Idle | Listed::IndexOnly) && !self.is_pinned(c) {
            let queue = self.recs[c as usize].queue();
            self.order.enter(&mut self.recs, c, queue, listed == Listed::IndexOnly, since);
        }
    }

    fn relist(&mut self, c: u32, listed: Listed) {
        let rec = &self.recs[c as usize];
        let was = rec.listed();
        if was == listed {
            return;
        }
        let since = match (was, listed) {
            // An entry that becomes index-only is usually at the head of its queue. If others stay ahead of it, its last use is later
            // than theirs but unknown. Treat it as used now rather than evict it too early.
            (Listed::Idle, Listed::IndexOnly) => {
                self.order.idle.since_of(rec.queue(), c).unwrap_or_else(|| self.order.now())
            }
            _ => self.order.now(),
        };
        self.leave(c);
        self.enter(c, listed, since);
    }

    /// Return how many shard copies the entry has.
    pub fn copies(&self, c: u32) -> CopyCounts {
        if self.several {
            return self.copies[c as usize];
        }
        let rec = &self.recs[c as usize];
        let head = rec.head();
        CopyCounts {
            all: u16::from(head != ShardCopy::End),
            with_block: u16::from(head.block().is_some()),
            active: u16::from(rec.listed() == Listed::Active),
        }
    }

    fn change(&mut self, c: u32, change: impl Fn(&mut CopyCounts)) {
        let mut copies = self.copies(c);
        change(&mut copies);
        if self.several {
            self.copies[c as usize] = copies;
        }
        let listed = match copies {
            CopyCounts { active: 1.., .. } => Listed::Active,
            CopyCounts { with_block: 0, all: 1.., .. } => Listed::IndexOnly,
            _ => Listed::Idle,
        };
        self.relist(c, listed);
    }

    /// Make `copy` the first of the chain. The caller has linked `copy` to the previous first.
    pub fn add_copy(&mut self, c: u32, copy: ShardCopy) {
        // Count before setting the head: counts derived from the head would include the new copy twice.
        self.change(c, |copies| {
            copies.all += 1;
            copies.with_block += u16::from(!copy.is_index_only());
        });
        self.recs[c as usize].set_head(copy);
    }

    /// Count one more shard copy that sequences refer to.
    pub fn activate(&mut self, c: u32) {
        self.change(c, |copies| copies.active += 1);
    }

    /// Count one shard copy less that sequences refer to. A sequence releases its deepest block first, so leaves are the least
    /// recently used and are evicted first.
    pub fn deactivate(&mut self, c: u32) {
        self.change(c, |copies| copies.active -= 1);
    }

    /// A shard copy has lost its block. The caller then replaces it in the chain.
    pub fn block_dropped(&mut self, c: u32) {
        self.change(c, |copies| copies.with_block -= 1);
    }

    /// A shard copy gets a block. The caller then replaces it in the chain.
    pub fn block_given(&mut self, c: u32) {
        self.change(c, |copies| copies.with_block += 1);
    }

    /// Begin a use of the entry: it is looked up or recomputed.
    pub fn begin_use(&mut self, c: u32) {
        self.recs[c as usize].sibling |= IN_USE;
    }

    /// End a sequence's use of the entry, which has `position` tokens before it. Overlapping uses by several sequences count as
    /// one.
    pub fn end_use(&mut self, c: u32, position: u64, priority: Priority) {
        let rec = self.recs[c as usize];
        if rec.sibling & IN_USE == 0 || rec.listed() != Listed::Active {
            return;
        }
        let queue = self.order.used(Use {
            hash: rec.hash(),
            id: c,
            parent: rec.parent,
            position,
            before: (rec.sibling & KNOWN != 0).then(|| rec.queue()),
            end: rec.child() == NONE,
            priority,
        });
        let rec = &mut self.recs[c as usize];
        rec.sibling = rec.sibling & !IN_USE | KNOWN;
        rec.set_queue(queue);
    }

    /// Move the entry to the end of its queue because it is wanted.
    pub fn touch(&mut self, c: u32) {
        let listed = self.recs[c as usize].listed();
        if matches!(listed, Listed::Idle | Listed::IndexOnly) {
            self.leave(c);
            self.enter(c, listed, self.order.now());
        }
    }

    /// Return whether an entry is part of a pinned prefix: it is not evicted.
    pub fn is_pinned(&self, c: u32) -> bool {
        !self.pins.is_empty() && self.pins.contains_key(&c)
    }

    /// Return the number of entries of pinned prefixes.
    pub fn pinned_len(&self) -> u32 {
        self.pins.len() as u32
    }

    /// Pin the prefix that ends with `end`, unless this or the entries pinned before would be more than `max`. Return whether it is
    /// pinned.
    pub fn pin(&mut self, end: u32, max: u32) -> bool {
        if self.pinned.contains(&end) {
            return true;
        }
        if self.prefix(end).filter(|c| !self.pins.contains_key(c)).count() + self.pins.len() > max as usize {
            return false;
        }
        self.pinned.insert(end);
        let mut c = end;
        while c != NONE {
            if !self.pins.contains_key(&c) {
                let listed = self.recs[c as usize].listed();
                self.leave(c);
                self.recs[c as usize].set_listed(listed);
            }
            *self.pins.entry(c).or_default() += 1;
            c = self.recs[c as usize].parent;
        }
        true
    }

    /// Unpin the prefix that ends with `end`. Return false if it was not pinned.
    pub fn unpin(&mut self, end: u32) -> bool {
        if self.pinned.is_empty() || !self.pinned.remove(&end) {
            return false;
        }
        let mut c = end;
        while c != NONE {
            if let Some(count) = self.pins.get_mut(&c) {
                *count -= 1;
                if *count == 0 {
                    self.pins.remove(&c);
                    self.enter(c, self.recs[c as usize].listed(), self.order.now());
                }
            }
            c = self.recs[c as usize].parent;
        }
        true
    }

    /// Check that the pins of each entry are the pinned prefixes that it is part of.
    pub fn check_pins(&self) -> Result<(), String> {
        let mut counted: BTreeMap<u32, u32> = BTreeMap::new();
        for c in self.pinned.iter().flat_map(|&end| self.prefix(end)) {
            *counted.entry(c).or_default() += 1;
        }
        match counted == self.pins {
            true => Ok(()),
            false => Err(format!("pins by entry: {:?}, counted {counted:?}", self.pins)),
        }
    }

    /// Return whether an entry is the last of a pinned prefix.
    pub fn ends_pinned(&self, c: u32) -> bool {
        self.pinned.contains(&c)
    }

    /// Iterate over an entry and its ancestors.
    pub fn prefix(&self, end: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(Some(end).filter(|&c| c != NONE), |&c| {
            Some(self.recs[c as usize].parent).filter(|&above| above != NONE)
        })
    }

    /// Return the entry to evict first: one with a block, or one without.
    pub fn first(&mut self) -> (Option<u32>, Option<u32>) {
        let [idle, index_only] = self.order.first();
        match (idle, index_only) {
            (Some(i), Some(c)) if i.before(c) => (Some(i.at), None),
            (_, Some(c)) => (None, Some(c.at)),
            (i, None) => (i.map(|i| i.at), None),
        }
    }

    /// Return the entry to evict first of those without a block.
    pub fn first_index_only(&mut self) -> Option<u32> {
        self.order.first()[1].map(|f| f.at)
    }

    /// Return unreferenced entries with a block, starting with the one to evict first; some appear twice.
    pub fn eviction_candidates(&mut self) -> impl Iterator<Item = u32> + '_ {
        let first = self.order.first()[0].map_or(NONE, |f| f.at);
        self.order.idle.iter_from(&self.recs, first)
    }

    /// Return unreferenced entries with a block, each queue from its least recently used on.
    pub fn idle(&self) -> impl Iterator<Item = u32> + '_ {
        self.order.idle.iter_from(&self.recs, NONE)
    }

    /// Return a leaf below `c`: its newest child, repeatedly.
    pub fn leaf_of(&self, mut c: u32) -> u32 {
        while self.recs[c as usize].child() != NONE {
            c = self.recs[c as usize].child();
        }
        c
    }

    /// Return the leaf below `c` to evict next. A long chain is evicted leaf by leaf without a walk from `c` for each.
    pub fn next_leaf(&mut self, c: u32) -> u32 {
        let from = if self.descent.0 == c && self.descent.1 != NONE { self.descent.1 } else { c };
        let leaf = self.leaf_of(from);
        self.descent = (c, if leaf == c { NONE } else { self.recs[leaf as usize].parent });
        leaf
    }

    pub fn live_len(&self) -> u32 {
        self.recs.len() as u32 - self.free.len
    }

    pub fn bytes(&self) -> usize {
        self.recs.capacity() * size_of::<CacheEntry>()
            + self.copies.capacity() * size_of::<CopyCounts>()
            + self.table.capacity() * size_of::<u32>()
    }

    pub fn live(&self) -> impl Iterator<Item = (u32, &CacheEntry)> {
        self.recs.iter().enumerate().filter(|(_, c)| c.listed() != Listed::Free).map(|(i, c)| (i as u32, c))
    }
}

const _: () = assert!(IDS_MAX <= 1 << LISTED);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn behaves_like_a_map(ops in prop::collection::vec((0u8..7, 0u128..24), 1..400), shards in 1u16..3) {
            // Hashes with few distinct home positions, so that probing and deletion meet chains.
            let hash = |k: u128| (k % 3) | (k << 64) | (k ^ (k % 3));
            let mut index = Index::new(16, shards, 4, Eviction::Auto, Retention::default());
            let mut model: BTreeMap<u128, (u32, bool, bool)> = BTreeMap::new();
            for (op, k) in ops {
                let h = hash(k);
                match op {
                    0..=2 if index.find(h).is_none() => {
                        let parent = index.find(hash(k + 1)).unwrap_or(NONE);
                        match index.insert(h, parent) {
                            Some(c) => {
                                let index_only = op == 2;
                                index.add_copy(c, if index_only { ShardCopy::IndexOnly(7) } else { ShardCopy::Block(7) });
                                model.insert(h, (c, false, index_only));
                            }
                            None => prop_assert_eq!(model.len(), 16),
                        }
                    }
                    3 => if let Some(c) = index.find(h) {
                        let leaf = index.next_leaf(c);
                        prop_assert_eq!(index.recs[leaf as usize].child(), NONE);
                        model.remove(&index.recs[leaf as usize].hash());
                        index.remove(leaf);
                    },
                    4 => if let Some((c, active, false)) = model.get_mut(&h) {
                        if *active {
                            index.begin_use(*c);
                            index.end_use(*c, k as u64 * 4_000, Priority::Neutral);
                            index.deactivate(*c);
                        } else {
                            index.activate(*c);
                        }
                        *active = !*active;
                    },
                    5 => if let Some((c, false, index_only)) = model.get_mut(&h) {
                        if *index_only { index.block_given(*c) } else { index.block_dropped(*c) }
                        index.recs[*c as usize].set_head(if *index_only { ShardCopy::Block(7) } else { ShardCopy::IndexOnly(7) });
                        *index_only = !*index_only;
                    },
                    6 => if let Some(c) = index.find(h) { index.touch(c) },
                    _ => {}
                }
                for k in 0..25 {
                    prop_assert_eq!(index.find(hash(k)), model.get(&hash(k)).map(|m| m.0));
                }
                prop_assert_eq!(index.live().count(), model.len());
                for &(c, active, index_only) in model.values() {
                    let copies = index.copies(c);
                    prop_assert_eq!(copies, CopyCounts { all: 1, with_block: u16::from(!index_only), active: u16::from(active) });
                }
                let order = &index.order;
                let listed = |queues: &super::super::evict::Queues| queues.iter(&index.recs).count();
                prop_assert_eq!(listed(&order.idle), model.values().filter(|m| !m.1 && !m.2).count());
                prop_assert_eq!(listed(&order.index_only), model.values().filter(|m| !m.1 && m.2).count());
                prop_assert_eq!(order.idle.len() as usize, listed(&order.idle));
            }
        }
    }
}
