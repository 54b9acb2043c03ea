//! Jobs that free frames: `Evict` and `Drop`.

use crate::actions::ActionBuf;
use crate::api::NONE;
use crate::blocks::{NO_LANE, On};
use crate::counters::Reason;
use crate::paging::Paging;
use crate::sessions::{JobRec, Task};

/// First delay in microseconds before the eviction of a page that the engine pins is requested again.
const EVICT_WAIT_US: u64 = 1_000;

/// Maximum delay.
const EVICT_WAIT_MAX_US: u64 = 64_000;

impl Paging<'_> {
    pub(crate) fn issue_drops(&mut self, s: u16, buf: &mut ActionBuf) {
        while self.can_send_last(s, buf) {
            let f = self.tier0(s).drops.head;
            if f == NONE {
                return;
            }
            self.unlist(s, f);
            let page = self.geo().page(self.geo().block_of(self.frame(s, f).page), 0);
            let job = JobRec { task: Task::Drop, reason: Reason::Clean, page, ..JobRec::default() };
            self.send_other(s, job, buf);
        }
    }

    /// Postpone the eviction of a page that the engine pins. The page keeps its frame, and takes no job entry, until the next
    /// attempt. The release is not reported, so each delay is twice the previous one.
    pub(crate) fn evict_later(&mut self, s: u16, f: u32) {
        self.counters.jobs_busy += 1;
        self.set_frame_job(s, f, NONE);
        let now = self.now();
        if self.tier0(s).evicts_later.is_empty() {
            self.pagers[s].evict_wait_us = (self.pagers[s].evict_wait_us * 2).clamp(EVICT_WAIT_US, EVICT_WAIT_MAX_US);
            self.pagers[s].evict_again_at = now.saturating_add(self.pagers[s].evict_wait_us);
            let at = self.pagers[s].evict_again_at;
            self.set_timer(at);
        }
        self.enlist(s, f, On::EvictLater, NO_LANE);
    }

    fn evict_again(&mut self, s: u16) {
        while self.now() >= self.pagers[s].evict_again_at {
            let f = self.tier0(s).evicts_later.head;
            if f == NONE {
                return;
            }
            self.unlist(s, f);
            self.enlist(s, f, On::Evict, NO_LANE);
        }
    }

    pub(crate) fn issue_evicts(&mut self, s: u16, buf: &mut ActionBuf) {
        self.evict_again(s);
        while self.can_send_last(s, buf) {
            let f = self.tier0(s).evicts.head;
            if f == NONE {
                return;
            }
            debug_assert!(self.frame(s, f).on == On::Evict);
            self.unlist(s, f);
            let page = self.frame(s, f).page;
            let job = JobRec { task: Task::Evict, reason: Reason::Clean, page, frame: f, ..JobRec::default() };
            let slot = self.send_other(s, job, buf);
            self.set_frame_job(s, f, slot);
        }
    }
}
