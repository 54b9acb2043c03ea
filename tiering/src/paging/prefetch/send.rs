//! Sends promotions, reads and cancellations as jobs and transfers, as far as there is room after those that requests wait for.

use super::track::{Promotion, QUEUE_MAX};
use crate::actions::ActionBuf;
use crate::api::{IoClass, NONE};
use crate::blocks::{NewJob, Pick};
use crate::counters::Reason;
use crate::host::{Fetch, Take, Want};
use crate::mutants::{self, Mutant};
use crate::paging::Paging;
use crate::sessions::Task;

/// A released page is at the head of its list with stamp 0.
const EVICT_FIRST: Option<u32> = Some(1);

impl Paging<'_> {
    pub(crate) fn issue_prefetch(&mut self, s: u16, buf: &mut ActionBuf) {
        let prediction = &self.pagers[s].prediction;
        if !prediction.pressed {
            return;
        }
        self.send_cancels(s, buf);
        self.promote_read(s);
        while self.can_send(s, buf) {
            let Some(what) = self.pagers[s].prediction.queue.pop_front() else { break };
            self.promote(s, what, buf);
        }
        while self.can_move(IoClass::Prefetch, buf) {
            let Some(what) = self.pagers[s].prediction.reads.pop_front() else { break };
            let Some(page) = self.page_of(s, what).filter(|&page| self.only_on_disk(page)) else { continue };
            let want = Want { class: IoClass::Prefetch, reason: Reason::Attention, take: Take::Spare, planes: (0, 0) };
            let fetch = self.read_in(page, want, buf);
            let prediction = &mut self.pagers[s].prediction;
            match fetch {
                Fetch::UnderWay if prediction.coming.len() < QUEUE_MAX => prediction.coming.push_back(what),
                Fetch::UnderWay => {}
                // Only a hint: the read is requested again when the plane is ranked again.
                Fetch::Later | Fetch::NoFrame => prediction.reads.clear(),
            }
        }
        self.refill(s);
    }

    /// Queue pages for loading after their reads ended. Pages still being read, at most one per transfer, are checked again later.
    fn promote_read(&mut self, s: u16) {
        for _ in 0..self.pagers[s].prediction.coming.len() {
            let Some(what) = self.pagers[s].prediction.coming.pop_front() else { return };
            let Some(page) = self.page_of(s, what) else { continue };
            let reading = self.page(page).reading();
            let prediction = &mut self.pagers[s].prediction;
            if reading {
                prediction.coming.push_back(what);
            } else if prediction.queue.len() < QUEUE_MAX {
                // If the read failed there is no host copy, which `promote` detects.
                prediction.queue.push_back(what);
            }
        }
    }

    fn send_cancels(&mut self, s: u16, buf: &mut ActionBuf) {
        while self.can_send_last(s, buf) {
            let Some(id) = self.pagers[s].prediction.cancels.pop_front() else { return };
            let jobs = &self.session(s).jobs;
            let Some(slot) = jobs.slot_of(id) else { continue };
            let job = jobs[slot];
            if job.reason == Reason::Attention && job.in_flight && !job.canceling && job.op == NONE {
                self.counters.attention_canceled += 1;
                self.call_off(s, slot, buf);
            }
        }
    }

    /// Return the page of a promotion, if its sequence is still tracked.
    fn page_of(&self, s: u16, what: Promotion) -> Option<u32> {
        self.live_seq(s, what.seq).filter(|q| !q.parked && q.track != NONE && what.index < q.blocks())?;
        Some(self.geo().page(self.seq_block(s, what.seq, what.index), what.plane))
    }

    /// Load a page into a free frame or into that of a released page.
    fn promote(&mut self, s: u16, what: Promotion, buf: &mut ActionBuf) {
        let Some(page) = self.page_of(s, what) else { return };
        if self.find_copy(page, s).is_some() || self.page(page).host == NONE || self.must_wait(s, page) {
            return;
        }
        let class = self.geo().class_of_page(page);
        let Some(pick) = self.pick_evict_first(s, class) else {
            self.counters.attention_held += 1;
            return;
        };
        let new = NewJob { task: Task::CopyIn, page, reason: Reason::Attention, op: NONE, source: NONE };
        self.place(s, pick, new, buf);
        self.counters.attention_loads += 1;
        self.begin_trial(s, what, page, pick.frame);
    }

    fn pick_evict_first(&mut self, s: u16, class: u8) -> Option<Pick> {
        let older = EVICT_FIRST.filter(|_| !mutants::on(Mutant::PromotionTakesNeeded));
        self.pick_free(s, class).or_else(|| self.pick_clean(s, class, older))
    }

    /// While a lane is in a step, an occupied frame becomes available only at its next boundary, when the next plane is read. Loads
    /// requested by a look-ahead arrive in time only if frames are emptied before it.
    fn refill(&mut self, s: u16) {
        for class in 0..self.geo().classes.len() {
            let wanted = std::mem::take(&mut self.pagers[s].prediction.refill[class]);
            let empty = self.tier0(s).classes[class].free.len + self.tier0(s).evicts.len;
            for _ in empty..wanted {
                let Some(pick) = self.pick_clean(s, class as u8, EVICT_FIRST) else { break };
                self.evict(s, pick.frame);
            }
        }
    }
}
