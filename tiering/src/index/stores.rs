//! Parents of stores in progress. If such a parent is dropped, the store fails: it is evicted after all other entries.

use crate::index::PrefixIndex;
use crate::mutants::{self, Mutant};
use crate::sessions::{Phase, Store, Work};
use crate::tables::index::ShardCopy;
use std::collections::BTreeMap;

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

    /// A store adds children to the entry with this hash (0: none): evict the entry after all others until the store ends.
    pub(crate) fn hold_parent(&mut self, above: u128) {
        if above != 0 && !mutants::on(Mutant::DropsParentsOfStores) {
            self.index.hold(above);
        }
    }

    /// End that, if the request is a store that has not ended it yet.
    pub(crate) fn release_parent(&mut self, s: u16, op: u32) {
        let Work::Store(store) = self.op(s, op).work else { return };
        self.set_work(s, op, Store { above: 0, ..store });
        if store.above != 0 && !mutants::on(Mutant::DropsParentsOfStores) {
            self.index.release(store.above);
        }
    }

    /// Check that each store in progress holds the entry to which it adds children.
    pub(crate) fn check_parents_of_stores(&self) -> Result<(), String> {
        let ops = self.sessions().iter().flat_map(|session| &session.ops.recs);
        let mut counted: BTreeMap<u128, u32> = BTreeMap::new();
        for op in ops.filter(|op| matches!(op.phase, Phase::Admission | Phase::Copying)) {
            if let Work::Store(Store { above: above @ 1.., .. }) = op.work {
                *counted.entry(above).or_default() += 1;
            }
        }
        match mutants::on(Mutant::DropsParentsOfStores) || counted == *self.index.held() {
            true => Ok(()),
            false => Err(format!("parents of stores: {:?}, counted {counted:?}", self.index.held())),
        }
    }
}
