//! Why blocks are not cached: notes for the history, and its answers.

use crate::api::{BlockId, Cause, NONE, Status, Tier};
use crate::index::PrefixIndex;
use crate::tables::index::{Absence, ShardCopy};

/// Return why blocks are not cached after their store or publish ended with this status.
pub(crate) fn why_not_stored(status: Status) -> Cause {
    match status {
        Status::NotAdmitted | Status::NoSpace => Cause::StoreNoRoom,
        _ => Cause::StoreFailed,
    }
}

impl PrefixIndex {
    /// Note in the history why a block is not cached.
    pub(crate) fn note_absent(&mut self, hash: u128, cause: Cause) {
        let now = self.now();
        self.index.note_absent(hash, cause, now);
    }

    /// Return why lookups do not find the block with this hash; `None` if they find it.
    pub(crate) fn absence(&self, hash: u128) -> Option<Absence> {
        self.index.absence(hash, self.now())
    }

    /// Return the time since which no block that left, or was not stored, has been forgotten, in microseconds on the clock of `now_us`.
    pub(crate) fn absences_known_since_us(&self) -> u64 {
        self.index.absences_known_since_us()
    }

    /// Return the lowest tier that has an entry.
    pub(crate) fn lowest_tier(&self, c: u32) -> Tier {
        let tier = |copy| match copy {
            ShardCopy::Block(b) if !self.is_recorded(b) => {
                let in_host = self.pages_of(b).any(|page| self.page(page).host != NONE);
                if in_host { Tier::Host } else { Tier::Tier0 }
            }
            ShardCopy::Block(_) | ShardCopy::IndexOnly(_) => Tier::Nvme,
            ShardCopy::End => Tier::Tier0,
        };
        self.copies(c).map(tier).max().unwrap_or(Tier::Tier0)
    }

    /// Return whether the log has a valid record of the block's slot.
    pub(crate) fn is_recorded(&self, b: BlockId) -> bool {
        let at = self.block(b).slot;
        at != NONE && self.disk.is_recorded(at)
    }
}
