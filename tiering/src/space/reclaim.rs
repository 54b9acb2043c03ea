//! Host memory that another space needs goes back to the node: a slab is emptied of what is cached, in bounded slices.
//!
//! Pages that NVMe holds too are evicted from host and stay findable. Blocks on their way to NVMe are awaited for [`WAIT_US`].
//! Everything else in the slab leaves the cache. A page that a sequence uses and that is only in host keeps its slab.

use super::{Core, Spare};
use crate::api::{Action, BlockId, NONE};
use crate::pages::{BlockState, HostOn, Keep, Listed, Part};
use crate::sessions::Life;
use serde::{Deserialize, Serialize};

/// How long blocks on their way to NVMe are awaited before they are dropped, and after that transfers that still hold frames.
/// A disk writes a slab of 64 MiB in this time at 220 MB/s; the node waits a little longer than both.
const WAIT_US: u64 = 300_000;
/// How often frames that are awaited are looked at again.
const AGAIN_US: u64 = 1_000;
/// Frames that one call looks at, and cache entries that it drops.
const FRAMES_MAX: u32 = 512;
const DROPS_MAX: u32 = 64;
/// Slabs that are compared before one is chosen; cache entries through which they are looked for, and frames of each list, in eviction
/// order.
const SLABS_MAX: usize = 8;
const ENTRIES_MAX: usize = 64;
const LISTED_MAX: usize = 16;

/// A slab that is being emptied.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Drain {
    slab: u32,
    /// The frame to look at next.
    next: u32,
    /// A look at all frames begins at this time.
    again_at: u64,
    /// Blocks on their way to NVMe are dropped from this time on.
    drop_at: u64,
}

/// What became of one frame.
enum Cleared {
    Yes,
    /// A cache entry was dropped; the frame is to be looked at again.
    Dropped,
    /// Something in flight holds it.
    Later,
    /// A sequence uses it.
    Never,
}

impl Core {
    /// Gives a slab of each size class back that is wholly idle. With `cached`, and if none is, empties the slab whose content is
    /// evicted first; [`Core::is_reclaiming`] says whether that goes on. A class for which this space waits itself keeps what it
    /// has: two spaces that wait for each other would pass memory to and fro.
    pub(crate) fn reclaim(&mut self, cached: bool) {
        let mut given = false;
        for class in 0..self.geo.classes.len() as u8 {
            if !self.host.classes[usize::from(class)].asked {
                given |= self.return_idle_slab(class, Spare::None);
            }
        }
        if !cached || given || self.drain.is_some() {
            return;
        }
        if let Some(slab) = self.slab_to_drain() {
            self.host.drain(slab);
            let next = self.host.frames_of(slab).start;
            self.drain = Some(Drain { slab, next, again_at: self.now, drop_at: self.now.saturating_add(WAIT_US) });
        }
    }

    /// Whether a slab is being emptied for another space.
    #[must_use]
    pub fn is_reclaiming(&self) -> bool {
        self.drain.is_some()
    }

    /// Whether the next slice can be done now.
    pub(crate) fn may_drain(&self) -> bool {
        self.drain.is_some_and(|drain| drain.again_at <= self.now)
    }

    /// The slab that costs least, of those where the content stands that is evicted first.
    fn slab_to_drain(&mut self) -> Option<u32> {
        let (mut entries, mut count) = ([NONE; ENTRIES_MAX], 0);
        for c in self.index.near_first().take(ENTRIES_MAX) {
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
        // With NVMe the entries that go first are mostly there alone; the frames in host stand in lists of their own.
        for c in &self.host.classes {
            for list in [c.spare, c.double, c.clean, c.ahead, c.dirty] {
                list.iter(&self.host.recs).take(LISTED_MAX).for_each(|at| add(self.host.slab_of(at)));
            }
        }
        for (i, &entry) in entries[..count].iter().enumerate() {
            let recorded = self.parts(entry).filter_map(Part::block).all(|b| self.is_recorded(b));
            let entry = match recorded || self.index.recs[entry as usize].child() == NONE {
                true => entry,
                // What is dropped takes its descendants along: one look for a leaf, which is evicted before.
                false if i == 0 => self.index.next_leaf(entry),
                false => continue,
            };
            for b in self.parts(entry).filter_map(Part::block) {
                for page in self.pages_of(b) {
                    let at = self.pages[page as usize].host;
                    if at != NONE {
                        add(self.host.slab_of(at));
                    }
                }
            }
        }
        let cost = |&slab: &u32| Some((self.drain_cost(slab)?, slab));
        slabs[..found].iter().filter_map(cost).min_by_key(|&(cost, _)| cost).map(|(_, slab)| slab)
    }

    /// How many pages of the slab are only in host, if it can be emptied and given away.
    fn drain_cost(&self, slab: u32) -> Option<u32> {
        let frames = self.host.frames_of(slab);
        let class = self.host.class_of(frames.start);
        let c = &self.host.classes[usize::from(class)];
        let streams = self.has_nvme() && self.sessions.iter().any(|s| s.life == Life::Live);
        let stream = if streams { self.stream_frames(usize::from(class)) } else { 0 };
        let left = c.usable().checked_sub(frames.len() as u64)?;
        if c.asked || left < c.demand.max(stream) {
            return None;
        }
        let mut cost = 0;
        for at in frames {
            match self.host.page_in(at, class) {
                None if self.host.recs[at as usize].page == NONE => {}
                // What a lost session may still write.
                None => return None,
                Some(page) => {
                    if self.pages[page as usize].host != at || !self.may_clear(page, at) {
                        return None;
                    }
                    cost += u32::from(!self.pages[page as usize].on_disk());
                }
            }
        }
        Some(cost)
    }

    /// Whether the page's host frame is unused, or will be when the transfers and jobs in flight have ended.
    fn may_clear(&self, page: u32, at: u32) -> bool {
        let p = &self.pages[page as usize];
        let block = &self.blocks[self.geo.block_of(page)];
        if p.loads > 0 || self.is_watched(page) || self.host.late(at) > 0 {
            return false;
        }
        let idle = block.state == BlockState::Sealed && block.content != NONE && block.refs() == 0;
        // Another shard's part of the same content may be in use: then it is not dropped.
        let idle = idle && (p.on_disk() || self.index.recs[block.content as usize].listed() != Listed::Active);
        !block.live() || idle || p.on_disk() && self.host.recs[at as usize].on == HostOn::Double
    }

    /// The next slice.
    pub(crate) fn pump_drain(&mut self) {
        let Some(mut drain) = self.drain.filter(|drain| drain.again_at <= self.now) else { return };
        let frames = self.host.frames_of(drain.slab);
        let end = drain.next.saturating_add(FRAMES_MAX).min(frames.end);
        let mut drops = 0;
        while drain.next < end && drops < DROPS_MAX {
            match self.clear_frame(drain.next, drain.drop_at <= self.now) {
                Cleared::Yes | Cleared::Later => drain.next += 1,
                Cleared::Dropped => drops += 1,
                Cleared::Never => return self.stop_draining(drain.slab),
            }
        }
        if drain.next == frames.end {
            if self.host.free_in(drain.slab) as usize == frames.len() {
                self.host.remove(drain.slab);
                self.outbox.push_back(Action::ReturnSlab { slab: drain.slab });
                self.drain = None;
                return;
            }
            if self.now >= drain.drop_at.saturating_add(WAIT_US) {
                return self.stop_draining(drain.slab);
            }
            (drain.next, drain.again_at) = (frames.start, self.now.saturating_add(AGAIN_US));
            self.set_timer(drain.again_at);
            self.wake_disk();
        }
        self.drain = Some(drain);
    }

    /// Looks again when frames are awaited: called when a timer is due.
    pub(crate) fn drain_due(&mut self) {
        if let Some(drain) = self.drain.filter(|drain| drain.again_at > self.now) {
            self.set_timer(drain.again_at);
        }
    }

    /// The slab stays: its frames are handed out again.
    fn stop_draining(&mut self, slab: u32) {
        self.host.stop_draining(slab);
        self.drain = None;
        self.host_freed();
        self.wake_disk();
    }

    fn clear_frame(&mut self, at: u32, force: bool) -> Cleared {
        let page = self.host.recs[at as usize].page;
        if page == NONE {
            return Cleared::Yes;
        }
        let class = self.host.class_of(at);
        let Some(page) = self.host.page_in(at, class) else { return Cleared::Never };
        let p = &self.pages[page as usize];
        if p.host != at || p.writing() || self.host.recs[at as usize].on == HostOn::Moving {
            return Cleared::Later;
        }
        if !self.may_clear(page, at) {
            return Cleared::Never;
        }
        let b = self.geo.block_of(page);
        if !self.blocks[b].live() || p.retired() {
            return Cleared::Later;
        }
        if p.on_disk() {
            self.evict_host(at);
            return Cleared::Yes;
        }
        if !force && self.is_on_the_way(b) {
            return Cleared::Later;
        }
        let leaf = self.index.leaf_of(self.blocks[b].content);
        if self.index.recs[leaf as usize].listed() == Listed::Active {
            // A sequence of another shard uses it.
            return Cleared::Never;
        }
        if self.is_stood_on(leaf) {
            return Cleared::Later;
        }
        self.drop_leaf(leaf);
        Cleared::Dropped
    }

    /// Whether a block is to be written to NVMe, or recorded there.
    fn is_on_the_way(&self, b: BlockId) -> bool {
        self.has_nvme() && !matches!(self.blocks[b].keep, Keep::No | Keep::Erase) && self.disk_failing().is_none()
    }
}
