//! Host frames for pages: allocation, and the choice of the eviction victim when no frame is free.

use crate::api::{Action, NONE};
use crate::blocks::{Block, BlockState, FrameState, On, Tier0};
use crate::host::HostTier;
use crate::sessions::{Life, Session, Work};
use crate::tables::host::{HostOn, Spare};

/// Maximum number of host frames that one search checks.
const SEARCH_MAX: u32 = 1 << 14;

/// The caller that a page is stored for. It decides what may be evicted for the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// No caller waits yet.
    Later,
    /// A publish waits. It may evict cached blocks, and unpublished pages that are also in tier 0. If that is not enough, the
    /// publish fails. It must not evict published pages that are also in tier 0: the next publish would store them again and take
    /// the frame back.
    Publish,
    /// A lane, a request or a shrink waits. It may evict cached blocks, and any page that is also in tier 0.
    Waiting,
}

impl HostTier {
    /// Return the next page in host, from the end of the last search, that passes the test.
    pub(crate) fn search_host(&mut self, class: u8, passes: impl Fn(&HostTier, u32) -> bool) -> Option<u32> {
        for _ in 0..SEARCH_MAX.min(self.host.len()) {
            let Some((at, page)) = self.host.search_next(class) else { continue };
            if self.page(page).host == at && self.is_private(page) && passes(self, page) {
                return Some(page);
            }
        }
        None
    }

    /// Return whether only its home session reads the page, and it will not be written.
    fn is_private(&self, page: u32) -> bool {
        let block = self.block(self.geo().block_of(page));
        block.live() && block.refs_home > 0 && block.refs_other == 0
    }

    /// Return a page that stays in its session's tier 0, so that its host copy can be dropped.
    fn copy_of_what_stays(&mut self, class: u8) -> Option<u32> {
        let stays = |core: &HostTier, page: u32| {
            let home = core.block(core.geo().block_of(page)).home;
            core.page(page).loads == 0
                && !core.is_mapped(page)
                && !core.page(page).writing()
                && core.find_copy(page, home).is_some_and(|f| {
                    let frame = core.frame(home, f);
                    frame.state == FrameState::Present
                        && frame.job == NONE
                        && !matches!(frame.on, On::Stream | On::Outgoing)
                })
        };
        self.search_host(class, stays)
    }

    /// Allocate a host frame for a page that is to be stored.
    pub(crate) fn take_host(&mut self, s: u16, page: u32, to: For) -> Option<u32> {
        let class = self.geo().class_of_page(page);
        let must = to != For::Later;
        if !must && self.host.is_reclaiming(class) {
            // The next free frame is reserved for a waiting caller.
            return None;
        }
        if let Some(at) = self.host.alloc(class, page) {
            return Some(at);
        }
        self.host.want_frame();
        if self.ask_slab(class) {
            // Do not evict cached pages or pages that are also in tier 0 before the node has answered.
            return None;
        }
        if self.disk.exists() {
            let [clean, ahead] = self.last_in_host(class);
            if self.evict_host_at_no_cost(class) || must && (self.evict_host(clean) || self.evict_host(ahead)) {
                return self.host.alloc(class, page);
            }
        }
        if must && self.unmap_some(class) {
            return None;
        }
        if must && !self.register_shortage(class) {
            match to {
                For::Waiting => self.reclaim_host(s, class),
                _ => self.reclaim_unpublished(s, class),
            }
            let coming = self.host.is_busy(class) || self.are_frames_coming(class);
            if to == For::Publish && self.host.free_frames(class) == 0 && !coming {
                let b = self.geo().block_of(page);
                self.no_room_for(b);
            }
        }
        self.host.alloc_reclaimed(class, page)
    }

    /// Register a shortage: a caller waits for a host frame and none can be evicted. Return true if transfers in flight or
    /// write-back will make some frame evictable. Nothing else has to be evicted then.
    fn register_shortage(&mut self, class: u8) -> bool {
        if !self.disk.exists() {
            return false;
        }
        self.disk.wake_again();
        let copying_out =
            self.tier0s().iter().any(|t| t.classes.get(usize::from(class)).is_some_and(|c| c.copying_out > 0));
        let (can_take, can_write) = (self.disk.may_have_slots(), self.disk.accepts_writes());
        self.host.register_shortage(class, can_take, can_write) || copying_out || self.disk.is_reading()
    }

    /// Reclaim a host frame from other users: evict cached entries first, then pages that are also in tier 0.
    fn reclaim_host(&mut self, s: u16, class: u8) {
        self.reclaim_cached(class);
        if self.host.free_frames(class) > 0 {
            return;
        }
        match self.second_copy(s, class) {
            Some(page) => self.drop_second_copy(page),
            None if self.drop_entry_in_tier0(s, class) => {}
            // Other sessions keep pages only in host although their tier 0 has room. Wake them to take those pages back.
            None if self.host.start_reclaiming(class) => self.wake_all(),
            // Neither helped. Drop the host copy of a page that several sessions read and one of them can evict. It is stored
            // again when another session needs it.
            None => {
                if let Some(page) = self.any_session(s, |core, s| core.evictable_twice(s, class, |b| b.refs() > 0)) {
                    self.drop_second_copy(page);
                }
            }
        }
    }

    /// Like `reclaim_host`, but evict cached entries only.
    fn reclaim_cached(&mut self, class: u8) {
        while self.host.free_frames(class) == 0 && self.drop_entry_with_block() {}
    }

    /// Like `reclaim_host`, but of the pages that are also in tier 0 drop only those that no publish would store again.
    fn reclaim_unpublished(&mut self, s: u16, class: u8) {
        self.reclaim_cached(class);
        if self.host.free_frames(class) == 0 {
            let unpublished = |block: &Block| block.refs_other == 0 && block.refs_home > 0 && block.entry == NONE;
            if let Some(page) = self.any_session(s, |core, s| core.evictable_twice(s, class, unpublished)) {
                self.drop_second_copy(page);
            }
        }
    }

    /// Allocate a host frame for a page that a caller waits to read from disk.
    pub(crate) fn take_host_to_read(&mut self, page: u32) -> Option<u32> {
        let class = self.geo().class_of_page(page);
        let home = self.block(self.geo().block_of(page)).home;
        let s = if home < self.sessions().len() { home } else { 0 };
        // Ask for memory, but do not wait for the node's answer: the caller already waits for the page.
        self.ask_slab(class);
        let [clean, ahead] = self.last_in_host(class);
        let had = self.evict_host_at_no_cost(class) || self.evict_host(clean) || self.evict_host(ahead);
        if !had && self.unmap_some(class) {
            return None;
        }
        if !had && !self.register_shortage(class) && !self.host.is_asked(class) {
            self.reclaim_host(s, class);
        }
        self.host.alloc_reclaimed(class, page)
    }

    /// Return the clean host frame and the read-ahead host frame that are needed last. Skip pages that a lane waits for: such a
    /// page would be read again, into the frame of the page that replaced it, until the lane finds a frame in tier 0.
    pub(crate) fn last_in_host(&self, class: u8) -> [u32; 2] {
        self.host.last_needed(class, |page| self.is_awaited(page))
    }

    /// Return whether a lane waits for the page at a fault. A lane has at most one fault, so further faults of a session protect
    /// nothing.
    fn is_awaited(&self, page: u32) -> bool {
        let waits = |(s, tier0): (&Session, &Tier0)| {
            s.ops
                .faults
                .iter(&s.ops.recs)
                .take(tier0.lanes.len())
                .any(|op| matches!(s.ops[op].work, Work::Fault(fault) if fault.page == page))
        };
        self.sessions().iter().zip(self.tier0s().iter()).any(waits)
    }

    /// Evict a host frame at no cost. Its page is on disk and stays in tier 0, or no live step needs it, or it belongs to an
    /// unreferenced entry that was not admitted to disk.
    pub(crate) fn evict_host_at_no_cost(&mut self, class: u8) -> bool {
        let firsts = [HostOn::AlsoInTier0, HostOn::Clean, HostOn::ReadAhead];
        let [also_in_tier0, clean, ahead] = firsts.map(|on| self.host.first(class, on));
        if self.evict_host(also_in_tier0) {
            return true;
        }
        let limit = self.host_unneeded_before();
        let not_admitted = self.host.first(class, HostOn::NotAdmitted);
        if self.host.stamp(not_admitted) < self.host.stamp(clean) && self.drop_not_admitted(class) {
            return true;
        }
        self.host.stamp(clean) < limit && self.evict_host(clean)
            || self.host.stamp(ahead) < limit && self.evict_host(ahead)
            || self.drop_not_admitted(class)
    }

    /// Return a limit for stamps. A page last needed before it belongs to steps that are over, on every lane of every session with
    /// a plan.
    fn host_unneeded_before(&self) -> u32 {
        let lanes = self.tier0s().iter().flat_map(|tier0| &tier0.lanes);
        lanes.filter(|l| l.live).map(|l| l.host_epochs[2]).min().unwrap_or(u32::MAX)
    }

    /// Free the host frame of an evictable page; the page is on disk. Return false if `at` is `NONE`.
    pub(crate) fn evict_host(&mut self, at: u32) -> bool {
        if at == NONE {
            return false;
        }
        let page = self.host.page_of(at);
        debug_assert!(self.page(page).host == at && self.page(page).on_disk() && self.page(page).loads == 0);
        self.left_host(page);
        self.counters.host_evictions += 1;
        self.counters.prefetch_wasted += u64::from(self.host.is_read_ahead(at));
        self.host.free(at);
        true
    }

    /// Return a page that can give up its host copy because it is also in a tier 0, searching session `s` first. Prefer the most
    /// recently used evictable page, else a page that stays in tier 0.
    pub(crate) fn second_copy(&mut self, s: u16, class: u8) -> Option<u32> {
        let evictable =
            self.any_session(s, |core, s| core.evictable_twice(s, class, |b| b.refs_other == 0 && b.refs_home > 0));
        evictable.or_else(|| self.copy_of_what_stays(class))
    }

    /// Return the first match of all live sessions, starting with `s`.
    fn any_session(&self, s: u16, find: impl Fn(&HostTier, u16) -> Option<u32>) -> Option<u32> {
        let sessions = self.sessions().len();
        let live = |s: &u16| self.session(*s).life == crate::sessions::Life::Live;
        (0..sessions).map(|i| (s + i) % sessions).filter(live).find_map(|s| find(self, s))
    }

    /// Drop the page's host copy to make the tiers exclusive. Its tier-0 copy must be stored before it can be evicted.
    fn drop_second_copy(&mut self, page: u32) {
        self.drop_host_copy(page);
        self.settle_page(page);
        self.counters.exclusive_drops += 1;
    }

    /// Return the most recently used page that is evictable in the session's tier 0 and in host, and has a block that satisfies
    /// `passes`.
    fn evictable_twice(&self, s: u16, class: u8, passes: impl Fn(&Block) -> bool) -> Option<u32> {
        let session = self.tier0(s);
        let mut f = session.classes[usize::from(class)].clean.tail;
        while f != NONE {
            let frame = &session.frames[f as usize];
            let page = self.page(frame.page);
            let block = self.block(self.geo().block_of(frame.page));
            let twice = page.host != NONE && page.loads == 0 && !page.writing() && !self.is_mapped(frame.page);
            if twice && block.state == BlockState::Sealed && passes(block) {
                return Some(frame.page);
            }
            f = frame.links.prev;
        }
        None
    }

    /// Return to the node a free slab that no admitted page needs. Return false if there is none.
    pub(crate) fn return_idle_slab(&mut self, class: u8, spare: Spare) -> bool {
        // Pages on NVMe return through host, now or soon. Keep enough frames for that, so that the memory need not be requested
        // again.
        let live = self.sessions().iter().any(|s| s.life == Life::Live);
        let streams = self.disk.exists() && (live || spare == Spare::Tenth && self.disk.used() > 0);
        let stream = if streams { self.stream_frames(usize::from(class)) } else { 0 };
        let slab = self.host.return_idle(class, spare, stream);
        let Some(slab) = slab else { return false };
        self.act(Action::ReturnSlab { slab });
        true
    }

    /// Evict host copies of unreferenced published blocks that are also on disk, until `used` falls to `low` bytes.
    fn demote_idle(&mut self, mut used: u64, low: u64) {
        for class in 0..self.geo().classes.len() as u8 {
            while used > low {
                let at = self.host.first(class, HostOn::Clean);
                let idle = at != NONE && self.block(self.geo().block_of(self.host.page_of(at))).refs() == 0;
                if !idle || !self.evict_host(at) {
                    break;
                }
                used -= u64::from(self.geo().classes[usize::from(class)].stride);
            }
        }
        self.host_freed();
    }

    /// Above the high watermark, evict unreferenced published blocks, least recently used first, down to the low watermark.
    pub(crate) fn trim_host(&mut self) {
        let policy = self.cfg().policy;
        let mut used = self.host.taken_bytes(&self.geo().classes);
        let limit = self.host.bytes_max(&self.geo().classes, self.cfg().limits.host_bytes_max);
        let high = u128::from(limit) * u128::from(policy.host_high_percent) / 100;
        let low = u128::from(limit) * u128::from(policy.host_low_percent) / 100;
        if u128::from(used) < high || high == 0 {
            return;
        }
        if self.disk.exists() {
            return self.demote_idle(used, u64::try_from(low).unwrap_or(u64::MAX));
        }
        let block_bytes: u64 = self.geo().classes.iter().map(|c| u64::from(c.stride) * u64::from(c.planes)).sum();
        while u128::from(used) > low && self.drop_idle_entry() {
            used = used.saturating_sub(block_bytes * u64::from(self.cfg().shards));
        }
    }
}
