//! Cached content that lacks pages of windows: a sequence published it after its window had moved on. It is read by those whose window
//! begins behind it, and replaced as soon as somebody publishes or stores the same content with more of its pages, unless NVMe has it.

use super::Core;
use crate::api::{BlockId, NONE, PlaneKind};
use crate::mutants::{self, Mutant};
use crate::pages::{Keep, Link, Part};

impl Core {
    /// Whether a part of a content has its page of the `i`th windowed plane.
    fn has_window(&self, part: Part, i: usize) -> bool {
        match part {
            Part::End => false,
            Part::Hot(b) => !self.pages[self.geo.page(b, self.geo.windowed[i]) as usize].retired(),
            Part::Cold(at) => self.disk.has_windowed(at, i),
        }
    }

    /// Whether a part lacks its page of some windowed plane, of those that `wanted` says.
    pub(crate) fn lacks_window(&self, part: Part, wanted: impl Fn(u16) -> bool) -> bool {
        let whole = matches!(part, Part::Hot(b) if !self.blocks[b].thinned);
        !whole && (0..self.geo.windowed.len()).any(|i| wanted(self.geo.windowed[i]) && !self.has_window(part, i))
    }

    /// Whether a part that lacks pages of windows may give way to a block that has them. Not what NVMe has, or is to have: its record would
    /// have to go before the new one counts, and with it, after a crash between the two, all that stands on it.
    pub(crate) fn may_give_way(&self, part: Part) -> Option<BlockId> {
        let Part::Hot(o) = part else { return None };
        let block = &self.blocks[o];
        let unkept = block.slot == NONE && block.keep == Keep::No && !block.waited;
        (unkept && self.lacks_window(part, |_| true) && !mutants::on(Mutant::ThinStays)).then_some(o)
    }

    /// The block that gives way to `b`, which is to be published: `b` has all pages that a part of the same content has, and more, and is
    /// no easier lost.
    pub(crate) fn gives_way(&self, part: Part, b: BlockId) -> Option<BlockId> {
        let o = self.may_give_way(part)?;
        let below =
            |b: BlockId| self.pages_of(b).all(|p| self.pages[p as usize].retired() || self.pages[p as usize].below());
        let (mine, windowed) = (Part::Hot(b), 0..self.geo.windowed.len());
        let has_more = !self.has_holes(b)
            && windowed.clone().all(|i| self.has_window(mine, i) || !self.has_window(part, i))
            && windowed.clone().any(|i| self.has_window(mine, i) && !self.has_window(part, i));
        (has_more && (below(b) || !below(o))).then_some(o)
    }

    /// Whether a page of the block was given up that no window has left behind.
    pub(crate) fn has_holes(&self, b: BlockId) -> bool {
        let full = |plane: u16| self.geo.planes[usize::from(plane)].kind == PlaneKind::Full;
        (0..self.geo.planes.len() as u16)
            .any(|plane| full(plane) && self.pages[self.geo.page(b, plane) as usize].retired())
    }

    /// Block `b` takes the place of block `o` as its shard's part of content `c`. Who refers to the old one reads on there; it goes with the
    /// last of them.
    pub(crate) fn replace_with(&mut self, c: u32, o: BlockId, b: BlockId, depth: u32) {
        let was_active = self.blocks[o].refs() > 0;
        (self.blocks[b].content, self.blocks[b].depth) = (c, depth);
        self.blocks[b].next_part = Link::to(self.part_after(Part::Hot(o)));
        self.replace_part(c, Part::Hot(o), Part::Hot(b));
        match (was_active, self.blocks[b].refs() > 0) {
            (false, true) => self.index.activate(c),
            (true, false) => self.index.deactivate(c),
            _ => {}
        }
        self.unpublish_block(o, c);
    }
}
