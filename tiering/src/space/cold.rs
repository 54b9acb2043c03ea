//! Contents that are only on NVMe have no block: they become so when block ids run short, and get one again when they are mapped.

use super::Core;
use super::content::NEAR;
use super::keep::Why;
use crate::api::{BlockId, NONE};
use crate::pages::{BlockState, Link, Logged, Part, Place};

/// One of so many block ids is kept free if that costs nothing.
const SPARE: u32 = 16;
/// Contents whose blocks one look takes back: those that cannot be taken are passed over once for all of them.
const LOOK_MAX: usize = 64;
/// Contents whose blocks are taken back for one that needs one: the next ones of its prefix need theirs too.
const HEAT_MAX: usize = 16;

impl Core {
    /// Whether everything of the block is on NVMe and in its log, and nobody needs it elsewhere.
    fn may_cool(&self, b: BlockId) -> bool {
        let block = &self.blocks[b];
        let idle = block.state == BlockState::Sealed && block.content != NONE && block.refs() == 0 && block.holds == 0;
        let kept =
            |at: u32| at != NONE && self.disk.logged(at) == Logged::Recorded && self.disk.place(at) == Place::Hot;
        idle && kept(block.slot)
            && self.pages_of(b).all(|page| self.pages[page as usize].on_disk() || self.pages[page as usize].retired())
    }

    /// Whether the block may cool and its id is free at once then: no tier 0 has to drop it first.
    fn may_cool_at_once(&self, b: BlockId) -> bool {
        self.may_cool(b) && self.pages_of(b).all(|page| self.pages[page as usize].frame == NONE)
    }

    /// Takes the blocks of the least recently used contents that can do without, until so many ids are free or on their way. They
    /// are free as soon as no tier 0 shows them. False when it took none, or no more were near.
    pub(crate) fn cool_contents(&mut self, ids: u32) -> bool {
        let mut found = [NONE; LOOK_MAX];
        let most = LOOK_MAX.min(self.ids_short(ids) as usize);
        let count = self.coolable(&mut found[..most], Core::may_cool);
        for &c in &found[..count] {
            if self.ids_short(ids) == 0 {
                break;
            }
            self.cool_blocks(c);
        }
        count > 0 && count == most
    }

    /// How many block ids are missing for `ids` to be free, now or soon.
    pub(crate) fn ids_short(&self, ids: u32) -> u32 {
        ids.saturating_sub(self.blocks.free_ids() + self.blocks.dying)
    }

    /// The least recently used contents of which a block may be taken, into `found`, and how many; none that is not near.
    fn coolable(&self, found: &mut [u32], may: fn(&Core, BlockId) -> bool) -> usize {
        let (mut count, mut passed) = (0, 0);
        if !self.has_nvme() || found.is_empty() {
            return 0;
        }
        for c in self.index.idle() {
            if self.parts(c).filter_map(Part::block).any(|b| may(self, b)) {
                found[count] = c;
                count += 1;
            } else {
                passed += 1;
            }
            if count == found.len() || passed == NEAR {
                break;
            }
        }
        count
    }

    fn cool_blocks(&mut self, c: u32) {
        loop {
            let found = self.parts(c).filter_map(Part::block).find(|&b| self.may_cool(b));
            let Some(b) = found else { return };
            self.cool_block(c, b);
        }
    }

    fn cool_block(&mut self, c: u32, b: BlockId) {
        let block = self.blocks[b];
        let at = block.slot;
        for (i, &plane) in self.geo.windowed.iter().enumerate() {
            let retired = self.pages[self.geo.page(b, plane) as usize].retired();
            self.disk.set_windowed(at, i, !retired);
        }
        self.index.cooled(c);
        self.disk.cool(at, c, block.shard, block.next_part.get());
        self.replace_part(c, Part::Hot(b), Part::Cold(at));
        let block = &mut self.blocks[b];
        (block.content, block.next_part, block.slot) = (NONE, Link::default(), NONE);
        self.counters.cooled += 1;
        self.die(b);
    }

    /// Gives a part of a content that is only on NVMe a block. `None`: no id is free.
    pub(crate) fn heat(&mut self, c: u32, at: u32) -> Option<BlockId> {
        if self.blocks.free_ids() == 0 {
            self.make_room_at_once();
        }
        let b = self.alloc_block(self.disk.shard(at))?;
        let next = self.disk.next_part(at);
        self.index.heated(c);
        self.replace_part(c, Part::Cold(at), Part::Hot(b));
        self.disk.heat(at, b);
        let block = &mut self.blocks[b];
        (block.state, block.content, block.slot, block.next_part) = (BlockState::Sealed, c, at, Link::to(next));
        for page in self.pages_of(b) {
            self.pages[page as usize].set_on_disk(true);
        }
        for i in 0..self.geo.windowed.len() {
            if !self.disk.has_windowed(at, i) {
                let page = self.geo.page(b, self.geo.windowed[i]);
                self.pages[page as usize].set_on_disk(false);
                self.pages[page as usize].set_retired();
                self.blocks[b].thinned = true;
            }
        }
        self.counters.heated += 1;
        self.keep(b, Why::Mapped);
        Some(b)
    }

    /// Makes some block ids free for a lookup, which waits for no tier 0: what a first queue has may all be there. If there are none,
    /// one is on its way for the next.
    fn make_room_at_once(&mut self) {
        let mut found = [NONE; HEAT_MAX];
        let count = self.coolable(&mut found, Core::may_cool_at_once);
        found[..count].iter().for_each(|&c| self.cool_blocks(c));
        if count == 0 {
            self.cool_contents(self.blocks.free_ids() + self.blocks.dying + 1);
        }
    }

    /// Keeps some block ids free, as long as that costs nothing.
    pub(crate) fn trim_blocks(&mut self) {
        self.cool_contents(self.blocks.max / SPARE);
    }
}
