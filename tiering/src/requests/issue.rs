//! Issue of waiting work while the output buffer has room.

use crate::actions::ActionBuf;
use crate::api::NONE;
use crate::requests::Requests;
use crate::sessions::{Life, Phase};

impl Requests {
    /// End the priority of demand reads that did not ask again.
    fn readers_due(&mut self) {
        let now = self.now();
        let (ended, next) = self.host.readers_due(now);
        if let Some(at) = next {
            self.set_timer(at);
        }
        if ended {
            self.wake_all();
        }
    }

    /// Set the clock, never backwards, and process everything that is due: requests past their deadlines, late jobs, refused jobs to
    /// send again, parked sequences, and leases that end.
    pub(crate) fn advance(&mut self, now_us: u64) {
        self.set_now(now_us);
        let now = self.now();
        self.index.advance(now);
        while let Some((s, op)) = self.overdue() {
            self.time_out(s, op);
        }
        if self.may_have_late_jobs() {
            self.jobs_due();
        }
        if self.take_timer() {
            self.timers_due();
        }
    }

    fn timers_due(&mut self) {
        // Leases wait for this time.
        let asks_at = (0..self.geo().classes.len() as u8).filter_map(|class| self.host.second_request_us(class)).min();
        match asks_at {
            Some(at) if at > self.now() => self.set_timer(at),
            Some(_) => self.wake_all(),
            None => {}
        }
        self.transfers_due();
        self.drain_due();
        self.readers_due();
        for s in 0..self.sessions().len() {
            let due = [
                (self.pagers[s].again_at != 0).then_some(self.pagers[s].again_at),
                self.tier0(s).classes.iter().any(|c| !c.refused.is_empty()).then_some(self.pagers[s].ask_again_at),
                (!self.tier0(s).evicts_later.is_empty()).then_some(self.pagers[s].evict_again_at),
                self.tier0(s).classes.iter().any(|c| !c.moving.is_empty()).then_some(self.pagers[s].move_again_at),
            ];
            for at in due.into_iter().flatten() {
                match at <= self.now() {
                    true => self.wake(s),
                    false => self.set_timer(at),
                }
            }
            self.paging().plan_scheduled(s);
            self.end_leases(s);
            self.quarantine_due(s);
        }
    }

    /// Turn the waiting work of all scheduled sessions into actions, as far as `buf` has room. What is left waits for the next call.
    pub(crate) fn issue(&mut self, buf: &mut ActionBuf) {
        // A session that finds no room, or has much to do, is queued again. Limit the rounds to twice the number of sessions: one
        // for each queued now, and for those that they wake.
        let mut rounds = usize::from(self.sessions().len()) * 2;
        self.issue_drain();
        while self.flush_actions(buf) && rounds > 0 {
            let Some(s) = self.next_woken() else { break };
            rounds -= 1;
            if self.session(s).life == Life::Live && !self.issue_session(s, buf) {
                self.wake(s);
                if buf.room() == 0 {
                    break;
                }
            }
        }
        if self.disk.take_woken() {
            let all_sent = self.send_log_requests(buf);
            if !self.issue_disk(buf) || !all_sent {
                self.disk.wake_again();
            }
        }
        self.forget_freed();
        self.counters.quarantined = self.host.quarantined();
    }

    /// Issue the work of one session. Return false if it lacked room or left work for the next call.
    fn issue_session(&mut self, s: u16, buf: &mut ActionBuf) -> bool {
        self.issue_ready(s, buf);
        self.issue_admission(s);
        self.forget_shortages(s);
        self.paging().issue_drops(s, buf);
        self.paging().issue_resizes(s, buf);
        self.paging().issue_unmaps(s);
        self.paging().issue_evicts(s, buf);
        self.paging().send_again(s, buf);
        self.paging().issue_faults(s, buf);
        self.block_api().issue_copies(s, buf);
        let parks_done = self.paging().issue_parks(s, buf);
        self.paging().issue_frames(s, buf);
        let walked = self.paging().issue_lanes(s, buf);
        self.paging().issue_prefetch(s, buf);
        self.paging().issue_reclaim(s, buf);
        self.paging().send_scheduled(s, buf);
        self.paging().issue_cleaning(s, buf);
        self.give_up_on_disk(s);
        // Requests may have become ready, and capacity may have changed.
        self.issue_ready(s, buf);
        let room = buf.room() > 0 && (!self.disk.exists() || buf.words_room() >= self.words_of_block());
        self.flush_actions(buf) && walked && parks_done && room && self.session(s).ops.ready.is_empty()
    }

    /// Complete the ready requests while their lists fit.
    fn issue_ready(&mut self, s: u16, buf: &mut ActionBuf) {
        while buf.room() > 0 {
            let op = self.session(s).ops.ready.head;
            if op == crate::api::NONE || !self.complete_op(s, op, buf) {
                break;
            }
            self.enter(s, op, Phase::Free);
        }
    }

    fn issue_admission(&mut self, s: u16) {
        while self.session(s).ops.admission.head != crate::api::NONE {
            let op = self.session(s).ops.admission.head;
            if !self.try_admit(s, op) {
                break;
            }
        }
    }

    /// Fail the session's requests that wait for a host frame, if the disk fails and nothing in flight can free one.
    fn give_up_on_disk(&mut self, s: u16) {
        let Some(status) = self.disk.failing() else { return };
        if self.session(s).jobs.any() || self.disk.is_reading() {
            return;
        }
        if !(0..self.geo().classes.len() as u8).any(|class| self.host.is_full(class)) {
            return;
        }
        self.paging().each_fault(s, |paging, op, fault| {
            if paging.host.is_full(paging.geo().class_of_page(fault.page)) {
                paging.fail_op(s, op, status);
            }
        });
        for op in [self.session(s).ops.frames.head, self.session(s).ops.parking.head] {
            if op != NONE {
                self.fail_op(s, op, status);
            }
        }
    }

    /// Continue after the delays that follow failures, where they have ended.
    fn transfers_due(&mut self) {
        let now = self.now();
        let (reads, next) = self.disk.end_pauses(now);
        if let Some(at) = next {
            self.set_timer(at);
        }
        if reads {
            self.wake_all();
        }
    }
}
