//! The digests that a session keeps in the engine's memory: bounded, one slot a page, the longest unused given up first.

use super::KeyLayout;
use crate::agent::protocol::zeroed;
use kvtide_wire::{
    digest::{self, sketch},
    sync::{AtomicU32, Ordering},
};
use std::collections::HashMap;

/// Digests of keys that a session keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestOptions {
    /// Where keys are in pages.
    pub keys: KeyLayout,
    /// Pages of which they are kept; of others nothing is known once they have left tier 0. What they take is taken from tier 0's
    /// frames.
    pub pages: u32,
    /// Groups of a head's sketch, by which `approx` picks ([`sketch::groups`] says how many 5 % of a page hold); 0: no sketches.
    pub groups: u16,
    /// Whether bounds are kept too, by which `bounded` proves.
    pub bounds: bool,
}

impl DigestOptions {
    fn sketch_bytes(&self) -> usize {
        sketch::bytes(usize::from(self.keys.channels), usize::from(self.groups))
    }

    fn bound_bytes(&self) -> usize {
        if self.bounds { digest::bytes(usize::from(self.keys.channels)) } else { 0 }
    }

    /// Bytes of a page's digests.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        usize::from(self.keys.heads) * (self.sketch_bytes() + self.bound_bytes())
    }

    /// Bytes that all digests take.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.pages) * self.page_bytes() as u64
    }

    /// Frames of a class with pages of so many bytes that they take the place of.
    #[must_use]
    pub fn frames(&self, stride: u32) -> u32 {
        u32::try_from(self.bytes().div_ceil(u64::from(stride.max(1)))).unwrap_or(u32::MAX)
    }
}

/// No page has the slot; no slot has the page.
const NOBODY: u32 = 0;
/// In place of a slot: the page came from elsewhere and was not read here yet.
const OWED: u32 = u32::MAX;

/// The digests of a session's pages, by page id.
pub struct Digests {
    keys: KeyLayout,
    page_tokens: u32,
    planes: u32,
    /// Bytes of a page; of them, of a head; of them, of its sketch, which comes first.
    bytes: usize,
    head_bytes: usize,
    sketch_bytes: usize,
    /// Slot + 1 of each page, [`NOBODY`] or [`OWED`].
    slots: Box<[u32]>,
    /// Pages that are owed, and those of each block.
    owed: u32,
    owing: Box<[u32]>,
    /// Page + 1 of each slot.
    owners: Box<[u32]>,
    /// Whether a slot was looked at since the hand passed it.
    used: Box<[AtomicU32]>,
    hand: usize,
    /// Slots that have an owner.
    held: u32,
    /// What blocks with digests hold, of those that have a name.
    names: HashMap<u32, u128>,
    data: Box<[u8]>,
    read: Vec<f32>,
    scratch: Vec<f32>,
}

impl Digests {
    /// Room for digests of a space of `blocks_max` blocks of `planes` pages of `page_tokens` tokens each; `None` if the system
    /// has none.
    #[must_use]
    pub fn new(options: &DigestOptions, blocks_max: u32, planes: u32, page_tokens: u32) -> Option<Digests> {
        let mut digests = Digests::elsewhere(options, blocks_max, planes, page_tokens)?;
        let mut data = Vec::new();
        data.try_reserve_exact(digests.bytes.checked_mul(digests.owners.len())?).ok()?;
        data.resize(digests.bytes * digests.owners.len(), 0); // now, and not when a step first has a page sealed
        digests.data = data.into_boxed_slice();
        Some(digests)
    }

    /// The same without the digests themselves: which page has which slot, for those that a device keeps.
    #[must_use]
    pub fn elsewhere(options: &DigestOptions, blocks_max: u32, planes: u32, page_tokens: u32) -> Option<Digests> {
        let (bytes, pages) = (options.page_bytes(), options.pages as usize);
        let (channels, groups) = (usize::from(options.keys.channels), usize::from(options.groups));
        Some(Digests {
            keys: options.keys,
            page_tokens,
            planes,
            bytes,
            head_bytes: options.sketch_bytes() + options.bound_bytes(),
            sketch_bytes: options.sketch_bytes(),
            slots: zeroed::words((blocks_max as usize).checked_mul(planes as usize)?)?,
            owed: 0,
            owing: zeroed::words(blocks_max as usize)?,
            owners: zeroed::words(pages)?,
            used: zeroed::words(pages)?,
            hand: 0,
            held: 0,
            names: HashMap::new(),
            data: Box::default(),
            read: Vec::with_capacity(page_tokens as usize * channels),
            scratch: vec![0.0; sketch::scratch(page_tokens as usize, channels, groups)],
        })
    }

    /// Where keys are.
    #[must_use]
    pub fn keys(&self) -> &KeyLayout {
        &self.keys
    }

    /// Pages that have digests now.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held
    }

    /// A head's digest of a page: its sketch and its bound, either empty if none is kept.
    #[must_use]
    pub fn get(&self, page: u32, head: usize) -> Option<(&[u8], &[u8])> {
        let slot = self.place(page)? as usize;
        let digest = self.data.get(slot * self.bytes..)?.get(..self.bytes)?.chunks_exact(self.head_bytes).nth(head)?;
        Some(digest.split_at(self.sketch_bytes))
    }

    /// Where a page's digests are; `None`: it has none.
    #[must_use]
    pub fn place(&self, page: u32) -> Option<u32> {
        let slot = self.slot_of(page)?;
        self.used[slot].store(1, Ordering::Relaxed);
        Some(slot as u32)
    }

    /// Gives a page a place, of which its digests are about to be built.
    pub fn take(&mut self, page: u32) -> Option<u32> {
        self.slot(page).map(|slot| slot as u32)
    }

    /// What a place was taken for was not built: its page has none, or owes it.
    pub fn void(&mut self, place: u32, owed: bool) {
        if let Some(page) = self.owners.get(place as usize).and_then(|owner| owner.checked_sub(1)) {
            self.free(page);
            self.owe(owed.then_some(page).into_iter());
        }
    }

    /// Whether a page has digests; is no use of them.
    #[must_use]
    pub fn has(&self, page: u32) -> bool {
        self.slot_of(page).is_some()
    }

    fn slot_of(&self, page: u32) -> Option<usize> {
        self.slots.get(page as usize).filter(|slot| **slot != OWED)?.checked_sub(1).map(|slot| slot as usize)
    }

    /// Whether a page came from elsewhere, and has not had its digests built since: nothing is known of it, and it takes one
    /// reading to know.
    #[must_use]
    pub fn owes(&self, page: u32) -> bool {
        self.slots.get(page as usize) == Some(&OWED)
    }

    /// How many pages are so.
    #[must_use]
    pub fn owed(&self) -> u32 {
        self.owed
    }

    /// Whether a page of a block is so.
    #[must_use]
    pub fn owing(&self, block: u32) -> bool {
        self.owing.get(block as usize).is_some_and(|pages| *pages > 0)
    }

    /// Nobody will read a block: it owes nothing.
    pub fn forgive(&mut self, block: u32) {
        if self.owing(block) {
            let first = block * self.planes;
            for page in first..first + self.planes {
                if self.owes(page) {
                    self.free(page);
                }
            }
        }
    }

    /// Pages came from elsewhere: they are owed digests unless they have some.
    pub fn owe(&mut self, pages: impl Iterator<Item = u32>) {
        for page in pages {
            if let Some(slot) = self.slots.get_mut(page as usize).filter(|slot| **slot == NOBODY) {
                *slot = OWED;
                self.owed += 1;
                self.owing[page as usize / self.planes as usize] += 1;
            }
        }
    }

    /// Computes the digests of a full page, over what it had.
    pub fn build(&mut self, page: u32, bytes: &[u8]) {
        let Some(slot) = self.slot(page).filter(|_| !self.data.is_empty()) else { return };
        let channels = usize::from(self.keys.channels);
        let digests = &mut self.data[slot * self.bytes..][..self.bytes];
        let mut built = true;
        for (head, digest) in digests.chunks_exact_mut(self.head_bytes).enumerate() {
            self.keys.read(bytes, head as u16, self.page_tokens, &mut self.read);
            let (sketch, bound) = digest.split_at_mut(self.sketch_bytes);
            built &= sketch.is_empty() || sketch::build(&self.read, channels, &mut self.scratch, sketch).is_ok();
            built &= bound.is_empty() || digest::build(&self.read, channels, bound).is_ok();
        }
        if !built {
            self.free(page); // not here: sizes are checked when the session begins
        }
    }

    /// The slot of a page; takes the one that was not looked at for longest if all have owners.
    fn slot(&mut self, page: u32) -> Option<usize> {
        if let Some(slot) = self.slot_of(page) {
            return Some(slot);
        }
        self.free(page); // it owes none any more; no such page: no slot below
        self.slots.get(page as usize)?;
        let count = self.owners.len();
        for _ in 0..2 * count {
            let slot = self.hand;
            self.hand = (self.hand + 1) % count;
            let owner = self.owners[slot];
            if owner != NOBODY && self.used[slot].swap(0, Ordering::Relaxed) != 0 {
                continue;
            }
            if let Some(owner) = owner.checked_sub(1) {
                self.free(owner);
            }
            self.owners[slot] = page + 1;
            self.slots[page as usize] = slot as u32 + 1;
            self.used[slot].store(1, Ordering::Relaxed);
            self.held += 1;
            return Some(slot);
        }
        None
    }

    fn free(&mut self, page: u32) {
        let Some(slot) = self.slots.get_mut(page as usize) else { return };
        match std::mem::replace(slot, NOBODY) {
            NOBODY => {}
            OWED => {
                self.owed -= 1;
                self.owing[page as usize / self.planes as usize] -= 1;
            }
            slot => {
                self.owners[slot as usize - 1] = NOBODY;
                self.held -= 1;
            }
        }
    }

    /// A block has new content: what was known of it is void.
    pub fn forget(&mut self, block: u32) {
        self.names.remove(&block);
        (0..self.planes).for_each(|plane| self.free(block * self.planes + plane));
    }

    /// Whether a page of a block has digests.
    #[must_use]
    pub fn has_any(&self, block: u32) -> bool {
        let first = block.saturating_mul(self.planes);
        (first..first.saturating_add(self.planes)).any(|page| self.has(page))
    }

    /// A sealed block of ours has got the name of its content.
    pub fn named(&mut self, block: u32, name: u128) {
        if self.has_any(block) {
            self.keep_name(block, name);
        }
    }

    /// A block came with content of this name: what is known of another one is void, and the digests of `planes` are owed.
    pub fn mapped(&mut self, block: u32, name: u128, planes: impl Iterator<Item = u32>) {
        if self.names.get(&block) != Some(&name) {
            self.forget(block);
            let first = block * self.planes;
            self.owe(planes.map(|plane| first + plane));
            self.keep_name(block, name);
        }
    }

    /// As many names as pages may have digests; those whose blocks have none make room.
    fn keep_name(&mut self, block: u32, name: u128) {
        if self.names.len() >= self.owners.len() {
            let mut names = std::mem::take(&mut self.names);
            names.retain(|block, _| self.has_any(*block));
            self.names = names;
        }
        if self.names.len() < self.owners.len() {
            self.names.insert(block, name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Element;
    use super::*;

    const KEYS: KeyLayout = KeyLayout {
        element: Element::F32,
        heads: 2,
        channels: 4,
        tile_tokens: 2,
        offset: 0,
        head_stride: 32,
        tile_stride: 0,
        token_stride: 16,
        channel_stride: 4,
    };

    fn options(pages: u32) -> DigestOptions {
        DigestOptions { keys: KEYS, pages, groups: 2, bounds: true }
    }

    fn page(value: f32) -> Vec<u8> {
        (0..16).flat_map(|i| (value + i as f32).to_le_bytes()).collect()
    }

    fn digests(pages: u32) -> Digests {
        Digests::new(&options(pages), 8, 2, 2).expect("small")
    }

    /// The bound of the query (1, 0, 0, 0) in a head.
    fn bound(digests: &Digests, page: u32, head: usize) -> f32 {
        let (_, bound) = digests.get(page, head).expect("built");
        digest::bound(&[1.0, 0.0, 0.0, 0.0], bound).expect("sizes")
    }

    /// What the sketch makes of the same.
    fn sum(digests: &Digests, page: u32, head: usize) -> f32 {
        let mut sums = [0.0];
        let (sketch, _) = digests.get(page, head).expect("built");
        sketch::score(&[1.0, 0.0, 0.0, 0.0], 4, sketch, 1.0, &mut sums).expect("sizes");
        sums[0]
    }

    #[test]
    fn each_head_of_a_page_has_its_digest() {
        let mut digests = digests(4);
        assert!(digests.get(3, 0).is_none() && !digests.has(3));
        digests.build(3, &page(1.0));
        // First channels of head 0: 1 and 5; of head 1: 9 and 13.
        assert!((5.0..5.2).contains(&bound(&digests, 3, 0)) && (13.0..13.4).contains(&bound(&digests, 3, 1)));
        let exact = |a: f32, b: f32| (a.exp() + b.exp()).ln();
        let off = [sum(&digests, 3, 0) - exact(1.0, 5.0), sum(&digests, 3, 1) - exact(9.0, 13.0)];
        assert!(off.iter().all(|off| off.abs() < 2.0), "{off:?}");
        digests.build(3, &page(3.0));
        assert!((7.0..7.2).contains(&bound(&digests, 3, 0)), "built over what was there");
        assert_eq!(digests.held(), 1);
        assert!(digests.get(1000, 0).is_none() && digests.get(3, 2).is_none());
        digests.build(1000, &page(0.0)); // no such page: nothing
    }

    #[test]
    fn what_is_not_looked_at_makes_room() {
        let mut digests = digests(3);
        (0..3).for_each(|p| digests.build(p, &page(p as f32)));
        digests.build(3, &page(3.0)); // every slot is fresh: the hand goes round once and takes the first
        assert!(!digests.has(0) && (1..4).all(|p| digests.has(p)));
        assert!(digests.get(1, 1).is_some());
        digests.build(4, &page(4.0));
        assert!(digests.has(1) && !digests.has(2), "looked at since the hand came by");
        assert_eq!(digests.held(), 3);
        assert!(bound(&digests, 4, 0) >= 8.0);
    }

    #[test]
    fn a_block_with_other_content_is_another_block() {
        let mut digests = digests(8);
        for page_id in [4, 5, 6] {
            digests.build(page_id, &page(1.0));
        }
        digests.named(2, 77);
        digests.mapped(2, 77, 0..2);
        assert!(digests.has(4) && digests.has(5), "the same content came back");
        digests.mapped(2, 78, 0..2);
        assert!(!digests.has(4) && !digests.has(5) && digests.has(6));
        digests.build(4, &page(2.0));
        digests.mapped(2, 78, 0..2);
        assert!(digests.has(4), "mapped content has its name at once");
        digests.mapped(3, 9, 0..2);
        assert!(!digests.has(6), "nobody named it: it may be anything");
        digests.forget(2);
        digests.mapped(2, 78, 0..2);
        assert!(!digests.has(4));
        // Names are as many as pages with digests may be; those of blocks that have none make room.
        (0..8).for_each(|block| digests.mapped(block, 5, 0..2));
        digests.build(0, &page(1.0));
        digests.mapped(7, 6, 0..2);
        digests.mapped(0, 5, 0..2);
        assert!(digests.has(0), "its name was kept");
    }

    #[test]
    fn what_came_from_elsewhere_owes_its_digests_until_they_were_built_once() {
        let mut digests = digests(1);
        digests.mapped(1, 7, 0..2);
        assert!(digests.owes(2) && digests.owes(3) && !digests.has(2) && digests.get(2, 0).is_none());
        assert_eq!((digests.owed(), digests.held()), (2, 0));
        digests.mapped(1, 7, 0..2);
        assert_eq!(digests.owed(), 2, "the same content again");
        digests.build(2, &page(1.0));
        digests.build(3, &page(2.0)); // there is one slot
        assert!(!digests.owes(2) && !digests.has(2) && digests.has(3), "it had its turn");
        assert_eq!((digests.owed(), digests.held()), (0, 1));
        digests.mapped(1, 8, 0..1);
        assert!(digests.owes(2) && !digests.owes(3), "of one plane alone");
        digests.forget(1);
        digests.owe([2, 2, 1000].into_iter()); // no such page
        assert_eq!(digests.owed(), 1);
        digests.build(2, &page(1.0));
        digests.owe(std::iter::once(2));
        assert_eq!((digests.owed(), digests.has(2)), (0, true), "it has them");
        digests.mapped(2, 9, 0..2);
        assert!(digests.owing(2) && !digests.owing(1) && !digests.owing(1000));
        digests.forgive(1);
        digests.forgive(2);
        assert!(!digests.owing(2) && digests.has(2), "of nobody");
        assert_eq!((digests.owed(), digests.held()), (0, 1));
    }

    #[test]
    fn digests_take_the_place_of_frames() {
        // A head: two groups of 2 + 2 bytes, and a bound of 20.
        let all = options(100);
        assert_eq!((all.bytes(), all.frames(64), all.frames(1 << 20)), (100 * 56, 88, 1));
        let sketches = DigestOptions { bounds: false, ..all };
        assert_eq!((sketches.page_bytes(), DigestOptions { groups: 0, ..all }.page_bytes()), (16, 40));
        let digests = Digests::new(&sketches, 8, 2, 2).map(|mut digests| {
            digests.build(1, &page(0.0));
            digests
        });
        let digests = digests.expect("small");
        assert!(digests.get(1, 0).is_some_and(|(sketch, bound)| sketch.len() == 8 && bound.is_empty()));
    }
}
