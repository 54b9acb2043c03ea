//! Actions of an engine's threads between their calls, and the auditor's expectations.

use super::context::{Check, Context, Ev, wrong};
use super::session::{Pending, Session};
use crate::coverage::Met;
use crate::failure::Caught;
use kvtide_wire::entry::{JobDone, Op};

impl Session {
    /// Let the engine thread of a channel act, and schedule it again.
    pub fn channel_event(&mut self, cx: &mut Context, channel: usize) -> Check {
        if !self.alive {
            return Ok(());
        }
        let session = self.index;
        if self.slot.is_some() {
            self.answers(cx, channel)?;
            match (&self.declaring, self.draining) {
                (Some(_), _) if channel == 0 => self.declare_next(cx),
                (Some(_), _) => {}
                (None, true) => self.drain(cx, channel),
                (None, false) => self.act(cx, channel),
            }
            self.babble(cx);
            self.mortality(cx);
        }
        if cx.rng.chance(100) {
            self.read_pins(cx)?;
        }
        let delay = cx.rng.delay(1, cx.geometry.think_us, 10);
        cx.queue.after(delay, Ev::Channel { session, channel });
        Ok(())
    }

    /// Drop the channel's data, one item at a time.
    fn drain(&mut self, cx: &mut Context, channel: usize) {
        if self.reader.is_some() {
            return self.read_feed(cx, channel);
        }
        let lease = self.own.leases.iter().find(|(_, lease)| lease.channel == channel).map(|(slot, _)| *slot);
        if let Some(slot) = lease {
            return self.end_lease(cx, channel, slot);
        }
        let mine: Vec<u32> =
            self.idle_seqs(channel).filter(|s| self.seq(*s).is_some_and(|q| q.lane.is_none())).collect();
        if let Some(slot) = mine.first() {
            self.drop_seq(cx, channel, *slot);
        }
    }

    /// Sometimes send the completion of a job that was never given, or one with an invalid status.
    fn babble(&mut self, cx: &mut Context) {
        if self.draining || cx.rng.below(10_000) >= cx.faults.babble {
            return;
        }
        let any = cx.rng.bits();
        let mut done = JobDone { id: any as u32, status: (any >> 32) as i32 % 24, ..JobDone::default() };
        if let (true, Some((job, _))) = (cx.rng.chance(500), self.jobs.peek(u64::MAX)) {
            (done.id, done.status) = (job.id, 1000);
        }
        let now = cx.now();
        if let Ok(seen) = self.done.push(now, done) {
            cx.coverage.met(Met::NonsenseJobDone);
            let me = self.index;
            cx.say(|| format!("s{me} -> job {} ended, says a liar, with {}", done.id, done.status));
            cx.queue.at(seen, Ev::Drain { session: me });
        }
    }

    /// Kill this process, or the daemon, at random.
    fn mortality(&self, cx: &mut Context) {
        if self.draining {
            return;
        }
        // The supervisor kills a process if all its requests wait for a copy that never ends.
        let waits_for_ever = self.stuck && (0..usize::from(cx.geometry.channels)).all(|c| self.free_tag(c).is_none());
        if waits_for_ever || cx.rng.below(10_000) < cx.faults.die {
            cx.queue.after(0, Ev::Die { session: self.index });
        }
        if cx.rng.below(10_000) < cx.faults.daemon {
            cx.queue.after(0, Ev::DaemonDies);
        }
    }

    /// Handle the daemon's death. Until the engine attaches to another daemon, or its process ends, lanes continue with tier 0.
    pub fn daemon_gone(&mut self, cx: &mut Context) -> Check {
        let (session, delay) = (self.index, cx.rng.between(0, 5000));
        // An engine that had not finished its declarations does not know its frames' content any more.
        let lives_on = self.declaring.is_none() && cx.rng.chance(600);
        cx.queue.after(delay, if lives_on { Ev::Reattach { session } } else { Ev::Die { session } });
        Ok(())
    }

    /// Check that every request ends in bounded time.
    pub fn audit(&self, cx: &Context) -> Check {
        for (at, channel) in self.channels.iter().enumerate() {
            for (tag, pending) in channel.pending.iter().enumerate() {
                // Requests wait for copies to or from an engine's own memory, however long they take; one takes for ever.
                let waits = |p: &Pending| self.stuck && matches!(p.op, Op::LoadBlocks | Op::StoreBlocks);
                let due = |p: &&Pending| cx.now() > p.until_us && !waits(p);
                let Some(pending) = pending.as_ref().filter(due) else { continue };
                let detail = format!(
                    "s{}.c{at} tag {tag}: {:?} of seq {} was sent at {} us and has not ended",
                    self.index, pending.op, pending.seq, pending.sent_us
                );
                return wrong(Caught::Hang, detail);
            }
        }
        Ok(())
    }

    /// Return whether it holds nothing and has nothing in flight.
    #[must_use]
    pub fn quiet(&self) -> bool {
        self.channels.iter().all(|c| c.pending.iter().all(Option::is_none))
            && self.seqs.iter().all(Option::is_none)
            && self.own.leases.is_empty()
            && self.jobs.is_empty()
            && self.done.is_empty()
            && self.mover.in_flight() == 0
            && self.declaring.is_none()
            && self.reader.as_ref().is_none_or(|reader| reader.checked)
            && self.lanes.iter().all(super::steps::Lane::idle)
    }

    /// Return the reasons why it is not idle, as text.
    #[must_use]
    pub fn unquiet(&self) -> String {
        let pending: Vec<String> = self
            .channels
            .iter()
            .flat_map(|c| c.pending.iter().flatten())
            .map(|p| format!("{:?} {}", p.op, p.seq))
            .collect();
        format!(
            "s{}: pending {pending:?}, {} sequences, {} leases, {} jobs unseen, {} in the mover, {} ended, lanes idle {:?}",
            self.index,
            self.seqs.iter().flatten().count(),
            self.own.leases.len(),
            self.jobs.len(),
            self.mover.in_flight(),
            self.done.len(),
            self.lanes.iter().map(super::steps::Lane::idle).collect::<Vec<_>>()
        )
    }
}
