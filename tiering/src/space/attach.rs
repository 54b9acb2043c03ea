//! Attach, loss and exit of sessions.

use super::Core;
use crate::api::{Action, Cause, NONE, SessionId};
use crate::error::Error;
use crate::mutants::{self, Mutant};
use crate::pages::{FrameState, On};
use crate::sessions::{Life, Session, Task};

impl Core {
    pub(crate) fn attach(&mut self, s: SessionId, shard: u16, lanes: u16, frames: &[u32]) -> Result<(), Error> {
        let refuse = |why| Err(Error::Attach { session: s, why });
        match self.sessions.get(usize::from(s)) {
            None => return refuse("session index is out of range"),
            Some(slot) if slot.life != Life::Empty => return refuse("session index is in use"),
            Some(_) => {}
        }
        if shard >= self.cfg.shards {
            return refuse("no such shard");
        }
        if lanes == 0 || lanes > self.cfg.limits.lanes_max {
            return refuse("lanes must be from 1 to lanes_max");
        }
        let classes = self.geo.classes.len();
        if frames.len() != classes && frames.len() != 2 * classes {
            return refuse("frames must be given for each size class, and mapped frames for all or none");
        }
        let has_tier0 = frames.iter().any(|&n| n > 0);
        if has_tier0 && frames.iter().zip(&self.geo.classes).any(|(&n, c)| n < 2 || n < c.planes) {
            return refuse("a size class has fewer frames than planes, or fewer than 2");
        }
        if frames.iter().map(|&n| u64::from(n)).sum::<u64>() >= u64::from(NONE) {
            return refuse("frames exceed the range of frame ids");
        }
        let requests = self.cfg.limits.requests_max as usize;
        self.sessions[usize::from(s)].attach(&self.geo, &self.cfg.limits, &self.cfg.policy, shard, lanes, frames);
        self.deadlines.reserve(requests);
        self.actions_out.reserve(requests);
        Ok(())
    }

    /// End a session after its lease ended. All its state is released, except published pages in host. Host frames that its jobs in
    /// flight may still write are quarantined until its process exits.
    pub(crate) fn session_lost(&mut self, s: SessionId) -> Result<(), Error> {
        if !self.sessions.get(usize::from(s)).is_some_and(|x| x.life == Life::Live) {
            return Err(Error::NoSession { session: s });
        }
        self.counters.sessions_lost += 1;
        self.set_guarantee(s, 0);
        self.abandon_ops(s);
        self.abandon_jobs(s);
        self.abandon_seqs(s);
        self.abandon_frames(s);
        // Also remove completions that the release itself caused, such as a publish that waited for an entry that is now
        // unreferenced.
        self.actions_out.retain(
            |a| !matches!(a, Action::Complete { session, .. } | Action::EndSession { session, .. } if *session == s),
        );
        let session = &mut self.sessions[usize::from(s)];
        let (quarantine, woken) = (session.quarantine, session.woken);
        let reading = std::mem::take(&mut session.reading);
        let late_frames = std::mem::take(&mut session.late_frames);
        let harmless = quarantine.is_empty() && reading.is_empty() && late_frames.is_empty();
        let lost_us = self.now;
        *session = Session { life: Life::Lost, quarantine, reading, late_frames, lost_us, woken, ..Session::default() };
        self.counters.quarantined_total += u64::from(quarantine.len);
        self.end_feed(s);
        self.wake_all();
        if harmless {
            // The process cannot write or read any host frame any more.
            self.session_gone(s);
        } else {
            self.set_timer(self.now.saturating_add(super::late::LATE_US));
        }
        Ok(())
    }

    /// Process the exit of a session's process: its frames are no longer written.
    pub(crate) fn session_exited(&mut self, s: SessionId) -> Result<(), Error> {
        match self.sessions.get(usize::from(s)).map(|x| x.life) {
            Some(Life::Live) => self.session_lost(s)?,
            Some(Life::Lost) => {}
            // Already released: nothing was in flight when the session was lost.
            Some(Life::Empty) => return Ok(()),
            None => return Err(Error::NoSession { session: s }),
        }
        if self.sessions[usize::from(s)].life == Life::Lost {
            self.session_gone(s);
        }
        Ok(())
    }

    fn session_gone(&mut self, s: SessionId) {
        let mut list = self.sessions[usize::from(s)].quarantine;
        while self.host.unquarantine(&mut list) {}
        for at in std::mem::take(&mut self.sessions[usize::from(s)].late_frames) {
            self.end_late(at);
        }
        for page in std::mem::take(&mut self.sessions[usize::from(s)].reading) {
            self.pages[page as usize].loads -= 1;
            self.settle_host(page);
            self.remove_in_flight(self.geo.block_of(page));
        }
        let woken = self.sessions[usize::from(s)].woken;
        self.sessions[usize::from(s)] = Session { woken, ..Session::default() };
        self.actions_out.push_back(Action::SessionGone { session: s });
        self.wake_all();
        self.wake_admission();
    }

    fn abandon_ops(&mut self, s: u16) {
        for op in 0..self.sessions[usize::from(s)].ops.recs.len() as u32 {
            if self.sessions[usize::from(s)].ops[op].phase != crate::requests::Phase::Free {
                self.note_unstored(s, op, Cause::StoreFailed);
                self.undo_op(s, op);
                self.retire_op(s, op);
            }
        }
    }

    /// Abandon jobs in flight, which never end. Their resources are released, except the host frames that CopyOut jobs write.
    fn abandon_jobs(&mut self, s: u16) {
        for slot in 0..self.sessions[usize::from(s)].jobs.recs.len() as u32 {
            let job = self.sessions[usize::from(s)].jobs[slot];
            if !job.live || self.abandon_late(s, slot) {
                continue;
            }
            match job.task {
                Task::Install | Task::CopyIn | Task::Copy | Task::CopyInAs => {
                    if job.frame != NONE {
                        if job.victim != NONE
                            && self.in_mapped_frame(s, job.frame)
                            && !mutants::on(Mutant::NoQuarantine)
                        {
                            // The page may still be shown.
                            self.keep_reading(s, job.victim);
                        }
                        self.count_mapped(s, job.frame, job.page, false);
                        self.remove_copy(job.page, s, job.frame);
                        self.unlist(s, job.frame);
                        let frame = self.frame_mut(s, job.frame);
                        (frame.state, frame.job) = (FrameState::Free, NONE);
                    }
                    self.keep_source(s, job);
                    self.end_place(s, slot, job);
                }
                Task::Scatter => {
                    self.keep_source(s, job);
                    self.host_read(job.page);
                    self.remove_in_flight(self.geo.block_of(job.page));
                }
                Task::CopyOut | Task::Gather => {
                    let page = &mut self.pages[job.page as usize];
                    page.set_copying_out(false);
                    if job.task == Task::Gather {
                        self.host.count_copying(self.geo.class_of_page(job.page), false);
                    }
                    if mutants::on(Mutant::NoQuarantine) {
                        self.host.free(job.host);
                    } else {
                        let mut list = self.sessions[usize::from(s)].quarantine;
                        self.host.quarantine(&mut list, job.host);
                        self.sessions[usize::from(s)].quarantine = list;
                    }
                    if job.task == Task::CopyOut {
                        self.frame_mut(s, job.frame).job = NONE;
                    }
                    self.remove_in_flight(self.geo.block_of(job.page));
                }
                // A page that was unsealed may be sealed and published now. It is released with the other frames.
                Task::Move => self.undo_move(s, slot, job),
                Task::Evict => {
                    self.unmapped_by_loss(s, job.frame, job.page);
                    self.invalidated(job.page);
                }
                Task::Drop => self.dropped(s, self.geo.block_of(job.page)),
                Task::Cancel => {}
            }
        }
    }

    /// Keep the source of a load in flight. The process may read the host frame, and install its bytes, until it exits; so the
    /// frame keeps its data until then.
    fn keep_source(&mut self, s: u16, job: crate::sessions::JobRec) {
        let page = match job.task {
            Task::CopyIn | Task::Scatter => job.page,
            Task::CopyInAs => job.source,
            _ => return,
        };
        if !job.in_flight || mutants::on(Mutant::NoQuarantine) {
            return;
        }
        self.keep_reading(s, page);
    }

    fn keep_reading(&mut self, s: u16, page: u32) {
        self.pages[page as usize].loads += 1;
        self.add_in_flight(self.geo.block_of(page));
        self.sessions[usize::from(s)].reading.push(page);
    }

    /// Keep the page of a lost session's mapped frame, which shows the page until the process exits. Other frames are ignored.
    fn unmapped_by_loss(&mut self, s: u16, f: u32, page: u32) {
        if page != NONE && self.sessions[usize::from(s)].is_mapped_frame(f) {
            if !mutants::on(Mutant::NoQuarantine) {
                self.keep_reading(s, page);
            }
            self.count_mapped(s, f, page, false);
        }
    }

    fn abandon_seqs(&mut self, s: u16) {
        for seq in 0..self.sessions[usize::from(s)].seqs.len() as u32 {
            if self.sessions[usize::from(s)].seqs[seq as usize].live {
                self.drop_tail(s, seq, 0);
            }
        }
    }

    /// Release the tier-0 frames, which are lost with their process. Pages that were only there are lost.
    fn abandon_frames(&mut self, s: u16) {
        for f in 0..self.sessions[usize::from(s)].frames.len() as u32 {
            let frame = *self.frame(s, f);
            match frame.on {
                // A queued Evict or Drop has nothing left to do.
                On::Evict | On::EvictLater => {
                    self.unlist(s, f);
                    self.unmapped_by_loss(s, f, frame.page);
                    self.invalidated(frame.page);
                }
                On::Drop => {
                    let b = self.geo.block_of(frame.page);
                    self.unlist(s, f);
                    self.dropped(s, b);
                }
                _ => {}
            }
            let frame = *self.frame(s, f);
            if frame.state == FrameState::Present {
                self.unlist(s, f);
                self.unmapped_by_loss(s, f, frame.page);
                self.remove_copy(frame.page, s, f);
                self.frame_mut(s, f).state = FrameState::Free;
                self.settle_host(frame.page);
                self.counters.transitions += 1;
                self.lose_if_nowhere(frame.page, Cause::EngineLost);
            }
        }
    }

    /// Mark a page as lost if it is in no tier any more. Its block is not found by new readers; sequences that refer to it fail
    /// at their next fault.
    pub(crate) fn lose_if_nowhere(&mut self, page: u32, cause: Cause) {
        let p = &mut self.pages[page as usize];
        let b = self.geo.block_of(page);
        if p.below() || p.frame != NONE || p.out_of_window() || p.lost() || !self.blocks[b].live() {
            return;
        }
        p.set_lost();
        self.counters.pages_lost += 1;
        let entry = self.blocks[b].entry;
        if entry != NONE {
            self.remove_entry(entry, cause);
        }
    }
}
