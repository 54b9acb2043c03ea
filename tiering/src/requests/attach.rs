//! Attach, loss and exit of sessions.

use crate::api::{Action, Cause, NONE, SessionId};
use crate::block_api::Copier;
use crate::error::Error;
use crate::mutants::{self, Mutant};
use crate::paging::Pager;
use crate::requests::Requests;
use crate::sessions::{LATE_US, Life, Phase};

impl Requests {
    pub(crate) fn attach(&mut self, s: SessionId, shard: u16, lanes: u16, frames: &[u32]) -> Result<(), Error> {
        let refuse = |why| Err(Error::Attach { session: s, why });
        match self.sessions().get(s) {
            None => return refuse("session index is out of range"),
            Some(slot) if slot.life != Life::Empty => return refuse("session index is in use"),
            Some(_) => {}
        }
        if shard >= self.cfg().shards {
            return refuse("no such shard");
        }
        if lanes == 0 || lanes > self.cfg().limits.lanes_max {
            return refuse("lanes must be from 1 to lanes_max");
        }
        let classes = self.geo().classes.len();
        if frames.len() != classes && frames.len() != 2 * classes {
            return refuse("frames must be given for each size class, and mapped frames for all or none");
        }
        let has_tier0 = frames.iter().any(|&n| n > 0);
        if has_tier0 && frames.iter().zip(&self.geo().classes).any(|(&n, c)| n < 2 || n < c.planes) {
            return refuse("a size class has fewer frames than planes, or fewer than 2");
        }
        if frames.iter().map(|&n| u64::from(n)).sum::<u64>() >= u64::from(NONE) {
            return refuse("frames exceed the range of frame ids");
        }
        let limits = self.cfg().limits;
        self.pagers[s] = Pager::new(&limits, lanes);
        self.copiers[s] = Copier::default();
        self.below.attach(s, shard, lanes, frames);
        Ok(())
    }

    /// End a session after its lease ended. All its state is released, except published pages in host. Host frames that its jobs in
    /// flight may still write are quarantined until its process exits.
    pub(crate) fn session_lost(&mut self, s: SessionId) -> Result<(), Error> {
        if !self.is_live(s) {
            return Err(Error::NoSession { session: s });
        }
        self.counters.sessions_lost += 1;
        if !mutants::on(Mutant::GuaranteeOutlivesSession) {
            self.set_guarantee(s, 0);
        }
        self.abandon_ops(s);
        self.abandon_jobs(s);
        self.abandon_seqs(s);
        self.abandon_frames(s);
        // Also what the release itself caused, such as the end of a publish that waited for an entry that is now unreferenced.
        self.forget_actions(s);
        self.counters.quarantined_total += u64::from(self.lost()[s].quarantine.len);
        self.detach(s, Life::Lost);
        self.end_feed(s);
        self.wake_all();
        if self.lost()[s].is_harmless() {
            self.session_gone(s);
        } else {
            let at = self.now().saturating_add(LATE_US);
            self.set_timer(at);
        }
        Ok(())
    }

    /// Process the exit of a session's process: its frames are no longer written.
    pub(crate) fn session_exited(&mut self, s: SessionId) -> Result<(), Error> {
        match self.sessions().get(s).map(|x| x.life) {
            Some(Life::Live) => self.session_lost(s)?,
            Some(Life::Lost) => {}
            // Already released: nothing was in flight when the session was lost.
            Some(Life::Empty) => return Ok(()),
            None => return Err(Error::NoSession { session: s }),
        }
        if self.session(s).life == Life::Lost {
            self.session_gone(s);
        }
        Ok(())
    }

    fn session_gone(&mut self, s: SessionId) {
        self.release_lost(s);
        self.detach(s, Life::Empty);
        self.act(Action::SessionGone { session: s });
        self.wake_all();
        self.wake_admission();
    }

    /// End a session in all layers.
    fn detach(&mut self, s: SessionId, life: Life) {
        self.pagers[s] = Pager::default();
        self.copiers[s] = Copier::default();
        self.below.detach(s, life);
    }

    fn abandon_ops(&mut self, s: u16) {
        for op in 0..self.session(s).ops.recs.len() as u32 {
            if self.op(s, op).phase != Phase::Free {
                self.block_api().note_unstored(s, op, Cause::StoreFailed);
                self.undo_op(s, op);
                self.retire_op(s, op);
            }
        }
    }

    fn abandon_seqs(&mut self, s: u16) {
        for seq in 0..self.lists(s).seqs.len() as u32 {
            if self.lists(s).seqs[seq as usize].is_live() {
                self.drop_tail(s, seq, 0);
            }
        }
    }
}
