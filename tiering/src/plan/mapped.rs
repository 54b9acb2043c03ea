//! Mapped frames: a session reads a page in place in host, instead of a copy in its tier 0.
//!
//! In the tables a mapped frame is a frame like others: a page has at most one frame per session, a `CopyIn` job brings it in, and an
//! eviction or another page's `CopyIn` takes it out. The differences: no bytes move, and the page's host frame must stay as long as a
//! mapped frame shows it, is about to, or may still. Such a host frame is *mapped*: it is neither evicted nor released, but it may
//! be written back.
//!
//! Only sealed pages that stream are shown this way. Pages that fit into tier 0 are copied there. Pages that only pass through host
//! on their way from NVMe are copied too, so that their host frames are free again at once. Acquired ranges, copies and resumed
//! tails use tier 0.
//!
//! Mapped frames never delay others: a request that finds no host frame unmaps some at a time, and for some steps no page enters
//! one. With none left the state equals that of a session without mapped frames, so the guarantees of `space::account` hold.

use crate::api::{BlockId, NONE};
use crate::mutants::{self, Mutant};
use crate::pages::{BlockState, FrameState, NO_LANE, On};
use crate::space::{Core, Pick};

/// Number of mapped frames unmapped at a time.
const UNMAP_BATCH: u32 = 8;
/// Announced steps during which no page enters a mapped frame after a request found no host frame.
const PAUSE_STEPS: u32 = 8;

impl Core {
    /// Count, or stop counting, this frame as a reason for the page's host frame to stay. Do nothing if the frame is no window
    /// frame.
    pub(crate) fn count_mapped(&mut self, s: u16, f: u32, page: u32, add: bool) {
        if !self.sessions[usize::from(s)].is_mapped_frame(f) {
            return;
        }
        let at = self.pages[page as usize].host;
        if at == NONE {
            debug_assert!(mutants::on(Mutant::EvictHostWhileMapped), "a mapped page {page} is not in host");
            return;
        }
        self.host.count_mapping(at, add);
        if self.host.mappings(at) == 0 && self.pages[page as usize].out_of_window() {
            return self.drop_host_copy(page);
        }
        self.settle_host(page);
        if !add && self.host.mappings(at) == 0 {
            self.host_freed();
            if self.disk.exists() {
                self.disk.wake();
            }
        }
    }

    /// Return whether a mapped frame shows the page's host frame, is about to, or may still.
    pub(crate) fn is_mapped(&self, page: u32) -> bool {
        let at = self.pages[page as usize].host;
        at != NONE && self.host.mappings(at) > 0 && !mutants::on(Mutant::EvictHostWhileMapped)
    }

    pub(crate) fn count_mapped_invalidating(&mut self, s: u16, f: u32, more: bool) {
        let session = &mut self.sessions[usize::from(s)];
        let class = usize::from(session.class_of_frame(f));
        let c = &mut session.classes[class];
        if c.is_mapped_frame(f) {
            c.mapped_invalidating = if more { c.mapped_invalidating + 1 } else { c.mapped_invalidating - 1 };
        }
    }

    /// Put a mapped frame into its list. One that is in it keeps its position.
    pub(crate) fn settle_mapped(&mut self, s: u16, f: u32) {
        let frame = *self.frame(s, f);
        let want = if frame.job == NONE { On::Mapped } else { On::Nothing };
        if frame.on != want {
            self.unlist(s, f);
            self.enlist(s, f, want, NO_LANE);
        }
        self.settle_host(frame.page);
    }

    /// Return how many host frames of a class mapped frames may show. While NVMe is in use, the frames through which its pages
    /// stream are excluded.
    fn mapped_quota(&self, class: u8) -> u64 {
        let usable = self.host.usable(class);
        if !self.disk.exists() || self.disk.used() == 0 {
            return usable;
        }
        let scan = self.host.scan_frames(class, self.cfg.policy.host_scan_frames);
        usable.saturating_sub(self.stream_frames(usize::from(class)) + scan)
    }

    /// Pick a mapped frame for a page that a lane reads from host: a free one, else the least recently used one if no live step
    /// needs it.
    pub(crate) fn pick_mapped(&self, s: u16, page: u32) -> Option<Pick> {
        let class = self.geo.class_of_page(page);
        let c = &self.sessions[usize::from(s)].classes[usize::from(class)];
        if c.mapped_frames == 0 {
            return None;
        }
        let sealed = self.blocks[self.geo.block_of(page)].state == BlockState::Sealed;
        if !self.host.may_map(class, self.clock) || !sealed || self.host.is_read_ahead(self.pages[page as usize].host) {
            return None;
        }
        let (free, oldest) = (c.mapped_free.head, c.mapped.head);
        let f = if free != NONE && self.host.mapped(class) < self.mapped_quota(class) {
            free
        } else if oldest != NONE
            && self.frame(s, oldest).stamp < self.unneeded_before(s)
            && !self.is_fault_frame(s, oldest)
        {
            oldest
        } else {
            return None;
        };
        Some(Pick { frame: f, after: None, stream_lane: NO_LANE })
    }

    /// Return whether a lane was given the frame's page for its fault and may not have read it yet.
    fn is_fault_frame(&self, s: u16, f: u32) -> bool {
        self.sessions[usize::from(s)].lanes.iter().any(|l| l.fault_frame == f)
    }

    /// Unmap the page in a mapped frame if it can get a frame in tier 0, to be loaded there. Return whether it can.
    pub(crate) fn bring_home(&mut self, s: u16, f: u32) -> bool {
        if !self.sessions[usize::from(s)].is_mapped_frame(f)
            || self.frame(s, f).on != On::Mapped
            || self.is_fault_frame(s, f)
        {
            return false;
        }
        let class = self.geo.class_of_page(self.frame(s, f).page);
        let limit = self.unneeded_before(s);
        let room = self.pick_free(s, class).is_some() || self.pick_clean(s, class, Some(limit)).is_some();
        if room {
            self.evict(s, f);
        }
        room
    }

    /// Unmap the page in a frame if that is a mapped frame, unless a lane was just given it.
    pub(crate) fn unmap_frame(&mut self, s: u16, f: u32) {
        if self.frame(s, f).on == On::Mapped && !self.is_fault_frame(s, f) {
            self.evict(s, f);
        }
    }

    /// Unmap all mapped frames that show pages of the block. Return whether there were any.
    pub(crate) fn unmap_block(&mut self, b: BlockId) -> bool {
        let mut any = false;
        for page in self.pages_of(b) {
            any |= self.unmap_page(page);
        }
        any
    }

    /// Unmap all mapped frames that show a page. Return whether there were any.
    pub(crate) fn unmap_page(&mut self, page: u32) -> bool {
        let at = self.pages[page as usize].host;
        if at == NONE || self.host.mappings(at) == 0 {
            return false;
        }
        let mut any = false;
        let (mut s, mut f) = (self.pages[page as usize].session, self.pages[page as usize].frame);
        while f != NONE {
            let frame = *self.frame(s, f);
            if frame.on == On::Mapped {
                self.evict(s, f);
                any = true;
            }
            (s, f) = (frame.copy_session, frame.copy_frame);
        }
        any
    }

    /// Unmap mapped frames because a request found no host frame of a class. Return whether any will be unmapped.
    pub(crate) fn unmap_some(&mut self, class: u8) -> bool {
        if !self.host.pause_mapping(class, self.clock.wrapping_add(PAUSE_STEPS)) {
            return false;
        }
        let classes = self.sessions.iter().filter_map(|s| s.classes.get(usize::from(class)));
        if classes.map(|c| c.mapped_invalidating).sum::<u32>() > 0 {
            // Waiting requests check again when one of them has been unmapped.
            return true;
        }
        let found = (0..self.sessions.len() as u16).find(|&s| self.next_to_unmap(s, class).is_some());
        if let Some(s) = found {
            self.host.request_unmaps(class, UNMAP_BATCH);
            self.wake(s);
        }
        found.is_some()
    }

    /// Return the mapped frame of a class with the lowest cost of unmapping: one that no live step needs, else the most recently
    /// used one, which is needed again last.
    fn next_to_unmap(&self, s: u16, class: u8) -> Option<u32> {
        let session = &self.sessions[usize::from(s)];
        let list = session.classes.get(usize::from(class))?.mapped;
        let limit = self.unneeded_before(s);
        let head = Some(list.head).filter(|&f| f != NONE && session.frames[f as usize].stamp < limit);
        if let Some(f) = head.filter(|&f| !self.is_fault_frame(s, f)) {
            return Some(f);
        }
        let mut f = list.tail;
        while f != NONE && self.is_fault_frame(s, f) {
            f = session.frames[f as usize].links.prev;
        }
        (f != NONE).then_some(f)
    }

    /// Unmap the session's mapped frames that other requests need, some at a time.
    pub(crate) fn issue_unmaps(&mut self, s: u16) {
        for class in 0..self.geo.classes.len() as u8 {
            let c = &self.sessions[usize::from(s)].classes[usize::from(class)];
            if c.mapped_frames == 0 {
                continue;
            }
            let quota = self.mapped_quota(class);
            let want = self.host.unmaps_due(class, quota).min(u64::from(UNMAP_BATCH)) as u32;
            for _ in c.mapped_invalidating..want {
                let Some(f) = self.next_to_unmap(s, class) else { break };
                debug_assert!(self.frame(s, f).state == FrameState::Present);
                let old = *self.frame(s, f);
                self.overtake_plan(s, &old, None);
                self.evict(s, f);
                self.counters.pages_unmapped += 1;
                self.host.unmapped(class);
            }
        }
    }

    /// Return whether the session shows the page in a mapped frame.
    pub(crate) fn in_mapped_frame(&self, s: u16, f: u32) -> bool {
        self.sessions[usize::from(s)].is_mapped_frame(f)
    }
}
