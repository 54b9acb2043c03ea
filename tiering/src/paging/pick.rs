//! Choice of the frame for a page.
//!
//! Deadlock rule: a job must not wait for a lane that waits, directly or indirectly, for the job. A lane's scan waits only for its
//! own earlier uses. The exception is the one page that a lane was just given for its fault: any job may wait for its use. Every
//! other page is invalidated at the lanes' next boundaries, and read again.

use crate::api::{FrameId, NONE};
use crate::blocks::{NEUTRAL_PRIORITY, NO_LANE, Pick};
use crate::paging::Paging;

/// Maximum number of frames that one search skips for their second chance.
pub(crate) const CHANCES: u32 = 8;

impl Paging<'_> {
    /// Pick any frame: a free one, else that of the least recently used clean page, else a streaming one.
    pub(crate) fn pick_any(&mut self, s: u16, class: u8) -> Option<Pick> {
        let refused = self.tier0(s).classes[usize::from(class)].refused.head;
        let pick = self
            .pick_free(s, class)
            .or_else(|| self.pick_clean(s, class, None))
            .or_else(|| self.pick_streaming(s, class))
            .or_else(|| self.pick_refused(s, refused));
        if pick.is_none() {
            self.count_shortage(s, class);
        }
        pick
    }

    /// Pick a frame that was refused at the last attempt because its page was pinned: the pin may have been released since.
    pub(super) fn pick_refused(&mut self, s: u16, f: FrameId) -> Option<Pick> {
        let at = self.pagers[s].ask_again_at;
        if f == NONE {
            return None;
        }
        if self.now() < at {
            self.set_timer(at);
            return None;
        }
        Some(Pick { frame: f, after: self.use_of(s, f, (NO_LANE, 0)), stream_lane: NO_LANE })
    }

    pub(crate) fn pick_free(&self, s: u16, class: u8) -> Option<Pick> {
        let f = self.tier0(s).classes[usize::from(class)].free.head;
        (f != NONE).then_some(Pick { frame: f, after: None, stream_lane: NO_LANE })
    }

    /// Pick the frame of the least recently used clean page; with `older`, only if it was not touched since then. Pages of
    /// sequences in use get a second chance.
    pub(crate) fn pick_clean(&mut self, s: u16, class: u8, older: Option<u32>) -> Option<Pick> {
        for _ in 0..CHANCES {
            let f = self.tier0(s).classes[usize::from(class)].clean.head;
            if f == NONE {
                return None;
            }
            let frame = &self.tier0(s).frames[f as usize];
            let block = self.block(self.geo().block_of(frame.page));
            let seq =
                self.lists(s).seqs.get(block.seq as usize).filter(|q| block.home == s && q.is_live() && !q.sequential);
            let stamp = match seq {
                // A page that was marked to be evicted first stays so.
                Some(q) if frame.stamp > 0 && !q.parked && q.priority >= NEUTRAL_PRIORITY => frame.stamp.max(q.stamp),
                _ => frame.stamp,
            };
            let ending = self.cfg().policy.retention.ending_tokens;
            let dear = !frame.spared && seq.is_some_and(|q| q.priority > NEUTRAL_PRIORITY || q.is_ending(ending));
            let is_fault_frame = self.tier0(s).lanes.iter().any(|l| l.fault_frame == f);
            if stamp != frame.stamp || dear || is_fault_frame && self.tier0(s).classes[usize::from(class)].clean.len > 1
            {
                self.pass_over_frame(s, f, stamp, dear);
                continue;
            }
            if older.is_some_and(|limit| stamp >= limit) {
                return None;
            }
            return Some(Pick { frame: f, after: self.use_of(s, f, (NO_LANE, 0)), stream_lane: NO_LANE });
        }
        if older.is_some() {
            return None;
        }
        let f = self.tier0(s).classes[usize::from(class)].clean.head;
        Some(Pick { frame: f, after: self.use_of(s, f, (NO_LANE, 0)), stream_lane: NO_LANE })
    }

    /// Pick a frame out of a lane's stream list: the oldest without a job in flight.
    pub(crate) fn pick_streaming(&self, s: u16, class: u8) -> Option<Pick> {
        let session = self.tier0(s);
        session.lanes.iter().find_map(|lane| {
            let f = lane.stream_lists[usize::from(class)].iter(&session.frames).find(|&f| self.idle(s, f))?;
            Some(Pick { frame: f, after: self.use_of(s, f, (NO_LANE, 0)), stream_lane: NO_LANE })
        })
    }
}
