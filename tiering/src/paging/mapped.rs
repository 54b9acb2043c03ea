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
//! one. With none left the state equals that of a session without mapped frames, so the guarantees of `host::admit` hold.

use crate::api::NONE;
use crate::blocks::{BlockState, FrameState, NO_LANE, On, Pick};
use crate::host::UNMAP_BATCH;
use crate::paging::Paging;

impl Paging<'_> {
    /// Pick a mapped frame for a page that a lane reads from host: a free one, else the least recently used one if no live step
    /// needs it.
    pub(crate) fn pick_mapped(&self, s: u16, page: u32) -> Option<Pick> {
        let class = self.geo().class_of_page(page);
        let c = &self.tier0(s).classes[usize::from(class)];
        if c.mapped_frames == 0 {
            return None;
        }
        let sealed = self.block(self.geo().block_of(page)).state == BlockState::Sealed;
        if !self.host.may_map(class, self.clock()) || !sealed || self.host.is_read_ahead(self.page(page).host) {
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

    /// Unmap the page in a mapped frame if it can get a frame in tier 0, to be loaded there. Return whether it can.
    pub(crate) fn bring_home(&mut self, s: u16, f: u32) -> bool {
        if !self.tier0(s).is_mapped_frame(f) || self.frame(s, f).on != On::Mapped || self.is_fault_frame(s, f) {
            return false;
        }
        let class = self.geo().class_of_page(self.frame(s, f).page);
        let limit = self.unneeded_before(s);
        let room = self.pick_free(s, class).is_some() || self.pick_clean(s, class, Some(limit)).is_some();
        if room {
            self.evict(s, f);
        }
        room
    }

    /// Unmap the session's mapped frames that other requests need, some at a time.
    pub(crate) fn issue_unmaps(&mut self, s: u16) {
        for class in 0..self.geo().classes.len() as u8 {
            if self.tier0(s).classes[usize::from(class)].mapped_frames == 0 {
                continue;
            }
            let quota = self.mapped_quota(class);
            let want = self.host.unmaps_due(class, quota).min(u64::from(UNMAP_BATCH)) as u32;
            let invalidating = self.tier0(s).classes[usize::from(class)].mapped_invalidating;
            for _ in invalidating..want {
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
}
