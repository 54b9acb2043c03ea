//! The index of published content: hash → content, parents and children, and the order of those that nobody refers to. Presence is closed under ancestors: removing a content removes its descendants.
//!
//! Records are compact: there may be many times as many contents on NVMe as blocks.

use super::part::{IDS_MAX, Part};
use crate::api::NONE;
use crate::api::{Eviction, Retention};
use crate::evict::{Care, Order, Use};
use crate::lists::{Linked, Links, List};
use crate::mutants::{self, Mutant};
use serde::{Deserialize, Serialize};

/// Which list a content stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Listed {
    /// That of free records.
    Free,
    /// None: sequences refer to one of its parts.
    Active,
    /// Nobody refers to it, and at least one part has a block.
    Idle,
    /// All its parts are only on NVMe.
    Cold,
}

/// One published content.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Content {
    links: Links,
    hash: [u32; 4],
    pub parent: u32,
    /// Newest child; children chain by `sibling` and `elder`. With the highest bits of the queue of `order` in its own highest bits.
    child: u32,
    /// With the rest of what `order` knows of it in the highest bits.
    sibling: u32,
    /// With most of the queue of `order` in the highest bits.
    elder: u32,
    /// First of its parts, and (in the two highest bits) which list it stands in.
    head: u32,
}

const _: () = assert!(size_of::<Content>() == 44);

const LISTED: u32 = 30;
/// Bits of an id in `sibling` and `elder`; all of them: none.
const ID_BITS: u32 = 29;
const NO_ID: u32 = (1 << ID_BITS) - 1;
/// Distances in the table that are told apart: what is left of an entry's bits.
const FAR: usize = (1 << (u32::BITS - ID_BITS)) - 1;
/// In the highest bits of `sibling`: the fourth bit of the queue, whether a use is under way, whether a use was counted.
const QUEUE_FOURTH: u32 = 1 << ID_BITS;
const IN_USE: u32 = 2 << ID_BITS;
const KNOWN: u32 = 4 << ID_BITS;

/// Entry of a content that stands so far from its home.
fn entry(c: u32, far: usize) -> u32 {
    (far.min(FAR) as u32) << ID_BITS | (c + 1)
}

/// Content of an entry that is not empty.
fn content(entry: u32) -> u32 {
    (entry & NO_ID) - 1
}

fn distance(entry: u32) -> usize {
    (entry >> ID_BITS) as usize
}

fn id_of(packed: u32) -> u32 {
    if packed & NO_ID == NO_ID { NONE } else { packed & NO_ID }
}

fn with_id(packed: u32, id: u32) -> u32 {
    packed & !NO_ID | id & NO_ID
}

impl Default for Content {
    fn default() -> Self {
        Content {
            links: Links::default(),
            hash: [0; 4],
            parent: NONE,
            child: NO_ID,
            sibling: NO_ID,
            elder: NO_ID,
            head: Part::End.pack(),
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

impl Content {
    pub fn hash(&self) -> u128 {
        self.hash.iter().rev().fold(0, |hash, &word| hash << 32 | u128::from(word))
    }

    /// First of its parts.
    pub fn head(&self) -> Part {
        Part::unpack(self.head)
    }

    pub fn set_head(&mut self, part: Part) {
        self.head = self.head >> LISTED << LISTED | part.pack();
    }

    pub fn listed(&self) -> Listed {
        match self.head >> LISTED {
            0 => Listed::Free,
            1 => Listed::Active,
            2 => Listed::Idle,
            _ => Listed::Cold,
        }
    }

    fn set_listed(&mut self, listed: Listed) {
        self.head = (listed as u32) << LISTED | self.head & ((1 << LISTED) - 1);
    }

    /// Its newest child.
    pub fn child(&self) -> u32 {
        id_of(self.child)
    }

    fn set_child(&mut self, c: u32) {
        self.child = with_id(self.child, c);
    }

    /// The next older content with the same parent.
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

    /// The queue of `order` that it belongs to while nobody refers to it.
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

/// The words of a hash, the least significant first.
pub(crate) fn words_of(hash: u128) -> [u32; 4] {
    [0, 32, 64, 96].map(|shift| (hash >> shift) as u32)
}

/// How many parts a content has. Kept for spaces of several shards only: otherwise there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Parts {
    pub all: u16,
    /// With a block.
    pub hot: u16,
    /// That sequences refer to.
    pub active: u16,
}

/// Contents by hash: open addressing with linear probing over ids, at most two thirds full.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Index {
    pub recs: Vec<Content>,
    parts: Vec<Parts>,
    several: bool,
    max: u32,
    /// Ids plus one, and in the highest bits how far each stands from its home ([`FAR`]: so far, or farther); 0: empty. Whoever
    /// stands at another distance than the one that is looked for has another home: it is told apart without a look at its record.
    table: Vec<u32>,
    free: List,
    /// In which order those go that are [`Listed::Idle`] or [`Listed::Cold`].
    pub order: Order,
    /// The content below which the last leaf to go was looked for, and that leaf's parent, below which the next one is.
    descent: (u32, u32),
}

impl Index {
    /// For so many contents at most, of so many tokens each. Memory is touched as they come.
    pub fn new(max: u32, shards: u16, tokens: u32, eviction: Eviction, retention: Retention) -> Index {
        let several = shards > 1;
        Index {
            recs: Vec::with_capacity(max as usize),
            parts: Vec::with_capacity(if several { max as usize } else { 0 }),
            several,
            max,
            table: vec![0; max as usize + max as usize / 2 + 1],
            free: List::default(),
            order: Order::new(max, tokens, eviction, retention),
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

    /// The content of that hash.
    pub fn find(&self, hash: u128) -> Option<u32> {
        let words = words_of(hash);
        let (mut at, mut far) = (self.home(hash), 0);
        loop {
            match self.table[at] {
                0 => return None,
                e if distance(e) == far && self.recs[content(e) as usize].hash == words => return Some(content(e)),
                _ => (at, far) = (self.after(at), (far + 1).min(FAR)),
            }
        }
    }

    /// Looks at the places of contents that are about to be looked for: what must come from memory comes all at once then, instead of
    /// one after the other.
    pub fn warm(&self, hashes: &[u128]) {
        // Nothing in the loop waits for what was read.
        std::hint::black_box(hashes.iter().fold(0, |read, &hash| read ^ self.table[self.home(hash)]));
    }

    /// Whether one more fits.
    pub fn has_room(&self) -> bool {
        self.free.len > 0 || (self.recs.len() as u32) < self.max
    }

    /// Adds a content that is not in yet; it has no parts and stands idle. `None` when the index is full.
    pub fn insert(&mut self, hash: u128, parent: u32) -> Option<u32> {
        if !self.has_room() {
            return None;
        }
        let c = match self.free.pop_front(&mut self.recs) {
            Some(c) => c,
            None => {
                self.recs.push(Content::default());
                if self.several {
                    self.parts.push(Parts::default());
                }
                self.recs.len() as u32 - 1
            }
        };
        let elder = if parent == NONE { NONE } else { self.recs[parent as usize].child() };
        self.recs[c as usize] = Content { hash: words_of(hash), parent, ..Content::default() };
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
        self.table[at] = entry(c, far);
        self.enter(c, Listed::Idle, self.order.now());
        Some(c)
    }

    /// Removes a leaf.
    pub fn remove(&mut self, c: u32) {
        let rec = self.recs[c as usize];
        // In every build: who makes room goes on until there is some.
        assert!(rec.listed() != Listed::Free, "content {c} is dropped twice");
        debug_assert!(rec.child() == NONE);
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
        self.recs[c as usize] = Content::default();
        if self.several {
            self.parts[c as usize] = Parts::default();
        }
        self.free.push_back(&mut self.recs, c);
        if self.descent.0 == c || self.descent.1 == c {
            self.descent = (NONE, NONE);
        }
    }

    /// Backward-shift deletion: no tombstones.
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
                FAR => self.between(self.home(self.recs[content(next) as usize].hash()), at),
                far => far,
            };
            // `next` may move into the hole unless its home lies behind it.
            if far >= gap {
                self.table[hole] = entry(content(next), far - gap);
                (hole, gap) = (at, 0);
            }
        }
        self.table[hole] = 0;
    }

    /// How far one goes from `from` on to `to`.
    fn between(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.table.len() - from }
    }

    fn leave(&mut self, c: u32) {
        let (listed, queue) = (self.recs[c as usize].listed(), self.recs[c as usize].queue());
        if matches!(listed, Listed::Idle | Listed::Cold) {
            self.order.leave(&mut self.recs, c, queue, listed == Listed::Cold);
        }
        self.recs[c as usize].set_listed(Listed::Active);
    }

    /// Puts a content that stands in no list at the end of one. `since`: when it was used last, on the clock of `order`.
    fn enter(&mut self, c: u32, listed: Listed, since: u64) {
        self.recs[c as usize].set_listed(listed);
        if matches!(listed, Listed::Idle | Listed::Cold) {
            let queue = self.recs[c as usize].queue();
            self.order.enter(&mut self.recs, c, queue, listed == Listed::Cold, since);
        }
    }

    fn relist(&mut self, c: u32, listed: Listed) {
        let rec = &self.recs[c as usize];
        let was = rec.listed();
        if was == listed {
            return;
        }
        let since = match (was, listed) {
            // Those that become cold are mostly the first of their queue. One behind others that cannot was used later than they, nobody
            // knows when: rather too young than gone before its time.
            (Listed::Idle, Listed::Cold) => {
                self.order.idle.since_of(rec.queue(), c).unwrap_or_else(|| self.order.now())
            }
            _ => self.order.now(),
        };
        self.leave(c);
        self.enter(c, listed, since);
    }

    /// How many parts the content has.
    pub fn parts(&self, c: u32) -> Parts {
        if self.several {
            return self.parts[c as usize];
        }
        let rec = &self.recs[c as usize];
        let head = rec.head();
        Parts {
            all: u16::from(head != Part::End),
            hot: u16::from(head.block().is_some()),
            active: u16::from(rec.listed() == Listed::Active),
        }
    }

    fn change(&mut self, c: u32, change: impl Fn(&mut Parts)) {
        let mut parts = self.parts(c);
        change(&mut parts);
        if self.several {
            self.parts[c as usize] = parts;
        }
        let listed = match parts {
            Parts { active: 1.., .. } => Listed::Active,
            Parts { hot: 0, all: 1.., .. } => Listed::Cold,
            _ => Listed::Idle,
        };
        self.relist(c, listed);
    }

    /// Makes a part the first of the chain; the caller chained the one that was to it.
    pub fn add_part(&mut self, c: u32, part: Part) {
        // Counted before it is there: what is counted from the head must not count it twice.
        self.change(c, |parts| {
            parts.all += 1;
            parts.hot += u16::from(!part.is_cold());
        });
        self.recs[c as usize].set_head(part);
    }

    /// One more of its parts is referred to by a sequence.
    pub fn activate(&mut self, c: u32) {
        self.change(c, |parts| parts.active += 1);
    }

    /// One fewer. A sequence lets go of its deepest block first, so leaves are the least recently used and go first.
    pub fn deactivate(&mut self, c: u32) {
        self.change(c, |parts| parts.active -= 1);
    }

    /// A part has lost its block, and the caller replaces it in the chain afterwards.
    pub fn cooled(&mut self, c: u32) {
        self.change(c, |parts| parts.hot -= 1);
    }

    /// A part gets a block, and the caller replaces it in the chain afterwards.
    pub fn heated(&mut self, c: u32) {
        self.change(c, |parts| parts.hot += 1);
    }

    /// A use of the content begins: it is looked up, or computed again.
    pub fn begin_use(&mut self, c: u32) {
        self.recs[c as usize].sibling |= IN_USE;
    }

    /// A sequence has done with the content, before which so many tokens stand. Whoever else uses it at the same time does not make
    /// another use of it.
    pub fn end_use(&mut self, c: u32, position: u64, care: Care) {
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
            care,
        });
        let rec = &mut self.recs[c as usize];
        rec.sibling = rec.sibling & !IN_USE | KNOWN;
        rec.set_queue(queue);
    }

    /// The content is wanted: it is the last of its queue to go.
    pub fn touch(&mut self, c: u32) {
        let listed = self.recs[c as usize].listed();
        if matches!(listed, Listed::Idle | Listed::Cold) {
            self.leave(c);
            self.enter(c, listed, self.order.now());
        }
    }

    /// The content that goes first of those with a block, or of those without one.
    pub fn first(&mut self) -> (Option<u32>, Option<u32>) {
        let [idle, cold] = self.order.first();
        match (idle, cold) {
            (Some(i), Some(c)) if i.before(c) => (Some(i.at), None),
            (_, Some(c)) => (None, Some(c.at)),
            (i, None) => (i.map(|i| i.at), None),
        }
    }

    /// The content that goes first of those without a block.
    pub fn first_cold(&mut self) -> Option<u32> {
        self.order.first()[1].map(|f| f.at)
    }

    /// Contents with a block that nobody refers to, from the first to go on, some of them twice.
    pub fn near_first(&mut self) -> impl Iterator<Item = u32> + '_ {
        let first = self.order.first()[0].map_or(NONE, |f| f.at);
        self.order.idle.near(&self.recs, first)
    }

    /// Contents with a block that nobody refers to, each queue's least recently used first.
    pub fn idle(&self) -> impl Iterator<Item = u32> + '_ {
        self.order.idle.near(&self.recs, NONE)
    }

    /// A leaf below `c`: its deepest newest descendant.
    pub fn leaf_of(&self, mut c: u32) -> u32 {
        while self.recs[c as usize].child() != NONE {
            c = self.recs[c as usize].child();
        }
        c
    }

    /// The leaf below `c` that is to go next: a long chain goes leaf by leaf without a walk down to each.
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
        self.recs.capacity() * size_of::<Content>()
            + self.parts.capacity() * size_of::<Parts>()
            + self.table.capacity() * size_of::<u32>()
    }

    pub fn live(&self) -> impl Iterator<Item = (u32, &Content)> {
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
            // Hashes that fold to few homes, so that probing and deletion meet chains.
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
                                let cold = op == 2;
                                index.add_part(c, if cold { Part::Cold(7) } else { Part::Hot(7) });
                                model.insert(h, (c, false, cold));
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
                            index.end_use(*c, k as u64 * 4_000, Care::Neutral);
                            index.deactivate(*c);
                        } else {
                            index.activate(*c);
                        }
                        *active = !*active;
                    },
                    5 => if let Some((c, false, cold)) = model.get_mut(&h) {
                        if *cold { index.heated(*c) } else { index.cooled(*c) }
                        index.recs[*c as usize].set_head(if *cold { Part::Hot(7) } else { Part::Cold(7) });
                        *cold = !*cold;
                    },
                    6 => if let Some(c) = index.find(h) { index.touch(c) },
                    _ => {}
                }
                for k in 0..25 {
                    prop_assert_eq!(index.find(hash(k)), model.get(&hash(k)).map(|m| m.0));
                }
                prop_assert_eq!(index.live().count(), model.len());
                for &(c, active, cold) in model.values() {
                    let parts = index.parts(c);
                    prop_assert_eq!(parts, Parts { all: 1, hot: u16::from(!cold), active: u16::from(active) });
                }
                let order = &index.order;
                let listed = |queues: &crate::evict::Queues| queues.iter(&index.recs).count();
                prop_assert_eq!(listed(&order.idle), model.values().filter(|m| !m.1 && !m.2).count());
                prop_assert_eq!(listed(&order.cold), model.values().filter(|m| !m.1 && m.2).count());
                prop_assert_eq!(order.idle.len() as usize, listed(&order.idle));
            }
        }
    }
}
