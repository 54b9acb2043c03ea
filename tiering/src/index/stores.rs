//! Parents of stores in progress: if one is dropped, its store fails.

use crate::api::NONE;
use crate::index::PrefixIndex;
use crate::mutants::{self, Mutant};
use crate::sessions::Work;
use crate::tables::index::ShardCopy;

impl PrefixIndex {
    /// Return false if the block after `parent` is known to have another index in its prefix. A parent whose copies are all on NVMe
    /// alone has none that is known.
    pub(crate) fn is_next(&self, s: u16, first: u32, parent: u128) -> bool {
        let shard = self.session(s).shard;
        match self.index.find(parent).and_then(|c| self.copy_of(c, shard)) {
            Some(ShardCopy::Block(b)) => self.block(b).depth.checked_add(1) == Some(first),
            Some(ShardCopy::IndexOnly(_) | ShardCopy::End) | None => true,
        }
    }

    /// Iterate over the hashes of the parents of stores in progress. If such a parent is dropped, the store fails.
    fn parents_of_stores(&self) -> impl Iterator<Item = u128> + '_ {
        self.sessions().iter().flat_map(|session| {
            let ops = &session.ops;
            let under_way = ops.copying.iter(&ops.recs).chain(ops.admission.iter(&ops.recs));
            under_way.filter_map(|op| match ops[op].work {
                Work::Store(store) if store.above != 0 => Some(store.above),
                _ => None,
            })
        })
    }

    /// Return whether a cache entry is the parent of a store in progress.
    pub(crate) fn is_parent_of_store(&self, c: u32) -> bool {
        let hash = self.index.hash(c);
        !mutants::on(Mutant::DropsParentsOfStores) && self.parents_of_stores().any(|above| above == hash)
    }

    /// Replace by `NONE` the entries that are the parent of a store in progress, or an ancestor of one.
    pub(crate) fn remove_parents_of_stores(&self, entries: &mut [u32]) {
        if entries.is_empty() || mutants::on(Mutant::DropsParentsOfStores) {
            return;
        }
        for hash in self.parents_of_stores() {
            for c in self.index.prefix(self.index.find(hash).unwrap_or(NONE)) {
                entries.iter_mut().filter(|found| **found == c).for_each(|found| *found = NONE);
            }
        }
    }
}
