//! Window frames: a session reads a page in place in host, instead of a copy in its tier 0.
//!
//! In the tables a window frame is a frame like others: a page has at most one frame per session, a `Load` job brings it in, and an
//! eviction or another page's `Load` takes it out. The differences: no bytes move, and the page's host frame must stay as long as a
//! window frame shows it, is about to, or may still. Such a host frame is *watched*: it is neither evicted nor released, but it may
//! be written back.
//!
//! Only sealed pages that stream are shown this way. Pages that fit into tier 0 are copied there. Pages that only pass through host
//! on their way from NVMe are copied too, so that their host frames are free again at once. Acquired ranges, copies and resumed
//! tails use tier 0.
//!
//! Window frames never delay others: a request that finds no host frame unmaps some at a time, and for some steps no page enters
//! one. With none left the state equals that of a session without window frames, so the guarantees of `space::account` hold.

use crate::api::{BlockId, NONE};
use crate::mutants::{self, Mutant};
use crate::pages::{BlockState, FrameState, NO_LANE, On};
use crate::space::{Core, Pick};

/// Number of window frames unmapped at a time.
const SHED: u32 = 8;
/// Announced steps during which no page enters a window frame after a request found no host frame.
const PAUSE_STEPS: u32 = 8;

impl Core {
    /// Count, or stop counting, this frame as a reason for the page's host frame to stay. Do nothing if the frame is no window
    /// frame.
    pub(crate) fn watch(&mut self, s: u16, f: u32, page: u32, add: bool) {
        if !self.sessions[usize::from(s)].is_window(f) {
            return;
        }
        let at = self.pages[page as usize].host;
        if at == NONE {
            debug_assert!(mutants::on(Mutant::EvictHostInWindow), "a watched page {page} is not in host");
            return;
        }
        self.host.count_window(at, add);
        if self.host.windows(at) == 0 && self.pages[page as usize].retired() {
            return self.drop_host_copy(page);
        }
        self.settle_host(page);
        if !add && self.host.windows(at) == 0 {
            self.host_freed();
            if self.has_nvme() {
                self.wake_disk();
            }
        }
    }

    /// Return whether a window frame shows the page's host frame, is about to, or may still.
    pub(crate) fn is_watched(&self, page: u32) -> bool {
        let at = self.pages[page as usize].host;
        at != NONE && self.host.windows(at) > 0 && !mutants::on(Mutant::EvictHostInWindow)
    }

    pub(crate) fn count_window_leaving(&mut self, s: u16, f: u32, more: bool) {
        let session = &mut self.sessions[usize::from(s)];
        let class = usize::from(session.class_of_frame(f));
        let c = &mut session.classes[class];
        if c.is_window(f) {
            c.windows_leaving = if more { c.windows_leaving + 1 } else { c.windows_leaving - 1 };
        }
    }

    /// Put a window frame into its list. One that is in it keeps its position.
    pub(crate) fn settle_window(&mut self, s: u16, f: u32) {
        let frame = *self.frame(s, f);
        let want = if frame.job == NONE { On::Window } else { On::Nothing };
        if frame.on != want {
            self.unlist(s, f);
            self.enlist(s, f, want, NO_LANE);
        }
        self.settle_host(frame.page);
    }

    /// Return how many host frames of a class window frames may show. While NVMe is in use, the frames through which its pages
    /// stream are excluded.
    fn window_quota(&self, class: u8) -> u64 {
        let h = &self.host.classes[usize::from(class)];
        if !self.has_nvme() || self.disk.used == 0 {
            return h.usable();
        }
        let scan = u64::from(self.cfg.policy.host_scan_frames).min(h.granted / 2).max(1);
        h.usable().saturating_sub(self.stream_frames(usize::from(class)) + scan)
    }

    /// Pick a window frame for a page that a lane reads from host: a free one, else the least recently used one if no live step
    /// needs it.
    pub(crate) fn pick_window(&self, s: u16, page: u32) -> Option<Pick> {
        let class = self.geo.class_of_page(page);
        let c = &self.sessions[usize::from(s)].classes[usize::from(class)];
        if c.windows == 0 {
            return None;
        }
        let h = &self.host.classes[usize::from(class)];
        let paused = h.no_windows_until.wrapping_sub(self.clock).cast_signed() > 0 || h.squeezed;
        let sealed = self.blocks[self.geo.block_of(page)].state == BlockState::Sealed;
        if paused || !sealed || self.host.is_ahead(self.pages[page as usize].host) {
            return None;
        }
        let (free, oldest) = (c.window_free.head, c.window.head);
        let f = if free != NONE && u64::from(h.windowed) < self.window_quota(class) {
            free
        } else if oldest != NONE && self.frame(s, oldest).stamp < self.unneeded_before(s) && !self.is_held(s, oldest) {
            oldest
        } else {
            return None;
        };
        Some(Pick { frame: f, after: None, ring: NO_LANE })
    }

    /// Return whether a lane was given the frame's page for its fault and may not have read it yet.
    fn is_held(&self, s: u16, f: u32) -> bool {
        self.sessions[usize::from(s)].lanes.iter().any(|l| l.hold == f)
    }

    /// Unmap the page in a window frame if it can get a frame in tier 0, to be loaded there. Return whether it can.
    pub(crate) fn bring_home(&mut self, s: u16, f: u32) -> bool {
        if !self.sessions[usize::from(s)].is_window(f) || self.frame(s, f).on != On::Window || self.is_held(s, f) {
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

    /// Unmap the page in a frame if that is a window frame, unless a lane was just given it.
    pub(crate) fn leave_window(&mut self, s: u16, f: u32) {
        if self.frame(s, f).on == On::Window && !self.is_held(s, f) {
            self.evict(s, f);
        }
    }

    /// Unmap all window frames that show pages of the block. Return whether there were any.
    pub(crate) fn evict_windows_of(&mut self, b: BlockId) -> bool {
        let mut any = false;
        for page in self.pages_of(b) {
            any |= self.evict_windows_on(page);
        }
        any
    }

    /// Unmap all window frames that show a page. Return whether there were any.
    pub(crate) fn evict_windows_on(&mut self, page: u32) -> bool {
        let at = self.pages[page as usize].host;
        if at == NONE || self.host.windows(at) == 0 {
            return false;
        }
        let mut any = false;
        let (mut s, mut f) = (self.pages[page as usize].session, self.pages[page as usize].frame);
        while f != NONE {
            let frame = *self.frame(s, f);
            if frame.on == On::Window {
                self.evict(s, f);
                any = true;
            }
            (s, f) = (frame.copy_session, frame.copy_frame);
        }
        any
    }

    /// Unmap window frames because a request found no host frame of a class. Return whether any will be unmapped.
    pub(crate) fn shed_windows(&mut self, class: u8) -> bool {
        let h = &mut self.host.classes[usize::from(class)];
        if h.windowed == 0 {
            return false;
        }
        h.no_windows_until = self.clock.wrapping_add(PAUSE_STEPS);
        self.host_wanted = true;
        let classes = self.sessions.iter().filter_map(|s| s.classes.get(usize::from(class)));
        if classes.map(|c| c.windows_leaving).sum::<u32>() > 0 {
            // Waiting requests check again when one of them has been unmapped.
            return true;
        }
        let found = (0..self.sessions.len() as u16).find(|&s| self.sheddable(s, class).is_some());
        if let Some(s) = found {
            self.host.classes[usize::from(class)].shed = SHED;
            self.wake(s);
        }
        found.is_some()
    }

    /// Return the window frame of a class with the lowest cost of unmapping: one that no live step needs, else the most recently
    /// used one, which is needed again last.
    fn sheddable(&self, s: u16, class: u8) -> Option<u32> {
        let session = &self.sessions[usize::from(s)];
        let list = session.classes.get(usize::from(class))?.window;
        let limit = self.unneeded_before(s);
        let head = Some(list.head).filter(|&f| f != NONE && session.frames[f as usize].stamp < limit);
        if let Some(f) = head.filter(|&f| !self.is_held(s, f)) {
            return Some(f);
        }
        let mut f = list.tail;
        while f != NONE && self.is_held(s, f) {
            f = session.frames[f as usize].links.prev;
        }
        (f != NONE).then_some(f)
    }

    /// Unmap the session's window frames that other requests need, some at a time.
    pub(crate) fn pump_windows(&mut self, s: u16) {
        for class in 0..self.geo.classes.len() {
            let c = &self.sessions[usize::from(s)].classes[class];
            if c.windows == 0 {
                continue;
            }
            let h = &mut self.host.classes[class];
            if h.windowed == 0 {
                h.shed = 0;
            }
            let h = &self.host.classes[class];
            let over = u64::from(h.windowed).saturating_sub(self.window_quota(class as u8));
            let want = u64::from(h.shed).max(over).min(u64::from(SHED)) as u32;
            for _ in c.windows_leaving..want {
                let Some(f) = self.sheddable(s, class as u8) else { break };
                debug_assert!(self.frame(s, f).state == FrameState::Present);
                let old = *self.frame(s, f);
                self.rob(s, &old, None);
                self.evict(s, f);
                self.counters.windows_shed += 1;
                let shed = &mut self.host.classes[class].shed;
                *shed = shed.saturating_sub(1);
            }
        }
    }

    /// Return whether the session shows the page in a window frame.
    pub(crate) fn in_window(&self, s: u16, f: u32) -> bool {
        self.sessions[usize::from(s)].is_window(f)
    }
}
