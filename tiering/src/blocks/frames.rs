//! Tier-0 frames: the page that each shows, and the list that each is in.

use crate::api::{FrameId, NONE};
use crate::blocks::{BlockState, BlockTable, Frame, FrameState, NO_LANE, NO_SESSION, On};
use crate::mutants::{self, Mutant};

/// A frame chosen for a page, and the step that must end before its present page can leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pick {
    pub frame: FrameId,
    pub after: Option<(u16, u64)>,
    /// Lane with the stream list that the frame is to join.
    pub stream_lane: u16,
}

impl BlockTable {
    /// Return whether a lane was given the frame's page for its fault and may not have read it yet.
    pub(crate) fn is_fault_frame(&self, s: u16, f: u32) -> bool {
        self.tier0[s].lanes.iter().any(|l| l.fault_frame == f)
    }

    /// Return whether a frame shows a page, has no job in flight, and may be taken.
    pub(crate) fn idle(&self, s: u16, f: FrameId) -> bool {
        let frame = self.frame(s, f);
        frame.state == FrameState::Present && frame.job == NONE && matches!(frame.on, On::Clean | On::Stream)
    }

    /// Plan a lane's use of the frame's page.
    pub(crate) fn plan_use(&mut self, s: u16, f: FrameId, (lane, pos): (u16, u64)) {
        let session = &mut self.tier0[s];
        let plan = session.lanes.get(usize::from(lane)).map_or(0, |l| l.plan);
        let frame = &mut session.frames[f as usize];
        (frame.lane, frame.use_pos, frame.plan) = (lane, pos, plan);
    }

    /// Return the lane and position of the frame's planned use, unless the lane's sequences have changed since.
    pub(crate) fn planned_use(&self, s: u16, f: FrameId) -> Option<(u16, u64)> {
        let session = &self.tier0[s];
        let frame = &session.frames[f as usize];
        let user = session.lanes.get(usize::from(frame.lane))?;
        let valid = frame.plan == user.plan || frame.use_pos / u64::from(self.geo().planes_len()) < user.plan_from;
        valid.then_some((frame.lane, frame.use_pos))
    }

    /// Return the planned use that must end before the frame's page is evicted, for a job that `lane` (or no particular lane) waits
    /// for at `pos`. A page that the lane uses only later is evicted before its use.
    pub(crate) fn use_of(&self, s: u16, f: FrameId, (lane, pos): (u16, u64)) -> Option<(u16, u64)> {
        let (user, at) = self.planned_use(s, f)?;
        let l = &self.tier0[s].lanes[usize::from(user)];
        let own = user == lane && at <= pos;
        (l.is_active(at / u64::from(self.geo().planes_len())) && (own || l.fault_frame == f)).then_some((user, at))
    }

    /// Return a clock value: on every lane with a plan, the steps that touched a page last before it are over.
    pub(crate) fn unneeded_before(&self, s: u16) -> u32 {
        let session = &self.tier0[s];
        session.lanes.iter().filter(|l| l.live).map(|l| l.epochs[2]).min().unwrap_or(u32::MAX)
    }

    /// Mark the page in the frame as used: it becomes the most recently used of its list.
    pub(crate) fn touch(&mut self, s: u16, f: u32) {
        let session = &mut self.tier0[s];
        let clock = session.clock;
        let frame = &mut session.frames[f as usize];
        (frame.stamp, frame.spared) = (clock, false);
        self.move_to_back(s, f);
    }

    /// Move the page in a frame to the front of its list of clean or dirty frames.
    pub(crate) fn evict_first(&mut self, s: u16, f: u32) {
        let session = &mut self.tier0[s];
        let class = usize::from(session.class_of_frame(f));
        session.frames[f as usize].stamp = 0;
        let c = &mut session.classes[class];
        let list = match session.frames[f as usize].on {
            On::Clean => &mut c.clean,
            On::Dirty => &mut c.dirty,
            _ => return,
        };
        list.remove(&mut session.frames, f);
        list.push_front(&mut session.frames, f);
    }

    pub(crate) fn frame(&self, s: u16, f: FrameId) -> &Frame {
        &self.tier0[s].frames[f as usize]
    }

    pub(super) fn frame_mut(&mut self, s: u16, f: FrameId) -> &mut Frame {
        &mut self.tier0[s].frames[f as usize]
    }

    /// The frame shows its page now, and no job is about it.
    pub(crate) fn now_shows(&mut self, s: u16, f: FrameId) {
        let frame = self.frame_mut(s, f);
        (frame.state, frame.job) = (FrameState::Present, NONE);
    }

    /// The frame shows no page, and no job is about it.
    pub(crate) fn now_empty(&mut self, s: u16, f: FrameId) {
        let frame = self.frame_mut(s, f);
        (frame.state, frame.job) = (FrameState::Free, NONE);
    }

    /// The frame's page leaves for another frame of the session.
    pub(crate) fn begin_move(&mut self, s: u16, f: FrameId) {
        let page = self.frame(s, f).page;
        self.unlist(s, f);
        self.remove_copy(page, s, f);
        self.frame_mut(s, f).state = FrameState::Invalidating;
    }

    /// The job about the frame; `NONE`: it has ended.
    pub(crate) fn set_frame_job(&mut self, s: u16, f: FrameId, slot: u32) {
        self.frame_mut(s, f).job = slot;
    }

    /// A job that stores the frame's page in host begins.
    pub(crate) fn begin_copy_out(&mut self, s: u16, f: FrameId, slot: u32) {
        self.class_mut(s, f).copying_out += 1;
        self.frame_mut(s, f).job = slot;
    }

    /// A job that stores the frame's page in host has ended.
    pub(crate) fn end_copy_out(&mut self, s: u16, f: FrameId) {
        self.class_mut(s, f).copying_out -= u32::from(!mutants::on(Mutant::CopyOutCountedTwice));
        self.frame_mut(s, f).job = NONE;
    }

    /// Let the frame's page count as used now. It keeps its place in its list.
    pub(crate) fn refresh(&mut self, s: u16, f: FrameId) {
        let session = &mut self.tier0[s];
        session.frames[f as usize].stamp = session.clock;
    }

    /// Pass over a clean frame in a search: it moves behind all others. `spared`: it had its one second chance.
    pub(crate) fn pass_over_frame(&mut self, s: u16, f: FrameId, stamp: u32, spared: bool) {
        let frame = self.frame_mut(s, f);
        frame.stamp = stamp;
        frame.spared |= spared;
        self.move_to_back(s, f);
    }

    /// Move a frame to the back of its list of clean, dirty or mapped frames.
    pub(crate) fn move_to_back(&mut self, s: u16, f: FrameId) {
        let session = &mut self.tier0[s];
        let class = usize::from(session.class_of_frame(f));
        let c = &mut session.classes[class];
        match session.frames[f as usize].on {
            On::Clean => c.clean.move_back(&mut session.frames, f),
            On::Dirty => c.dirty.move_back(&mut session.frames, f),
            On::Mapped => c.mapped.move_back(&mut session.frames, f),
            _ => {}
        }
    }

    /// Note that a scheduled prefetch brought the frame's page.
    pub(crate) fn brought_by_schedule(&mut self, s: u16, f: FrameId) {
        self.frame_mut(s, f).scheduled = true;
    }

    /// Return whether a scheduled prefetch brought the frame's page, and forget it.
    pub(crate) fn take_scheduled(&mut self, s: u16, f: FrameId) -> bool {
        std::mem::take(&mut self.frame_mut(s, f).scheduled)
    }

    /// Return the session's frame that shows the page or is about to.
    pub(crate) fn find_copy(&self, page: u32, s: u16) -> Option<FrameId> {
        let p = &self.pages[page as usize];
        let (mut session, mut f) = (p.session, p.frame);
        while f != NONE {
            if session == s {
                return Some(f);
            }
            let frame = self.frame(session, f);
            (session, f) = (frame.copy_session, frame.copy_frame);
        }
        None
    }

    /// Return the frame in which the session's agent shows the page now.
    pub(crate) fn present(&self, page: u32, s: u16) -> Option<FrameId> {
        self.find_copy(page, s).filter(|&f| self.frame(s, f).state == FrameState::Present)
    }

    pub(crate) fn add_copy(&mut self, page: u32, s: u16, f: FrameId) {
        let p = &mut self.pages[page as usize];
        let head = (p.session, p.frame);
        (p.session, p.frame) = (s, f);
        let frame = self.frame_mut(s, f);
        frame.page = page;
        (frame.copy_session, frame.copy_frame) = head;
    }

    pub(crate) fn remove_copy(&mut self, page: u32, s: u16, f: FrameId) {
        let gone = self.frame_mut(s, f);
        let next = (gone.copy_session, gone.copy_frame);
        (gone.copy_session, gone.copy_frame) = (NO_SESSION, NONE);
        let p = &mut self.pages[page as usize];
        if (p.session, p.frame) == (s, f) {
            (p.session, p.frame) = next;
            return;
        }
        let (mut session, mut at) = (p.session, p.frame);
        while at != NONE {
            let frame = self.frame_mut(session, at);
            if (frame.copy_session, frame.copy_frame) == (s, f) {
                (frame.copy_session, frame.copy_frame) = next;
                return;
            }
            (session, at) = (frame.copy_session, frame.copy_frame);
        }
    }

    /// Remove the frame from the list that it is in, including a stream list.
    pub(crate) fn unlist(&mut self, s: u16, f: FrameId) {
        let session = &mut self.tier0[s];
        let class = usize::from(session.class_of_frame(f));
        let frame = &mut session.frames[f as usize];
        let (on, stream_lane) =
            (std::mem::replace(&mut frame.on, On::Nothing), std::mem::replace(&mut frame.stream_lane, NO_LANE));
        let c = &mut session.classes[class];
        let list = match on {
            On::Nothing => return,
            On::Free => &mut c.free,
            On::Clean => &mut c.clean,
            On::Refused => &mut c.refused,
            On::Dirty => &mut c.dirty,
            On::Early => &mut c.early,
            On::Outgoing => &mut c.outgoing,
            On::Move => &mut c.moving,
            On::Stream => &mut session.lanes[usize::from(stream_lane)].stream_lists[class],
            On::Evict => &mut session.evicts,
            On::EvictLater => &mut session.evicts_later,
            On::Drop => &mut session.drops,
            On::MappedFree => &mut c.mapped_free,
            On::Mapped => &mut c.mapped,
        };
        list.remove(&mut session.frames, f);
    }

    /// Append the frame to a list. It must be in none.
    pub(crate) fn enlist(&mut self, s: u16, f: FrameId, on: On, stream_lane: u16) {
        let session = &mut self.tier0[s];
        let class = usize::from(session.class_of_frame(f));
        let frame = &mut session.frames[f as usize];
        debug_assert!(frame.on == On::Nothing);
        (frame.on, frame.stream_lane) = (on, if on == On::Stream { stream_lane } else { NO_LANE });
        let c = &mut session.classes[class];
        let list = match on {
            On::Nothing => return,
            On::Free => &mut c.free,
            On::Clean => &mut c.clean,
            On::Refused => &mut c.refused,
            On::Dirty => &mut c.dirty,
            On::Early => &mut c.early,
            On::Outgoing => &mut c.outgoing,
            On::Move => &mut c.moving,
            On::Stream => &mut session.lanes[usize::from(stream_lane)].stream_lists[class],
            On::Evict => &mut session.evicts,
            On::EvictLater => &mut session.evicts_later,
            On::Drop => &mut session.drops,
            On::MappedFree => &mut c.mapped_free,
            On::Mapped => &mut c.mapped,
        };
        list.push_back(&mut session.frames, f);
    }

    /// Put a frame that shows a page into its list: evictable, to be stored, or none while the page must stay. A frame that is
    /// already in the right list keeps its position.
    pub(crate) fn settle(&mut self, s: u16, f: FrameId) {
        let frame = *self.frame(s, f);
        if frame.state != FrameState::Present || matches!(frame.on, On::Evict | On::EvictLater | On::Drop) {
            return;
        }
        if self.tier0[s].is_mapped_frame(f) {
            return self.settle_mapped(s, f);
        }
        let block = &self.blocks[self.geo().block_of(frame.page)];
        let page = &self.pages[frame.page as usize];
        let stays = match block.state {
            BlockState::Unsealed => !block.parked && !mutants::on(Mutant::EvictUnsealed),
            BlockState::Sealed => false,
            _ => true,
        };
        let busy = frame.job != NONE && !mutants::on(Mutant::TwoJobsOnOneFrame);
        let clean = page.below() || mutants::on(Mutant::EvictDirty);
        let session = &self.tier0[s];
        let beyond = session.classes[usize::from(session.class_of_frame(f))].is_beyond(f);
        let want = if busy || frame.pins > 0 && (stays || clean || block.entry == NONE) {
            On::Nothing
        } else if stays {
            if beyond && block.state == BlockState::Unsealed { On::Move } else { On::Nothing }
        } else if frame.pins > 0 {
            // It stays, but is stored as soon as unpinned pages are, because it is published.
            On::Early
        } else if beyond && (clean || mutants::on(Mutant::ShrinkEvictsDirty)) {
            On::Outgoing
        } else if clean && frame.on == On::Stream {
            On::Stream
        } else if clean && frame.on == On::Refused {
            On::Refused
        } else if clean {
            On::Clean
        } else if block.entry != NONE || frame.on == On::Early || beyond {
            On::Early
        } else {
            On::Dirty
        };
        if want != frame.on {
            self.unlist(s, f);
            self.enlist(s, f, want, NO_LANE);
        }
        self.settle_host(frame.page);
    }

    /// Settle all tier-0 frames of the page again, after its host copy or its block changed.
    pub(crate) fn settle_page(&mut self, page: u32) {
        let (mut session, mut f) = (self.pages[page as usize].session, self.pages[page as usize].frame);
        while f != NONE {
            self.settle(session, f);
            let frame = self.frame(session, f);
            (session, f) = (frame.copy_session, frame.copy_frame);
        }
        self.settle_host(page);
    }

    pub(crate) fn pin(&mut self, s: u16, f: FrameId) {
        let session = &mut self.tier0[s];
        let class = usize::from(session.class_of_frame(f));
        session.frames[f as usize].pins += 1;
        if session.frames[f as usize].pins == 1 {
            session.classes[class].pinned += 1;
            self.settle(s, f);
        }
    }

    pub(crate) fn unpin(&mut self, s: u16, f: FrameId) {
        let session = &mut self.tier0[s];
        let class = usize::from(session.class_of_frame(f));
        session.frames[f as usize].pins -= 1;
        if session.frames[f as usize].pins == 0 {
            session.classes[class].pinned -= 1;
            self.settle(s, f);
        }
    }

    /// Free a frame that shows no page and is installed in no page table.
    pub(crate) fn free_frame(&mut self, s: u16, f: FrameId) {
        self.unlist(s, f);
        let tier0 = &mut self.tier0[s];
        self.below.counters.scheduled_wasted += u64::from(tier0.frames[f as usize].end_schedule());
        tier0.frames[f as usize] = Frame::default();
        let class = usize::from(tier0.class_of_frame(f));
        let class = &mut tier0.classes[class];
        if class.is_mapped_frame(f) {
            self.enlist(s, f, On::MappedFree, NO_LANE);
        } else if class.is_beyond(f) {
            class.beyond -= 1;
            tier0.frames[f as usize].state = FrameState::Away;
        } else {
            self.enlist(s, f, On::Free, NO_LANE);
        }
        self.wake(s);
    }

    /// Give up the page in a frame. It is no longer resident; the frame is free after an Evict job.
    pub(crate) fn evict(&mut self, s: u16, f: FrameId) {
        let page = self.frame(s, f).page;
        self.unlist(s, f);
        self.remove_copy(page, s, f);
        let wasted = self.frame_mut(s, f).end_schedule();
        self.counters.scheduled_wasted += u64::from(wasted);
        self.frame_mut(s, f).state = FrameState::Invalidating;
        self.count_mapped_invalidating(s, f, true);
        self.counters.transitions += 1;
        self.add_in_flight(self.geo().block_of(page));
        self.pages[page as usize].invalidating += 1;
        self.settle_host(page);
        self.enlist(s, f, On::Evict, NO_LANE);
        self.wake(s);
    }
}
