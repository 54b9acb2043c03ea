//! Return host memory to the node for another space: empty a slab of cached blocks in bounded slices.
//!
//! Pages that are also on NVMe are evicted from host and stay findable. Blocks that are being written to NVMe get 300 ms to
//! complete. All other blocks of the slab leave the cache. A page that is only in host and that a sequence uses stops the drain.

use crate::api::{Action, BlockId, Cause, NONE};
use crate::blocks::{BlockState, PersistState};
use crate::host::HostTier;
use crate::sessions::Life;
use crate::tables::host::{Drained, HostOn, Spare};
use crate::tables::index::{ShardCopy, WITH_BLOCK};

/// Maximum cache entries dropped in one call.
const DROPS_MAX: u32 = 64;

/// Maximum slabs compared before one is chosen. They are found from this many cache entries and frames of each list, in eviction
/// order.
const SLABS_MAX: usize = 8;

const ENTRIES_MAX: usize = 64;

const LISTED_MAX: usize = 16;

/// Result for one frame.
enum Cleared {
    Yes,
    /// A cache entry was dropped; check the frame again.
    Dropped,
    /// A job or transfer in flight holds it.
    Later,
    /// A sequence uses it.
    Never,
}

impl HostTier {
    /// Return one idle slab of each size class to the node. If none is idle and `cached` is set, start to empty the slab with
    /// the entry that would be evicted first; [`Self::is_reclaiming`] reports progress. A class for which this space itself waits
    /// for memory is skipped: two spaces that wait for each other would exchange slabs for ever.
    pub(crate) fn reclaim(&mut self, cached: bool) {
        let mut given = false;
        for class in 0..self.geo().classes.len() as u8 {
            if !self.host.is_asked(class) {
                given |= self.return_idle_slab(class, Spare::None);
            }
        }
        if !cached || given || self.is_reclaiming() {
            return;
        }
        if let Some(slab) = self.slab_to_drain() {
            let now = self.now();
            self.host.start_drain(slab, now);
        }
    }

    /// Return true while a slab is being emptied for another space.
    pub(crate) fn is_reclaiming(&self) -> bool {
        self.host.drain_at().is_some()
    }

    /// Return the slab with the lowest cost among those that hold the next entry to evict.
    fn slab_to_drain(&mut self) -> Option<u32> {
        let (mut entries, mut count) = ([NONE; ENTRIES_MAX], 0);
        let head = self.index.head(&WITH_BLOCK);
        for c in self.index.in_order(head, &WITH_BLOCK).take(ENTRIES_MAX) {
            entries[count] = c;
            count += 1;
        }
        let (mut slabs, mut found) = ([NONE; SLABS_MAX], 0);
        let mut add = |slab: u32| {
            if found < slabs.len() && !slabs.contains(&slab) {
                slabs[found] = slab;
                found += 1;
            }
        };
        // With NVMe, the first entries in eviction order are mostly on NVMe only. The lists of host frames find those in host.
        self.host.slabs_by_eviction(LISTED_MAX).for_each(&mut add);
        for &entry in &entries[..count] {
            let recorded = self.copies(entry).filter_map(ShardCopy::block).all(|b| self.is_recorded(b));
            // Dropping an entry drops its descendants.
            if !recorded && !self.index.is_leaf(entry) {
                continue;
            }
            for b in self.copies(entry).filter_map(ShardCopy::block) {
                for page in self.pages_of(b) {
                    let at = self.page(page).host;
                    if at != NONE {
                        add(self.host.slab_of(at));
                    }
                }
            }
        }
        let cost = |&slab: &u32| Some((self.drain_cost(slab)?, slab));
        slabs[..found].iter().filter_map(cost).min_by_key(|&(cost, _)| cost).map(|(_, slab)| slab)
    }

    /// Return the number of pages that are only in host, or `None` if the slab cannot be emptied and returned.
    fn drain_cost(&self, slab: u32) -> Option<u32> {
        let frames = self.host.frames_of(slab);
        let class = self.host.class_of(frames.start);
        let streams = self.disk.exists() && self.sessions().iter().any(|s| s.life == Life::Live);
        let stream = if streams { self.stream_frames(usize::from(class)) } else { 0 };
        if !self.host.can_spare(class, frames.len() as u64, stream) {
            return None;
        }
        let mut cost = 0;
        for at in frames {
            match self.host.page_in(at, class) {
                None if self.host.is_free(at) => {}
                // Quarantined: a lost session may still write to it.
                None => return None,
                Some(page) => {
                    if self.page(page).host != at || !self.may_clear(page, at) {
                        return None;
                    }
                    cost += u32::from(!self.page(page).on_disk());
                }
            }
        }
        Some(cost)
    }

    /// Return true if the page's host frame is unused, or will be when its transfers and jobs in flight have ended.
    fn may_clear(&self, page: u32, at: u32) -> bool {
        let p = self.page(page);
        let block = self.block(self.geo().block_of(page));
        if p.loads > 0 || self.is_mapped(page) || self.host.late(at) > 0 {
            return false;
        }
        let idle = block.state == BlockState::Sealed && block.entry != NONE && block.refs() == 0;
        // Keep the entry while another shard's copy of it is in use.
        let idle = idle && (p.on_disk() || !self.index.is_active(block.entry));
        !block.live() || idle || p.on_disk() && self.host.list_of(at) == HostOn::AlsoInTier0
    }

    /// Run the next slice.
    pub(crate) fn issue_drain(&mut self) {
        let Some((frames, force)) = self.host.drain_slice(self.now()) else { return };
        let (mut next, mut drops) = (frames.start, 0);
        while next < frames.end && drops < DROPS_MAX {
            match self.clear_frame(next, force) {
                Cleared::Yes | Cleared::Later => next += 1,
                Cleared::Dropped => drops += 1,
                Cleared::Never => return self.stop_draining(),
            }
        }
        let now = self.now();
        match self.host.end_slice(next, now) {
            Drained::InPart => {}
            Drained::Later(at) => {
                self.set_timer(at);
                self.disk.wake();
            }
            Drained::All(slab) => self.act(Action::ReturnSlab { slab }),
            Drained::Never => self.stop_draining(),
        }
    }

    /// Set the timer for the next pass again after another timer was due.
    pub(crate) fn drain_due(&mut self) {
        if let Some(at) = self.host.drain_at().filter(|&at| at > self.now()) {
            self.set_timer(at);
        }
    }

    /// Stop the drain and keep the slab.
    fn stop_draining(&mut self) {
        self.host.stop_drain();
        self.host_freed();
        self.disk.wake();
    }

    fn clear_frame(&mut self, at: u32, force: bool) -> Cleared {
        if self.host.is_free(at) {
            return Cleared::Yes;
        }
        let class = self.host.class_of(at);
        let Some(page) = self.host.page_in(at, class) else { return Cleared::Never };
        let p = self.page(page);
        if p.host != at || p.writing() || self.host.list_of(at) == HostOn::Moving {
            return Cleared::Later;
        }
        if !self.may_clear(page, at) {
            return Cleared::Never;
        }
        let b = self.geo().block_of(page);
        if !self.block(b).live() || p.out_of_window() {
            return Cleared::Later;
        }
        if p.on_disk() {
            self.evict_host(at);
            return Cleared::Yes;
        }
        if !force && self.is_on_the_way(b) {
            return Cleared::Later;
        }
        let leaf = self.index.leaf_of(self.block(b).entry);
        if self.index.is_active(leaf) {
            // A sequence of another shard uses it.
            return Cleared::Never;
        }
        if self.index.is_held(leaf) {
            return Cleared::Later;
        }
        self.drop_leaf(leaf, Cause::OtherSpace);
        Cleared::Dropped
    }

    /// Return true if a write of the block to NVMe, or its record in the index log, is pending.
    fn is_on_the_way(&self, b: BlockId) -> bool {
        self.disk.exists()
            && !matches!(self.block(b).persist, PersistState::No | PersistState::Erase)
            && self.disk.failing().is_none()
    }
}
