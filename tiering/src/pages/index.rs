//! The index of published content: hash → content, parents and children, and the least recently used of those that nobody
//! refers to. Presence is closed under ancestors: removing a content removes its descendants.

use crate::api::NONE;
use crate::lists::{Linked, Links, List};
use serde::{Deserialize, Serialize};

/// One published content: the blocks, one a shard, that hold it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Content {
    /// In the idle list or the free list.
    links: Links,
    pub hash: u128,
    pub parent: u32,
    /// Newest child; children chain by `sibling` and `elder`.
    pub child: u32,
    sibling: u32,
    elder: u32,
    /// Chain of blocks (by `Block::next_part`).
    pub block: u32,
    /// Blocks in that chain.
    pub parts: u16,
    /// Blocks of it that sequences refer to.
    pub active: u16,
    live: bool,
}

impl Default for Content {
    fn default() -> Self {
        Content {
            links: Links::default(),
            hash: 0,
            parent: NONE,
            child: NONE,
            sibling: NONE,
            elder: NONE,
            block: NONE,
            parts: 0,
            active: 0,
            live: false,
        }
    }
}

impl Linked for Content {
    fn links(&self) -> &Links {
        &self.links
    }
    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// Contents by hash: open addressing with linear probing over ids, at most half full.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Index {
    pub recs: Vec<Content>,
    table: Vec<u32>,
    free: List,
    /// Contents without an active block, least recently used first.
    pub idle: List,
}

impl Index {
    pub fn new(count: u32) -> Index {
        let slots = (count as usize * 2).next_power_of_two();
        let mut index = Index {
            recs: vec![Content::default(); count as usize],
            table: vec![NONE; slots],
            free: List::default(),
            idle: List::default(),
        };
        for c in 0..count {
            index.free.push_back(&mut index.recs, c);
        }
        index
    }

    fn home(&self, hash: u128) -> usize {
        let folded = (hash as u64 ^ (hash >> 64) as u64).wrapping_mul(0x9e37_79b1_85eb_ca87);
        (folded >> 32) as usize & (self.table.len() - 1)
    }

    /// The content of that hash.
    pub fn find(&self, hash: u128) -> Option<u32> {
        let mut at = self.home(hash);
        loop {
            match self.table[at] {
                NONE => return None,
                c if self.recs[c as usize].hash == hash => return Some(c),
                _ => at = (at + 1) & (self.table.len() - 1),
            }
        }
    }

    /// Adds a content that is not in yet; it has no blocks and stands idle. `None` when the index is full.
    pub fn insert(&mut self, hash: u128, parent: u32) -> Option<u32> {
        let c = self.free.pop_front(&mut self.recs)?;
        let elder = if parent == NONE { NONE } else { self.recs[parent as usize].child };
        self.recs[c as usize] = Content { hash, parent, elder, live: true, ..Content::default() };
        if parent != NONE {
            if elder != NONE {
                self.recs[elder as usize].sibling = c;
            }
            self.recs[parent as usize].child = c;
        }
        let mut at = self.home(hash);
        while self.table[at] != NONE {
            at = (at + 1) & (self.table.len() - 1);
        }
        self.table[at] = c;
        self.idle.push_back(&mut self.recs, c);
        Some(c)
    }

    /// Removes a leaf.
    pub fn remove(&mut self, c: u32) {
        let rec = self.recs[c as usize];
        debug_assert!(rec.live && rec.child == NONE);
        if rec.sibling != NONE {
            self.recs[rec.sibling as usize].elder = rec.elder;
        } else if rec.parent != NONE {
            self.recs[rec.parent as usize].child = rec.elder;
        }
        if rec.elder != NONE {
            self.recs[rec.elder as usize].sibling = rec.sibling;
        }
        if rec.active == 0 {
            self.idle.remove(&mut self.recs, c);
        }
        self.unlink_hash(rec.hash, c);
        self.recs[c as usize] = Content::default();
        self.free.push_back(&mut self.recs, c);
    }

    /// Backward-shift deletion: no tombstones.
    fn unlink_hash(&mut self, hash: u128, c: u32) {
        let mask = self.table.len() - 1;
        let mut hole = self.home(hash);
        while self.table[hole] != c {
            hole = (hole + 1) & mask;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let next = self.table[at];
            if next == NONE {
                break;
            }
            let home = self.home(self.recs[next as usize].hash);
            // `next` may move into the hole unless its home lies cyclically behind it.
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.table[hole] = next;
                hole = at;
            }
        }
        self.table[hole] = NONE;
    }

    /// One more of its blocks is referred to by a sequence.
    pub fn activate(&mut self, c: u32) {
        if self.recs[c as usize].active == 0 {
            self.idle.remove(&mut self.recs, c);
        }
        self.recs[c as usize].active += 1;
    }

    /// One fewer. A sequence lets go of its deepest block first, so leaves are the least recently used and go first.
    pub fn deactivate(&mut self, c: u32) {
        self.recs[c as usize].active -= 1;
        if self.recs[c as usize].active == 0 {
            self.idle.push_back(&mut self.recs, c);
        }
    }

    /// A leaf below `c`: its deepest newest descendant.
    pub fn leaf_of(&self, mut c: u32) -> u32 {
        while self.recs[c as usize].child != NONE {
            c = self.recs[c as usize].child;
        }
        c
    }

    pub fn live_len(&self) -> u32 {
        self.recs.len() as u32 - self.free.len
    }

    pub fn bytes(&self) -> usize {
        self.recs.capacity() * size_of::<Content>() + self.table.capacity() * size_of::<u32>()
    }

    pub fn live(&self) -> impl Iterator<Item = (u32, &Content)> {
        self.recs.iter().enumerate().filter(|(_, c)| c.live).map(|(i, c)| (i as u32, c))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn behaves_like_a_map(ops in prop::collection::vec((0u8..5, 0u128..24), 1..400)) {
            // Hashes that fold to few homes, so that probing and deletion meet chains.
            let hash = |k: u128| (k % 3) | (k << 64) | (k ^ (k % 3));
            let mut index = Index::new(16);
            let mut model: BTreeMap<u128, u32> = BTreeMap::new();
            for (op, k) in ops {
                let h = hash(k);
                match op {
                    0..=2 if index.find(h).is_none() => {
                        let parent = index.find(hash(k + 1)).unwrap_or(NONE);
                        match index.insert(h, parent) {
                            Some(c) => _ = model.insert(h, c),
                            None => prop_assert_eq!(model.len(), 16),
                        }
                    }
                    3 => if let Some(c) = index.find(h) {
                        let leaf = index.leaf_of(c);
                        model.remove(&index.recs[leaf as usize].hash);
                        index.remove(leaf);
                    },
                    4 => if let Some(c) = index.find(h) {
                        if index.recs[c as usize].active == 0 { index.activate(c) } else { index.deactivate(c) }
                    },
                    _ => {}
                }
                for k in 0..25 {
                    prop_assert_eq!(index.find(hash(k)), model.get(&hash(k)).copied());
                }
                prop_assert_eq!(index.live().count(), model.len());
                prop_assert_eq!(index.idle.iter(&index.recs).count(), index.live().filter(|(_, c)| c.active == 0).count());
            }
        }
    }
}
