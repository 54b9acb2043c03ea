//! What operators ask of a space: where a cached block is, that it stays, that it goes.

use crate::api::{Cause, NONE, SessionId};
use crate::counters::ByTier;
use crate::index::PrefixIndex;
use crate::tables::index::ShardCopy;
use serde::{Deserialize, Serialize};

/// Share of the index that pinned prefixes may take: one in this number.
const PINNED_PART: u32 = 4;

/// Cached blocks evicted by one event.
const EVICTED_MAX: usize = 1024;

/// A cached block, over all shards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EntryStatus {
    /// Blocks before it in its prefix.
    pub position: u32,
    /// Bytes of it in each tier. A page can be in several tiers.
    pub bytes: ByTier,
    /// Shards that have it; it can be found if all have it.
    pub shards: u16,
    /// It can be found.
    pub whole: bool,
    /// References to it by sequences, leases and copies.
    pub references: u64,
    /// Sessions that use it; of blocks that several sessions use, the first one.
    pub sessions: Vec<SessionId>,
    /// Other blocks follow it.
    pub has_children: bool,
    /// It is part of a pinned prefix.
    pub pinned: bool,
    /// It is the last block of a pinned prefix.
    pub ends_pinned: bool,
}

impl PrefixIndex {
    /// Return what is known of a cached block.
    pub(crate) fn entry(&self, hash: u128) -> Option<EntryStatus> {
        let c = self.index.find(hash)?;
        let mut status = EntryStatus {
            position: self.index.prefix(c).count() as u32 - 1,
            shards: self.index.copies(c).all,
            whole: self.index.is_whole(c),
            has_children: !self.index.is_leaf(c),
            pinned: self.index.is_pinned(c),
            ends_pinned: self.index.ends_pinned(c),
            ..EntryStatus::default()
        };
        for copy in self.copies(c) {
            let b = match copy {
                ShardCopy::End => break,
                ShardCopy::IndexOnly(_) => {
                    status.bytes.nvme += self.disk.slot_bytes();
                    continue;
                }
                ShardCopy::Block(b) => b,
            };
            for page in self.pages_of(b) {
                let bytes = u64::from(self.geo().classes[usize::from(self.geo().class_of_page(page))].page_bytes);
                let page = self.page(page);
                status.bytes.tier0 += if page.frame == NONE { 0 } else { bytes };
                status.bytes.host += if page.host == NONE { 0 } else { bytes };
                status.bytes.nvme += if page.on_disk() { bytes } else { 0 };
            }
            let block = self.block(b);
            status.references += block.refs();
            if block.refs_home > 0 && !status.sessions.contains(&block.home) {
                status.sessions.push(block.home);
            }
        }
        Some(status)
    }

    /// Return the maximum number of cached blocks in pinned prefixes.
    pub(crate) fn pinned_max(&self) -> u32 {
        self.cfg().limits.entries_max / PINNED_PART
    }

    /// Evict a block with its descendants, or all blocks, as far as they are idle and not pinned.
    pub(crate) fn evict_some(&mut self, hash: Option<u128>) {
        let top =
            hash.map(|hash| self.index.find(hash).filter(|&c| !self.index.is_active(c) && !self.index.is_pinned(c)));
        let first = |core: &mut PrefixIndex, from| match top {
            None => core.index.first_leaf(),
            Some(top) => top.map(|top| core.index.leaf_of(if from == NONE { top } else { from })),
        };
        let mut next = first(self, NONE);
        for _ in 0..EVICTED_MAX {
            let Some(leaf) = next.filter(|&leaf| !self.index.is_held(leaf)) else { return };
            let above = self.index.parent(leaf);
            self.counters.evicted_by_hand += 1;
            self.remove_entry(leaf, Cause::Operator);
            next = if top == Some(Some(leaf)) { None } else { first(self, above) };
        }
    }
}
