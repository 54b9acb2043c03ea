//! Partial entries: cached entries without some pages of sliding-window planes, because their sequence published them after its
//! window had moved on. Readers with a window that begins after the missing pages can use them. A publish or store of the same
//! entry with more pages replaces a partial entry, unless NVMe has it.

use crate::api::{BlockId, NONE};
use crate::blocks::PersistState;
use crate::index::PrefixIndex;
use crate::mutants::{self, Mutant};
use crate::tables::index::ShardCopy;

impl PrefixIndex {
    /// Return whether a shard copy has its page of the `i`th windowed plane.
    fn has_windowed_page(&self, copy: ShardCopy, i: usize) -> bool {
        match copy {
            ShardCopy::End => false,
            ShardCopy::Block(b) => !self.page(self.geo().page(b, self.geo().windowed[i])).out_of_window(),
            ShardCopy::IndexOnly(at) => self.disk.has_windowed(at, i),
        }
    }

    /// Return whether a shard copy lacks its page of some windowed plane for which `wanted` returns true.
    pub(crate) fn is_partial(&self, copy: ShardCopy, wanted: impl Fn(u16) -> bool) -> bool {
        let whole = matches!(copy, ShardCopy::Block(b) if !self.block(b).partial);
        !whole
            && (0..self.geo().windowed.len())
                .any(|i| wanted(self.geo().windowed[i]) && !self.has_windowed_page(copy, i))
    }

    /// Return the block of a partial shard copy that may be superseded. A copy that NVMe has, or is about to have, may not: its
    /// record would have to be erased before the new one is valid. A crash between the two would lose all its descendants.
    pub(crate) fn may_be_superseded(&self, copy: ShardCopy) -> Option<BlockId> {
        let ShardCopy::Block(o) = copy else { return None };
        let block = self.block(o);
        let unpersisted = block.slot == NONE && block.persist == PersistState::No && !block.waited;
        (unpersisted && self.is_partial(copy, |_| true) && !mutants::on(Mutant::PartialStays)).then_some(o)
    }

    /// Return the block that `b`, which is to be published, supersedes. `b` must have all pages of the other copy and more, and
    /// must not be easier to lose.
    pub(crate) fn superseded_by(&self, copy: ShardCopy, b: BlockId) -> Option<BlockId> {
        let o = self.may_be_superseded(copy)?;
        let below = |b: BlockId| self.pages_of(b).all(|p| self.page(p).out_of_window() || self.page(p).below());
        let (mine, windowed) = (ShardCopy::Block(b), 0..self.geo().windowed.len());
        let has_more = windowed.clone().all(|i| self.has_windowed_page(mine, i) || !self.has_windowed_page(copy, i))
            && windowed.clone().any(|i| self.has_windowed_page(mine, i) && !self.has_windowed_page(copy, i));
        (has_more && (below(b) || !below(o))).then_some(o)
    }

    /// Replace block `o` by block `b` as its shard's copy of entry `c`. Sequences that refer to `o` continue to read it; it is
    /// released with the last reference.
    pub(crate) fn replace_with(&mut self, c: u32, o: BlockId, b: BlockId, depth: u32) {
        let was_active = self.block(o).refs() > 0;
        let next = self.copy_after(ShardCopy::Block(o));
        self.set_entry(b, c, next);
        self.set_depth(b, depth);
        self.replace_copy(c, ShardCopy::Block(o), ShardCopy::Block(b));
        match (was_active, self.block(b).refs() > 0) {
            (false, true) => self.index.activate(c),
            (true, false) => self.index.deactivate(c),
            _ => {}
        }
        self.detach_block(o, c);
    }
}
