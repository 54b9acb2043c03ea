//! Persistence of a published block: write-back to NVMe, then a record in the index log of its disk.
//!
//! The block's pages are stored to host and written to its slot. A record then describes the slot. A record is valid only if the
//! records of all ancestors are valid: after a restart, an entry that cannot be reached from its root is not cached. So a child's
//! record is never sent before its parent's. On the same disk it may follow without waiting for the parent's completion.

use crate::api::{BlockId, Level, NONE, Status};
use crate::blocks::PersistState;
use crate::disk::DiskTier;
use crate::tables::disk::{Logged, Place};
use crate::tables::index::ShardCopy;

/// Reason to persist a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It was published with this durability level.
    Published(Level),
    /// It was looked up again.
    Attached,
    /// It was refused before, and the write budget has refilled, or the space ends.
    Refilled,
}

impl DiskTier {
    /// Start to persist a published block, and its ancestors before it, unless they are persisted. Return false if it is not
    /// admitted.
    pub(crate) fn persist(&mut self, b: BlockId, why: Why) -> bool {
        if self.is_recorded(b) {
            return true;
        }
        if why == Why::Attached || self.is_expensive(b) {
            self.prefer_disk_of_chain(b);
        }
        if matches!(self.block(b).persist, PersistState::No | PersistState::Erase) && !self.admit_chain(b, why) {
            return false;
        }
        let shard = self.block(b).shard;
        let mut above = self.index.parent(self.block(b).entry);
        while above != NONE {
            match self.copy_of(above, shard) {
                Some(ShardCopy::Block(p)) if self.block(p).persist == PersistState::No && !self.is_recorded(p) => {
                    self.begin_persist(p)
                }
                _ => break,
            }
            above = self.index.parent(above);
        }
        self.update_persist(b);
        self.block(b).persist != PersistState::No || self.is_recorded(b)
    }

    /// Return whether recomputing the block costs at least twice as much as recomputing the first block of a prefix.
    fn is_expensive(&self, b: BlockId) -> bool {
        let tokens = u64::from(self.block(b).depth) * self.geo().page_tokens;
        let doubles_at = u64::from(self.cfg().policy.retention.attention_doubles_at);
        doubles_at > 0 && tokens >= doubles_at
    }

    /// Mark a block and its ancestors as preferred: they are written before other blocks.
    fn prefer_disk_of_chain(&mut self, b: BlockId) {
        let (shard, mut at) = (self.block(b).shard, b);
        while !self.is_recorded(at) && self.prefer(at) {
            let parent = self.index.parent(self.block(at).entry);
            match if parent == NONE { None } else { self.copy_of(parent, shard) } {
                Some(ShardCopy::Block(above)) => at = above,
                _ => return,
            }
        }
    }

    /// Start to persist one block.
    pub(crate) fn begin_persist(&mut self, b: BlockId) {
        self.set_record_fails(b, 0);
        self.set_persist(b, PersistState::Waits);
        self.set_aside(b);
        self.set_not_admitted(b, false);
        self.set_over_budget(b, false);
        self.settle_hosts_of(b);
        self.update_persist(b);
    }

    /// Update the persistence state of a block that is to be persisted.
    pub(crate) fn update_persist(&mut self, b: BlockId) {
        if matches!(self.block(b).persist, PersistState::No | PersistState::Erase) {
            return;
        }
        let stage = self.stage_of(b);
        self.set_persist(b, stage);
        if matches!(stage, PersistState::Write | PersistState::Record) {
            self.disk.wake();
        }
    }

    /// Return the persistence state of a block that is to be persisted.
    pub(crate) fn stage_of(&self, b: BlockId) -> PersistState {
        let at = self.block(b).slot;
        if at != NONE {
            let log_request_in_flight =
                matches!(self.disk.logged(at), Logged::Recording | Logged::RecordingStale | Logged::Erasing);
            if log_request_in_flight || self.disk.place(at) == Place::Gone {
                return PersistState::Waits;
            }
            if self.disk.logged(at) == Logged::Recorded {
                return PersistState::No;
            }
        }
        let mut dirty = false;
        // Pages are stored in ascending order, so a missing page is found sooner from the end.
        for page in self.pages_of(b).rev() {
            let p = self.page(page);
            if p.out_of_window() {
                continue;
            }
            if p.writing() || p.reading() || !p.below() {
                return PersistState::Waits;
            }
            dirty |= !p.on_disk();
        }
        if dirty {
            PersistState::Write
        } else if at == NONE {
            // All of its pages are out of window.
            PersistState::No
        } else if self.parent_is_before(b) {
            PersistState::Record
        } else {
            PersistState::Waits
        }
    }

    /// Return whether the record of the block's parent is valid, or is in flight on the same disk, ahead of one sent now.
    fn parent_is_before(&self, b: BlockId) -> bool {
        let parent = self.index.parent(self.block(b).entry);
        if parent == NONE {
            return true;
        }
        match self.copy_of(parent, self.block(b).shard) {
            None | Some(ShardCopy::End) => false,
            Some(ShardCopy::IndexOnly(at)) => self.disk.logged(at) == Logged::Recorded,
            Some(ShardCopy::Block(p)) => {
                let (at, of) = (self.block(p).slot, self.block(b).slot);
                let ahead =
                    |at| self.disk.logged(at) == Logged::Recording && self.disk.disk_of(at) == self.disk.disk_of(of);
                at != NONE && (self.is_recorded(p) || ahead(at))
            }
        }
    }

    /// Return whether the record of the block's parent is valid.
    pub(crate) fn parent_is_recorded(&self, b: BlockId) -> bool {
        let parent = self.index.parent(self.block(b).entry);
        parent == NONE
            || self.copy_of(parent, self.block(b).shard).is_some_and(|copy| match copy {
                ShardCopy::End => false,
                ShardCopy::IndexOnly(at) => self.disk.logged(at) == Logged::Recorded,
                ShardCopy::Block(p) => self.is_recorded(p),
            })
    }

    /// Update the children of a block in its shard, after its record was sent or became valid.
    pub(crate) fn step_children(&mut self, b: BlockId) {
        let shard = self.block(b).shard;
        let top = self.block(b).entry;
        let mut next = self.index.next_below(top, top);
        while let Some(child) = next {
            if let Some(ShardCopy::Block(copy)) = self.copy_of(child, shard)
                && self.block(copy).persist == PersistState::Waits
            {
                self.update_persist(copy);
            }
            next = self.index.next_beside(child, top);
        }
    }

    /// Complete the persistence of a block after its record became valid, and continue the waiting requests.
    pub(crate) fn is_stored(&mut self, b: BlockId) {
        self.set_persist(b, PersistState::No);
        self.set_record_fails(b, 0);
        self.counters.stored += 1;
        let (c, shard) = (self.block(b).entry, self.block(b).shard);
        if self.set_waited(b, false) {
            self.publishes_stored(c, shard);
        }
        self.rerecord_subtree(c, shard);
        self.announce_recorded(c);
    }

    /// Continue with the descendants of a shard copy after its record became valid. Index-only descendants were recorded before,
    /// and their log records have not changed since, so they become valid again.
    fn rerecord_subtree(&mut self, top: u32, shard: u16) {
        let mut next = self.index.next_below(top, top);
        while let Some(c) = next {
            let mut counts = false;
            match self.copy_of(c, shard) {
                Some(ShardCopy::IndexOnly(at))
                    if self.disk.logged(at) == Logged::Stale && self.disk.place(at) == Place::IndexOnly =>
                {
                    self.disk.validate_record(at);
                    counts = true;
                }
                Some(ShardCopy::Block(copy)) if self.block(copy).persist == PersistState::Waits => {
                    self.update_persist(copy)
                }
                _ => {}
            }
            next = if counts { self.index.next_below(c, top) } else { self.index.next_beside(c, top) };
        }
    }

    /// Stop persisting a block and its descendants. Fail the publishes that wait for them with `status`.
    pub(crate) fn stop_persisting(&mut self, b: BlockId, status: Status) {
        let (top, shard) = (self.block(b).entry, self.block(b).shard);
        let mut c = top;
        loop {
            if let Some(ShardCopy::Block(copy)) = self.copy_of(c, shard)
                && !matches!(self.block(copy).persist, PersistState::No | PersistState::Erase)
            {
                self.set_persist(copy, PersistState::No);
                if self.set_waited(copy, false) {
                    self.end_publishes(c, shard, status);
                }
            }
            match self.index.next_below(c, top) {
                Some(next) => c = next,
                None => return,
            }
        }
    }
}
