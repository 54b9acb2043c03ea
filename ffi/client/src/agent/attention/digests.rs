//! Digests that a session keeps in the engine's memory: bounded, one slot for each page. The least recently used slot is reused
//! first.

use super::KeyLayout;
use crate::agent::protocol::zeroed;
use kvtide_wire::{
    digest::sketch,
    sync::{AtomicU32, Ordering},
};
use std::collections::HashMap;

/// Options for the digests of keys that a session keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestOptions {
    /// Where keys are in pages.
    pub keys: KeyLayout,
    /// Number of pages with digests. Nothing is known of other pages once they have left tier 0. The memory for digests is
    /// taken from tier 0's frames.
    pub pages: u32,
    /// Groups of a head's sketch, by which `approx` picks, at least 1. [`sketch::groups`] returns how many fit into 5 % of a
    /// page.
    pub groups: u16,
}

impl DigestOptions {
    fn head_bytes(&self) -> usize {
        sketch::bytes(usize::from(self.keys.channels), usize::from(self.groups))
    }

    /// Return the size of one page's digests in bytes.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        usize::from(self.keys.heads) * self.head_bytes()
    }

    /// Return the size of all digests in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.pages) * self.page_bytes() as u64
    }

    /// Return how many frames of a class with pages of `stride` bytes are given up for the digests.
    #[must_use]
    pub fn frames(&self, stride: u32) -> u32 {
        u32::try_from(self.bytes().div_ceil(u64::from(stride.max(1)))).unwrap_or(u32::MAX)
    }
}

/// A page without a slot, or a slot without a page.
const NOBODY: u32 = 0;
/// In place of a slot: the page came from elsewhere and its keys were not yet read here, so its digests still have to be built.
const OWED: u32 = u32::MAX;

/// The digests of a session's pages, by page id.
pub struct Digests {
    keys: KeyLayout,
    page_tokens: u32,
    planes: u32,
    /// Bytes of a page's digests, and of one head's digest within it.
    bytes: usize,
    head_bytes: usize,
    /// Slot + 1 of each page, [`NOBODY`] or [`OWED`].
    slots: Box<[u32]>,
    /// Number of pages marked [`OWED`], in total and in each block.
    owed: u32,
    owing: Box<[u32]>,
    /// Page + 1 of each slot.
    owners: Box<[u32]>,
    /// Nonzero if the slot was used since the clock hand passed it.
    used: Box<[AtomicU32]>,
    hand: usize,
    /// Slots that have an owner.
    held: u32,
    /// Content names of the blocks that have digests, as far as they are named.
    names: HashMap<u32, u128>,
    data: Box<[u8]>,
    read: Vec<f32>,
    scratch: Vec<f32>,
}

impl Digests {
    /// Allocate digests for a space of `blocks_max` blocks, each with `planes` pages of `page_tokens` tokens. Return `None` if
    /// the system has no memory.
    #[must_use]
    pub fn new(options: &DigestOptions, blocks_max: u32, planes: u32, page_tokens: u32) -> Option<Digests> {
        let mut digests = Digests::elsewhere(options, blocks_max, planes, page_tokens)?;
        let mut data = Vec::new();
        data.try_reserve_exact(digests.bytes.checked_mul(digests.owners.len())?).ok()?;
        data.resize(digests.bytes * digests.owners.len(), 0); // touch the memory now, not when a step first seals a page
        digests.data = data.into_boxed_slice();
        Some(digests)
    }

    /// Create the slot bookkeeping without the digests themselves, for digests that a device keeps.
    #[must_use]
    pub fn elsewhere(options: &DigestOptions, blocks_max: u32, planes: u32, page_tokens: u32) -> Option<Digests> {
        let (bytes, pages) = (options.page_bytes(), options.pages as usize);
        let (channels, groups) = (usize::from(options.keys.channels), usize::from(options.groups));
        Some(Digests {
            keys: options.keys,
            page_tokens,
            planes,
            bytes,
            head_bytes: options.head_bytes(),
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

    /// Return where keys are in pages.
    #[must_use]
    pub fn keys(&self) -> &KeyLayout {
        &self.keys
    }

    /// Return how many pages have digests now.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Return a head's digest of a page: its sketch.
    #[must_use]
    pub fn get(&self, page: u32, head: usize) -> Option<&[u8]> {
        let slot = self.place(page)? as usize;
        self.data.get(slot * self.bytes..)?.get(..self.bytes)?.chunks_exact(self.head_bytes).nth(head)
    }

    /// Return the slot of a page's digests, and mark it as used; `None` if the page has none.
    #[must_use]
    pub fn place(&self, page: u32) -> Option<u32> {
        let slot = self.slot_of(page)?;
        self.used[slot].store(1, Ordering::Relaxed);
        Some(slot as u32)
    }

    /// Assign a slot to a page, before its digests are built.
    pub fn take(&mut self, page: u32) -> Option<u32> {
        self.slot(page).map(|slot| slot as u32)
    }

    /// Free a slot without built digests. If `owed`, its page is marked as still to be built.
    pub fn void(&mut self, place: u32, owed: bool) {
        if let Some(page) = self.owners.get(place as usize).and_then(|owner| owner.checked_sub(1)) {
            self.free(page);
            self.owe(owed.then_some(page).into_iter());
        }
    }

    /// Report whether a page has digests. Does not count as a use.
    #[must_use]
    pub fn has(&self, page: u32) -> bool {
        self.slot_of(page).is_some()
    }

    fn slot_of(&self, page: u32) -> Option<usize> {
        self.slots.get(page as usize).filter(|slot| **slot != OWED)?.checked_sub(1).map(|slot| slot as usize)
    }

    /// Report whether a page came from elsewhere and its digests were not built since. Nothing is known of it until it is read
    /// once.
    #[must_use]
    pub fn owes(&self, page: u32) -> bool {
        self.slots.get(page as usize) == Some(&OWED)
    }

    /// Return how many pages still need their digests built.
    #[must_use]
    pub fn owed(&self) -> u32 {
        self.owed
    }

    /// Report whether a page of a block still needs its digests built.
    #[must_use]
    pub fn owing(&self, block: u32) -> bool {
        self.owing.get(block as usize).is_some_and(|pages| *pages > 0)
    }

    /// Drop the block's pending digests: no sequence will read it.
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

    /// Mark pages that came from elsewhere as needing digests, except those that have some.
    pub fn owe(&mut self, pages: impl Iterator<Item = u32>) {
        for page in pages {
            if let Some(slot) = self.slots.get_mut(page as usize).filter(|slot| **slot == NOBODY) {
                *slot = OWED;
                self.owed += 1;
                self.owing[page as usize / self.planes as usize] += 1;
            }
        }
    }

    /// Build the digests of a full page, replacing older ones.
    pub fn build(&mut self, page: u32, bytes: &[u8]) {
        let Some(slot) = self.slot(page).filter(|_| !self.data.is_empty()) else { return };
        let channels = usize::from(self.keys.channels);
        let digests = &mut self.data[slot * self.bytes..][..self.bytes];
        let mut built = true;
        for (head, digest) in digests.chunks_exact_mut(self.head_bytes).enumerate() {
            self.keys.read(bytes, head as u16, self.page_tokens, &mut self.read);
            built &= sketch::build(&self.read, channels, &mut self.scratch, digest).is_ok();
        }
        if !built {
            self.free(page); // cannot happen: sizes are checked when the session begins
        }
    }

    /// Return the slot of a page, or assign one. If every slot has an owner, evict the first that was not used since the hand
    /// last passed.
    fn slot(&mut self, page: u32) -> Option<usize> {
        if let Some(slot) = self.slot_of(page) {
            return Some(slot);
        }
        self.free(page); // clears a pending mark; a page out of range gets no slot below
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

    /// Drop a block's digests and name: it has new content.
    pub fn forget(&mut self, block: u32) {
        self.names.remove(&block);
        (0..self.planes).for_each(|plane| self.free(block * self.planes + plane));
    }

    /// Report whether a page of a block has digests.
    #[must_use]
    pub fn has_any(&self, block: u32) -> bool {
        let first = block.saturating_mul(self.planes);
        (first..first.saturating_add(self.planes)).any(|page| self.has(page))
    }

    /// Record the content name of one of our blocks that was sealed.
    pub fn named(&mut self, block: u32, name: u128) {
        if self.has_any(block) {
            self.keep_name(block, name);
        }
    }

    /// Record that a block was attached with the content `name`. If it had other content before, drop its digests and mark
    /// those of `planes` to be built.
    pub fn mapped(&mut self, block: u32, name: u128, planes: impl Iterator<Item = u32>) {
        if self.names.get(&block) != Some(&name) {
            self.forget(block);
            let first = block * self.planes;
            self.owe(planes.map(|plane| first + plane));
            self.keep_name(block, name);
        }
    }

    /// Store a name. There are at most as many names as slots; names of blocks without digests are removed to make room.
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
        DigestOptions { keys: KEYS, pages, groups: 2 }
    }

    fn page(value: f32) -> Vec<u8> {
        (0..16).flat_map(|i| (value + i as f32).to_le_bytes()).collect()
    }

    fn digests(pages: u32) -> Digests {
        Digests::new(&options(pages), 8, 2, 2).expect("small")
    }

    /// Return the sketch's score for the query (1, 0, 0, 0) in a head.
    fn sum(digests: &Digests, page: u32, head: usize) -> f32 {
        let mut sums = [0.0];
        let sketch = digests.get(page, head).expect("built");
        sketch::score(&[1.0, 0.0, 0.0, 0.0], 4, sketch, 1.0, &mut sums).expect("sizes");
        sums[0]
    }

    #[test]
    fn each_head_of_a_page_has_its_digest() {
        let mut digests = digests(4);
        assert!(digests.get(3, 0).is_none() && !digests.has(3));
        digests.build(3, &page(1.0));
        // First channels of head 0: 1 and 5; of head 1: 9 and 13.
        let exact = |a: f32, b: f32| (a.exp() + b.exp()).ln();
        let off = [sum(&digests, 3, 0) - exact(1.0, 5.0), sum(&digests, 3, 1) - exact(9.0, 13.0)];
        assert!(off.iter().all(|off| off.abs() < 2.0), "{off:?}");
        digests.build(3, &page(7.0));
        assert!((sum(&digests, 3, 0) - exact(7.0, 11.0)).abs() < 2.0, "the new digest replaces the old one");
        assert_eq!(digests.held(), 1);
        assert!(digests.get(1000, 0).is_none() && digests.get(3, 2).is_none());
        digests.build(1000, &page(0.0)); // no such page: no effect
    }

    #[test]
    fn what_is_not_looked_at_makes_room() {
        let mut digests = digests(3);
        (0..3).for_each(|p| digests.build(p, &page(p as f32)));
        digests.build(3, &page(3.0)); // every slot is in use: the hand passes all once and takes the first
        assert!(!digests.has(0) && (1..4).all(|p| digests.has(p)));
        assert!(digests.get(1, 1).is_some());
        digests.build(4, &page(4.0));
        assert!(digests.has(1) && !digests.has(2), "page 1 was used since the hand passed");
        assert_eq!(digests.held(), 3);
        assert!((sum(&digests, 4, 0) - (4f32.exp() + 8f32.exp()).ln()).abs() < 2.0);
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
        assert!(digests.has(4), "attached content is named at once");
        digests.mapped(3, 9, 0..2);
        assert!(!digests.has(6), "without a name its content is unknown");
        digests.forget(2);
        digests.mapped(2, 78, 0..2);
        assert!(!digests.has(4));
        // There are at most as many names as pages with digests; names of blocks without digests are removed to make room.
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
        assert!(!digests.owes(2) && !digests.has(2) && digests.has(3), "its digest was built once and then evicted");
        assert_eq!((digests.owed(), digests.held()), (0, 1));
        digests.mapped(1, 8, 0..1);
        assert!(digests.owes(2) && !digests.owes(3), "only one plane is marked");
        digests.forget(1);
        digests.owe([2, 2, 1000].into_iter()); // no such page
        assert_eq!(digests.owed(), 1);
        digests.build(2, &page(1.0));
        digests.owe(std::iter::once(2));
        assert_eq!((digests.owed(), digests.has(2)), (0, true), "the page has digests");
        digests.mapped(2, 9, 0..2);
        assert!(digests.owing(2) && !digests.owing(1) && !digests.owing(1000));
        digests.forgive(1);
        digests.forgive(2);
        assert!(!digests.owing(2) && digests.has(2), "no sequence reads block 2, so nothing is pending");
        assert_eq!((digests.owed(), digests.held()), (0, 1));
    }

    #[test]
    fn digests_take_the_place_of_frames() {
        // One head takes two groups of 2 + 2 bytes.
        let options = options(100);
        assert_eq!((options.page_bytes(), options.bytes()), (16, 1600));
        assert_eq!((options.frames(64), options.frames(1 << 20)), (25, 1));
    }
}
