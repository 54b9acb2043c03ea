//! Partial entries: cached entries without some pages of sliding-window planes, because their sequence published them after its
//! window had moved on. Readers with a window that begins after the missing pages can use them. A publish or store of the same
//! entry with more pages replaces a partial entry, unless NVMe has it.

use super::Core;
use crate::api::{BlockId, NONE, PlaneKind};
use crate::mutants::{self, Mutant};
use crate::pages::{Keep, Link, Part};

impl Core {
    /// Return whether a shard copy has its page of the `i`th windowed plane.
    fn has_window(&self, part: Part, i: usize) -> bool {
        match part {
            Part::End => false,
            Part::Hot(b) => !self.pages[self.geo.page(b, self.geo.windowed[i]) as usize].retired(),
            Part::Cold(at) => self.disk.has_windowed(at, i),
        }
    }

    /// Return whether a shard copy lacks its page of some windowed plane for which `wanted` returns true.
    pub(crate) fn lacks_window(&self, part: Part, wanted: impl Fn(u16) -> bool) -> bool {
        let whole = matches!(part, Part::Hot(b) if !self.blocks[b].thinned);
        !whole && (0..self.geo.windowed.len()).any(|i| wanted(self.geo.windowed[i]) && !self.has_window(part, i))
    }

    /// Return the block of a partial shard copy that may be superseded. A copy that NVMe has, or is about to have, may not: its
    /// record would have to be erased before the new one is valid. A crash between the two would lose all its descendants.
    pub(crate) fn may_give_way(&self, part: Part) -> Option<BlockId> {
        let Part::Hot(o) = part else { return None };
        let block = &self.blocks[o];
        let unkept = block.slot == NONE && block.keep == Keep::No && !block.waited;
        (unkept && self.lacks_window(part, |_| true) && !mutants::on(Mutant::ThinStays)).then_some(o)
    }

    /// Return the block that `b`, which is to be published, supersedes. `b` must have all pages of the other copy and more, and
    /// must not be easier to lose.
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

    /// Return whether the block gave up a page of a plane without a window.
    pub(crate) fn has_holes(&self, b: BlockId) -> bool {
        let full = |plane: u16| self.geo.planes[usize::from(plane)].kind == PlaneKind::Full;
        (0..self.geo.planes.len() as u16)
            .any(|plane| full(plane) && self.pages[self.geo.page(b, plane) as usize].retired())
    }

    /// Replace block `o` by block `b` as its shard's copy of entry `c`. Sequences that refer to `o` continue to read it; it is
    /// released with the last reference.
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
