//! Index of published cache entries: hash → entry, its parent and children, and the eviction order of unreferenced
//! entries. The index is closed under ancestors: removing an entry removes its descendants.
//!
//! Records are compact: NVMe may hold many times more entries than there are blocks.

use super::absences::{Absence, Absences};
use super::entry::{CacheEntry, ID_BITS, NO_ID, State, words_of};
use super::evict::{Advice, Order, Priority, Residency, Standing, Use, mix};
use super::shard_copy::ShardCopy;
use super::steps;
use crate::api::{Cause, Eviction, NONE, Retention};
use crate::lists::{Linked, List};
use crate::mutants::{self, Mutant};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Largest probe distance that a table word can hold, in the bits beside the id; greater distances are stored as this one.
const FAR: usize = (1 << (u32::BITS - ID_BITS)) - 1;

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

/// Number of shard copies of a cache entry. Stored only in spaces with several shards; otherwise derived from the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopyCounts {
    pub all: u16,
    /// Copies with a block.
    pub with_block: u16,
    /// Copies with a slot, whether they have a block or not.
    pub with_slot: u16,
    /// Copies that sequences refer to.
    pub active: u16,
}

/// Maximum generations below the least valuable entry in which a leaf is searched.
const NEAR: usize = 256;

/// Residencies of entries that have a block.
pub(crate) const WITH_BLOCK: [Residency; 2] = [Residency::Both, Residency::Block];
/// Residencies of entries that have a slot.
pub(crate) const WITH_SLOT: [Residency; 2] = [Residency::Slot, Residency::Both];

/// Hash table of cache entries: open addressing with linear probing over ids, at most two thirds full.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Index {
    recs: Vec<CacheEntry>,
    copies: Vec<CopyCounts>,
    shards: u16,
    max: u32,
    /// Id plus one, and in the highest bits the distance from the home position ([`FAR`] stands for this distance or more); 0
    /// means empty. An entry at a distance other than the probe's has another home, so the probe skips it without reading its
    /// record.
    table: Vec<u32>,
    free: List,
    /// Eviction order of the entries that are [`State::Idle`] and not pinned.
    order: Order,
    /// Entries of pinned prefixes: of how many each is part.
    pins: BTreeMap<u32, u32>,
    /// The last entries of the pinned prefixes.
    pinned: BTreeSet<u32>,
    /// Hashes to which stores in progress add children: how many stores. The entry is evicted after all others.
    held: BTreeMap<u128, u32>,
    /// Why other blocks are not cached.
    absences: Absences,
}

impl Index {
    /// Create an index for at most `max` entries of `tokens` tokens each. Memory is touched as entries are added.
    pub fn new(max: u32, shards: u16, tokens: u32, eviction: Eviction, retention: Retention) -> Index {
        Index {
            recs: Vec::with_capacity(max as usize),
            copies: Vec::with_capacity(if shards > 1 { max as usize } else { 0 }),
            shards,
            max,
            table: vec![0; max as usize + max as usize / 2 + 1],
            free: List::default(),
            order: Order::new(max, tokens, eviction, retention),
            pins: BTreeMap::new(),
            pinned: BTreeSet::new(),
            held: BTreeMap::new(),
            absences: Absences::new(max),
        }
    }

    fn home(&self, hash: u128) -> usize {
        (((mix(hash) >> 32) * self.table.len() as u64) >> 32) as usize
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.table.len() { 0 } else { at + 1 }
    }

    /// Return the entry with this hash.
    pub fn find(&self, hash: u128) -> Option<u32> {
        let words = words_of(hash);
        let (mut at, mut far) = (self.home(hash), 0);
        loop {
            steps::count();
            match self.table[at] {
                0 => return None,
                e if distance(e) == far && self.recs[entry_of(e) as usize].words() == words => {
                    return Some(entry_of(e));
                }
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
                if self.shards > 1 {
                    self.copies.push(CopyCounts::default());
                }
                self.recs.len() as u32 - 1
            }
        };
        let elder = if parent == NONE { NONE } else { self.recs[parent as usize].child() };
        self.recs[c as usize] = CacheEntry::new(hash, parent);
        self.recs[c as usize].set_elder(elder);
        self.recs[c as usize].set_held(self.held.contains_key(&hash));
        if elder != NONE {
            self.recs[elder as usize].set_sibling(c);
        }
        if parent != NONE {
            self.change(parent, |index| index.recs[parent as usize].set_child(c));
        }
        let (mut at, mut far) = (self.home(hash), 0);
        while self.table[at] != 0 {
            steps::count();
            (at, far) = (self.after(at), far + 1);
        }
        self.table[at] = table_word(c, far);
        let now = self.order.now();
        self.change(c, |index| {
            index.recs[c as usize].set_state(State::Idle);
            index.recs[c as usize].set_used(now);
        });
        Some(c)
    }

    /// Remove a leaf, and note why. Return the first of its shard copies.
    pub fn remove(&mut self, c: u32, why: Absence) -> ShardCopy {
        let rec = self.recs[c as usize];
        // Checked in every build: the eviction loop runs until there is room, and would not end otherwise.
        assert!(rec.state() != State::Free, "cache entry {c} was removed twice");
        debug_assert!(rec.child() == NONE);
        self.absences.note(rec.hash(), why);
        self.unpin(c);
        let (sibling, elder) = (rec.sibling(), rec.elder());
        if sibling != NONE {
            self.recs[sibling as usize].set_elder(elder);
        } else if rec.parent() != NONE {
            self.change(rec.parent(), |index| index.recs[rec.parent() as usize].set_child(elder));
        }
        if elder != NONE {
            self.recs[elder as usize].set_sibling(sibling);
        }
        if !mutants::on(Mutant::DroppedStaysInOrder) {
            self.change(c, |index| index.recs[c as usize].set_state(State::Free));
        }
        self.unlink_hash(rec.hash(), c);
        self.recs[c as usize] = CacheEntry::default();
        if self.shards > 1 {
            self.copies[c as usize] = CopyCounts::default();
        }
        self.free.push_back(&mut self.recs, c);
        rec.head()
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

    /// Return the place of an entry in the eviction order; `None` if sequences refer to it or it is pinned.
    fn standing(&self, c: u32) -> Option<Standing> {
        let rec = &self.recs[c as usize];
        if rec.state() != State::Idle || self.is_pinned(c) {
            return None;
        }
        let copies = self.copies(c);
        let residency = match (copies.with_block, copies.with_slot) {
            (0, 1..) => Residency::Slot,
            (_, 1..) => Residency::Both,
            (_, 0) => Residency::Block,
        };
        Some(Standing { residency, leaf: self.is_leaf(c), queue: rec.queue(), held: rec.is_held() })
    }

    /// Change an entry, and move it to its new place in the eviction order.
    fn change(&mut self, c: u32, change: impl FnOnce(&mut Index)) {
        let before = self.standing(c);
        change(self);
        let after = self.standing(c);
        if before != after {
            before.inspect(|&stands| self.order.leave(&mut self.recs, c, stands));
            after.inspect(|&stands| self.order.enter(&mut self.recs, c, stands));
        }
    }

    pub fn hash(&self, c: u32) -> u128 {
        self.recs[c as usize].hash()
    }

    pub fn parent(&self, c: u32) -> u32 {
        self.recs[c as usize].parent()
    }

    /// Return the hashes of an entry and of its parent; 0 if it has none.
    pub fn hashes(&self, c: u32) -> [u128; 2] {
        let rec = &self.recs[c as usize];
        [rec.hash(), if rec.parent() == NONE { 0 } else { self.hash(rec.parent()) }]
    }

    /// Return the first words of the index log's records of an entry.
    pub fn record_words(&self, c: u32) -> impl Iterator<Item = u32> + use<> {
        self.hashes(c).into_iter().flat_map(words_of)
    }

    /// Return the first of the entry's shard copies.
    pub fn first_copy(&self, c: u32) -> ShardCopy {
        self.recs[c as usize].head()
    }

    /// Return whether the entry has no children.
    pub fn is_leaf(&self, c: u32) -> bool {
        self.recs[c as usize].child() == NONE
    }

    /// Return whether sequences refer to the entry.
    pub fn is_active(&self, c: u32) -> bool {
        self.recs[c as usize].state() == State::Active
    }

    /// Return whether all shards have their part of an entry: lookups find it. A free record is not whole.
    pub fn is_whole(&self, c: u32) -> bool {
        self.copies(c).all == self.shards
    }

    /// Return a number that all ids are below: entries, and free records.
    pub fn ids(&self) -> usize {
        self.recs.len()
    }

    /// Return how many shard copies the entry has.
    pub fn copies(&self, c: u32) -> CopyCounts {
        if self.shards > 1 {
            return self.copies[c as usize];
        }
        let rec = &self.recs[c as usize];
        let head = rec.head();
        CopyCounts {
            all: u16::from(head != ShardCopy::End),
            with_block: u16::from(head.block().is_some()),
            with_slot: u16::from(rec.has_slot()),
            active: u16::from(rec.state() == State::Active),
        }
    }

    /// Change the counts of an entry's copies. An entry that gains its first block counts as used now, as one that goes out of use does.
    fn recount(&mut self, c: u32, recount: impl FnOnce(&mut CopyCounts, &mut CacheEntry)) {
        let now = self.order.now();
        self.change(c, |index| {
            let before = index.copies(c);
            let (mut copies, rec) = (before, &mut index.recs[c as usize]);
            recount(&mut copies, rec);
            if before.active > 0 || before.with_block == 0 && copies.with_block > 0 {
                rec.set_used(now);
            }
            rec.set_slot(copies.with_slot > 0);
            rec.set_state(if copies.active > 0 { State::Active } else { State::Idle });
            if index.shards > 1 {
                index.copies[c as usize] = copies;
            }
        });
    }

    /// Make `copy` the first of the chain. Return the previous first, to which the caller links `copy`. `slots`: how many slots it has.
    pub fn add_copy(&mut self, c: u32, copy: ShardCopy, slots: u16) -> ShardCopy {
        let previous = self.recs[c as usize].head();
        self.recount(c, |copies, rec| {
            copies.all += 1;
            copies.with_block += u16::from(copy.block().is_some());
            copies.with_slot += slots;
            rec.set_head(copy);
        });
        previous
    }

    /// Replace the shard copy `old` by `new`, with their numbers of slots. The caller has linked `new` to the successor of `old`, and
    /// links the copy before `old`, if there is one, to `new`.
    pub fn replace_copy(&mut self, c: u32, (old, old_slots): (ShardCopy, u16), (new, slots): (ShardCopy, u16)) {
        let blocks = |copy: ShardCopy| u16::from(copy.block().is_some());
        self.recount(c, |copies, rec| {
            copies.with_block = copies.with_block + blocks(new) - blocks(old);
            copies.with_slot = copies.with_slot + slots - old_slots;
            if rec.head() == old {
                rec.set_head(new);
            }
        });
    }

    /// Count a slot that a block of the entry got, or lost.
    pub fn count_slot(&mut self, c: u32, got: bool) {
        self.recount(c, |copies, _| copies.with_slot = copies.with_slot + u16::from(got) - u16::from(!got));
    }

    /// Count one more shard copy that sequences refer to.
    pub fn activate(&mut self, c: u32) {
        self.recount(c, |copies, _| copies.active += 1);
    }

    /// Count one shard copy less that sequences refer to. A sequence releases its deepest block first, so leaves are the least
    /// recently used and are evicted first.
    pub fn deactivate(&mut self, c: u32) {
        self.recount(c, |copies, _| copies.active -= 1);
    }

    /// Begin a use of the entry: it is looked up or recomputed.
    pub fn begin_use(&mut self, c: u32) {
        self.recs[c as usize].begin_use();
    }

    /// End a sequence's use of the entry, which has `position` tokens before it. Overlapping uses by several sequences count as
    /// one.
    pub fn end_use(&mut self, c: u32, position: u64, priority: Priority) {
        let rec = self.recs[c as usize];
        if !rec.is_in_use() || rec.state() != State::Active {
            return;
        }
        let queue = self.order.used(Use {
            hash: rec.hash(),
            id: c,
            parent: rec.parent(),
            position,
            before: rec.known_queue(),
            end: rec.child() == NONE,
            priority,
        });
        self.recs[c as usize].end_use(queue);
    }

    /// Move the entry to the end of its queue because it is wanted.
    pub fn touch(&mut self, c: u32) {
        let stands = self.standing(c);
        stands.inspect(|&stands| self.order.leave(&mut self.recs, c, stands));
        self.recs[c as usize].set_used(self.order.now());
        stands.inspect(|&stands| self.order.enter(&mut self.recs, c, stands));
    }

    /// Evict the entry with this hash, if it is cached or will be, after all others: a store adds children to it.
    pub fn hold(&mut self, hash: u128) {
        *self.held.entry(hash).or_default() += 1;
        self.set_held(hash, true);
    }

    /// End one `hold` of a hash.
    pub fn release(&mut self, hash: u128) {
        let stores = self.held.get_mut(&hash).expect("it is held");
        *stores -= 1;
        if *stores == 0 {
            self.held.remove(&hash);
            self.set_held(hash, false);
        }
    }

    fn set_held(&mut self, hash: u128, held: bool) {
        if let Some(c) = self.find(hash) {
            self.change(c, |index| index.recs[c as usize].set_held(held));
        }
    }

    /// Return whether stores in progress add children to an entry.
    pub fn is_held(&self, c: u32) -> bool {
        self.recs[c as usize].is_held()
    }

    /// Return how many stores in progress add children to each of some hashes; for checks.
    pub fn held(&self) -> &BTreeMap<u128, u32> {
        &self.held
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
    fn pin(&mut self, end: u32, max: u32) -> bool {
        if self.pinned.contains(&end) {
            return true;
        }
        if self.prefix(end).filter(|c| !self.pins.contains_key(c)).count() + self.pins.len() > max as usize {
            return false;
        }
        self.pinned.insert(end);
        let mut c = end;
        while c != NONE {
            self.change(c, |index| *index.pins.entry(c).or_default() += 1);
            c = self.parent(c);
        }
        true
    }

    /// Unpin the prefix that ends with `end`. Return false if it was not pinned.
    fn unpin(&mut self, end: u32) -> bool {
        if self.pinned.is_empty() || !self.pinned.remove(&end) {
            return false;
        }
        let mut c = end;
        while c != NONE {
            if let Some(count) = self.pins.get_mut(&c) {
                *count -= 1;
                if *count == 0 {
                    self.recs[c as usize].set_used(self.order.now());
                    self.change(c, |index| _ = index.pins.remove(&c));
                }
            }
            c = self.parent(c);
        }
        true
    }

    /// Pin or unpin the prefix that ends with a cached block. At most `max` entries are pinned.
    pub fn set_pinned(&mut self, hash: u128, pinned: bool, max: u32) {
        match self.find(hash) {
            Some(c) if pinned => self.pin(c, max),
            Some(c) => self.unpin(c),
            None => false,
        };
    }

    /// Check that each entry is found by its hash, has a parent, stands in the order where its copies and children require, and has the pins
    /// of the pinned prefixes that it is part of.
    pub fn check(&self) -> Result<(), String> {
        let mut stand = BTreeMap::new();
        for c in self.live() {
            let rec = &self.recs[c as usize];
            let above = self.recs.get(rec.parent() as usize).is_some_and(|above| above.state() != State::Free);
            if self.find(rec.hash()) != Some(c) || rec.parent() != NONE && !above {
                return Err(format!("entry {c} is not found by its hash or has no parent: {rec:?}"));
            }
            if rec.is_held() != self.held.contains_key(&rec.hash()) || self.is_active(c) != (self.copies(c).active > 0)
            {
                return Err(format!("entry {c} is wrongly held or active: {rec:?}"));
            }
            self.standing(c).map(|stands| stand.insert(c, stands));
        }
        self.order.check(&self.recs, stand)?;
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
            Some(self.parent(c)).filter(|&above| above != NONE)
        })
    }

    /// Advance the wall clock; call it before the next use.
    pub fn advance(&mut self, now_us: u64) {
        self.order.advance(now_us);
    }

    /// Change the eviction policy. Entries stay in their queues until their next use.
    pub fn configure(&mut self, now_us: u64, policy: Eviction, retention: Retention) {
        self.order.configure(now_us, policy, retention);
    }

    /// Set the capacity in entries: of all tiers, and of host memory alone (0 if host memory is the only tier).
    pub fn set_capacity(&mut self, entries: u64, host: u64) {
        self.order.set_size(entries, host);
    }

    /// Set the time to load an entry from the lowest tier, in microseconds.
    pub fn set_load_us(&mut self, us: f64) {
        self.order.costs.set_load(us);
    }

    /// Return an unreferenced entry that has not been used for a whole TTL.
    pub fn expired(&mut self) -> Option<u32> {
        self.order.expired()
    }

    /// Return when such an entry may exist, in microseconds; 0: now.
    pub fn expires_us(&self) -> Option<u64> {
        self.order.expires_us()
    }

    /// Return the estimates of the ghost caches.
    pub fn advice(&self) -> Advice {
        self.order.advice()
    }

    /// Return the number of unreferenced index-only entries that are not pinned.
    pub fn index_only_len(&self) -> u32 {
        self.order.resident(Residency::Slot)
    }

    /// Return the leaf to evict first.
    pub fn first_leaf(&mut self) -> Option<u32> {
        self.first(&[Residency::Slot, Residency::Both, Residency::Block])
    }

    /// Return the entry to evict first of those with a residency: a leaf below the least valuable entry if one is near, else the least
    /// valuable leaf. It has children only if all such leaves are held for stores.
    pub fn first(&mut self, of: &[Residency]) -> Option<u32> {
        // Under LRU, no entry was used before the leaves below it.
        let leaves: &[bool] = if self.order.follow() == Eviction::Lru { &[true] } else { &[true, false] };
        let head = self.order.first(of, leaves);
        let below = std::iter::successors(head, |&c| Some(self.recs[c as usize].child()).filter(|&c| c != NONE));
        let near = below.take(NEAR).find(|&c| self.is_leaf(c) && !self.is_held(c));
        if near.is_some() {
            return near;
        }
        let leaf = self.order.first(of, &[true]);
        if leaf.is_some_and(|leaf| !self.is_held(leaf)) {
            return leaf;
        }
        self.order.first(of, &[false]).filter(|&above| !self.is_held(self.leaf_of(above))).or(leaf)
    }

    /// Return the least valuable entry of those with a residency, whether it has children or not.
    pub fn head(&mut self, of: &[Residency]) -> Option<u32> {
        self.order.first(of, &[true, false])
    }

    /// Return the entries behind `head` in its queue, then all with a residency. Some appear twice.
    pub fn in_order<'a>(&'a self, head: Option<u32>, of: &'a [Residency]) -> impl Iterator<Item = u32> + 'a {
        let next = |&c: &u32| Some(self.recs[c as usize].links().next).filter(|&next| next != NONE);
        std::iter::successors(head, next).chain(self.order.iter(&self.recs, of))
    }

    /// Return the first leaf below `c` in a walk that takes children before parents: its newest child, repeatedly.
    pub fn leaf_of(&self, mut c: u32) -> u32 {
        while !self.is_leaf(c) {
            c = self.recs[c as usize].child();
        }
        c
    }

    /// Return the next entry after `c` in a walk over all descendants of `top`, parents first.
    pub fn next_below(&self, c: u32, top: u32) -> Option<u32> {
        match self.recs[c as usize].child() {
            NONE => self.next_beside(c, top),
            child => Some(child),
        }
    }

    /// Like `next_below`, but skip the descendants of `c`.
    pub fn next_beside(&self, mut c: u32, top: u32) -> Option<u32> {
        while c != top {
            let rec = &self.recs[c as usize];
            if rec.elder() != NONE {
                return Some(rec.elder());
            }
            c = rec.parent();
        }
        None
    }

    /// Return why lookups do not find the block with this hash; `None` if they find it.
    pub fn absence(&self, hash: u128, now_us: u64) -> Option<Absence> {
        let of = |cause, at_us| Absence { cause, tier: None, with_ancestor: false, at_us };
        match self.find(hash) {
            Some(c) if self.is_whole(c) => None,
            Some(_) => Some(of(Cause::Incomplete, now_us)),
            None => {
                let unknown = || of(Cause::NeverStored, self.absences.known_since_us());
                Some(self.absences.of(hash).unwrap_or_else(unknown))
            }
        }
    }

    /// Return the time since which no block that left, or was not stored, has been forgotten.
    pub fn absences_known_since_us(&self) -> u64 {
        self.absences.known_since_us()
    }

    /// Note that a block did not become cached. It may be cached all the same, by another request.
    pub fn note_absent(&mut self, hash: u128, cause: Cause, now_us: u64) {
        if self.find(hash).is_none() {
            self.absences.note(hash, Absence { cause, tier: None, with_ancestor: false, at_us: now_us });
        }
    }

    pub fn live_len(&self) -> u32 {
        self.recs.len() as u32 - self.free.len
    }

    /// Return the bytes of all its tables, from their allocated capacities.
    pub fn bytes(&self) -> usize {
        self.table_bytes() + self.order.bytes() + self.absences.bytes()
    }

    /// Return the bytes of the tables of entries alone.
    pub fn table_bytes(&self) -> usize {
        self.recs.capacity() * size_of::<CacheEntry>()
            + self.copies.capacity() * size_of::<CopyCounts>()
            + self.table.capacity() * size_of::<u32>()
    }

    pub fn live(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.recs.len() as u32).filter(|&c| self.recs[c as usize].state() != State::Free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn behaves_like_a_map(ops in prop::collection::vec((0u8..9, 0u128..24), 1..400), shards in 1u16..3) {
            let hash = |k: u128| k << 64 | k;
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
                                let copy = if index_only { ShardCopy::IndexOnly(7) } else { ShardCopy::Block(7) };
                                index.add_copy(c, copy, u16::from(index_only));
                                model.insert(h, (c, false, index_only));
                            }
                            None => prop_assert_eq!(model.len(), 16),
                        }
                    }
                    3 => if let Some(c) = index.find(h) {
                        let leaf = index.leaf_of(c);
                        prop_assert_eq!(index.recs[leaf as usize].child(), NONE);
                        model.remove(&index.recs[leaf as usize].hash());
                        let why = Absence { cause: Cause::Operator, tier: None, with_ancestor: false, at_us: 0 };
                        index.remove(leaf, why);
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
                        let (block, slot) = (ShardCopy::Block(7), ShardCopy::IndexOnly(7));
                        let slots = u16::from(index.recs[*c as usize].has_slot());
                        match *index_only {
                            true => index.replace_copy(*c, (slot, 1), (block, 1)),
                            false => index.replace_copy(*c, (block, slots), (slot, 1)),
                        }
                        *index_only = !*index_only;
                    },
                    6 => if let Some(c) = index.find(h) { index.touch(c) },
                    7 => if let Some(&(c, _, false)) = model.get(&h) { index.count_slot(c, !index.recs[c as usize].has_slot()) },
                    8 => if index.held.contains_key(&h) { index.release(h) } else { index.hold(h) },
                    _ => {}
                }
                for k in 0..25 {
                    prop_assert_eq!(index.find(hash(k)), model.get(&hash(k)).map(|m| m.0));
                }
                prop_assert_eq!(index.live().count(), model.len());
                for &(c, active, index_only) in model.values() {
                    let copies = index.copies(c);
                    let with_slot = u16::from(index.recs[c as usize].has_slot());
                    let active = u16::from(active);
                    prop_assert_eq!(copies, CopyCounts { all: 1, with_block: u16::from(!index_only), with_slot, active });
                    prop_assert!(!index_only || with_slot == 1);
                }
                index.check().unwrap();
                let left = model.values().any(|m| !m.1);
                prop_assert_eq!(index.first_leaf().is_some(), left);
            }
        }
    }
}
