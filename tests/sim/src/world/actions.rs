//! Execution of the core's actions, with checks: a daemon must never send two responses to one request, two jobs under one id, more
//! jobs than the ring holds, or a job on a slab that it does not have.

use super::context::{Check, Context, Ev, wrong};
use super::daemon::{Daemon, Slab};
use super::session::Session;
use crate::coverage::Met;
use crate::failure::Caught;
use crate::geometry::SLAB_FRAMES;
use kvtide_tiering::api::{Action, Event, Job, SessionId};
use kvtide_wire::entry::Completion;
use kvtide_wire::geometry::stride;
use kvtide_wire::job::{self, Ask};

/// Polls after which a core with room must have nothing left to do.
const IDLE_POLLS: u32 = 1000;

impl Daemon {
    /// Let the core handle an event and carry out all its actions.
    pub(super) fn handle(&mut self, cx: &mut Context, sessions: &mut [Session], event: Event<'_>) -> Check {
        let outcome = self.feed(cx.now(), event);
        if let Err(error) = outcome {
            return wrong(Caught::Protocol, format!("the core refused {event:?}: {error}"));
        }
        self.carry_out(cx, sessions)
    }

    /// Carry out the actions in the buffer, and those that the core still produces.
    pub(super) fn carry_out(&mut self, cx: &mut Context, sessions: &mut [Session]) -> Check {
        let mut idle = 0;
        loop {
            for at in 0..self.actions.actions().len() {
                let action = self.actions.actions()[at];
                self.action(cx, sessions, action)?;
            }
            self.actions.clear();
            if !self.core.has_output() {
                break;
            }
            self.poll(cx.now());
            idle = if self.actions.is_empty() { idle + 1 } else { 0 };
            if idle > IDLE_POLLS {
                return wrong(Caught::Hang, "the core says that it has something to do, and with room does nothing");
            }
        }
        // The daemon sleeps until then, and polls.
        if let Some(due_us) = self.core.next_deadline().filter(|due| *due < self.due_us || self.due_us <= cx.now()) {
            self.due_us = due_us;
            cx.queue.at(due_us.max(cx.now() + 1), Ev::Tick { epoch: self.epoch });
        }
        Ok(())
    }

    fn action(&mut self, cx: &mut Context, sessions: &mut [Session], action: Action) -> Check {
        match action {
            Action::Job { session, id, job } => self.send_job(cx, sessions, session, id, job),
            Action::Complete { tag, value, .. } if self.is_own_answer(tag, value) => Ok(()),
            Action::Complete { session, channel, tag, status, value, list } => {
                let Some(attached) = self.attached(session) else {
                    return wrong(Caught::Protocol, format!("a completion for session entry {session}, which is free"));
                };
                let index = attached.session;
                let Some(op) = attached.requests.remove(&(channel, tag)) else {
                    return wrong(
                        Caught::Protocol,
                        format!("a second completion for s{index}.c{channel} tag {tag}: {status:?}"),
                    );
                };
                let list = self.actions.list(list).to_vec();
                let list_len = list.len() as u32;
                let entry = Completion { value, list_len, ..Completion::new(op, tag, status) };
                sessions[index].complete(cx, channel, (entry, list))
            }
            Action::NeedSlab { class } => {
                cx.trace.fold(&[5, u64::from(class)]);
                cx.say(|| format!("daemon -> node: needs a slab of class {class}"));
                let delay = cx.rng.delay(1, 50, 50);
                cx.queue.after(delay, Ev::Slab { epoch: self.epoch, class });
                Ok(())
            }
            Action::ReturnSlab { slab } => self.take_back(cx, slab),
            Action::NeedDisk { .. } => {
                self.need_disk(cx);
                Ok(())
            }
            Action::ReturnDisk { slab } => self.return_disk(cx, slab),
            Action::Io { id, kind, class, at, list } => {
                let list = self.actions.list(list).to_vec();
                self.io(cx, id, (kind, class), at, &list)
            }
            Action::Urge { id, class } => self.urge(cx, id, class),
            Action::Record { list, .. } => {
                let list = self.actions.list(list).to_vec();
                self.log_request(cx, action, &list)
            }
            Action::Erase { .. } | Action::Flush { .. } => self.log_request(cx, action, &[]),
            Action::EndSession { session, late_bytes, .. } => {
                if let Some(index) = self.attached(session).filter(|a| !a.lost).map(|a| a.session) {
                    cx.say(|| format!("daemon: late jobs of s{index} hold {late_bytes} bytes"));
                    cx.queue.after(0, Ev::Die { session: index });
                }
                Ok(())
            }
            Action::SessionGone { session } => {
                cx.say(|| format!("daemon: session entry {session} is free"));
                match self.slots.get_mut(usize::from(session)).and_then(Option::take) {
                    Some(attached) if attached.lost => Ok(()),
                    _ => wrong(Caught::Protocol, format!("session entry {session} given back while it is attached")),
                }
            }
        }
    }

    fn send_job(&mut self, cx: &mut Context, sessions: &mut [Session], slot: SessionId, id: u32, job: Job) -> Check {
        let jobs_max = cx.geometry.config.limits.jobs_max as usize;
        if let Some(frame) = job.host_frame()
            && self.place(frame).is_none()
        {
            return wrong(Caught::Protocol, format!("{job:?} names a host frame that was not granted"));
        }
        if let Some(id) = job.host_frame().and_then(|f| self.transfer_with(f, writes_host(&job))) {
            return wrong(Caught::Overlap, format!("{job:?} beside transfer {id} on its host frame"));
        }
        let Some(attached) = self.attached(slot).filter(|a| !a.lost) else {
            return wrong(Caught::Protocol, format!("{job:?} for session entry {slot}, which is not attached"));
        };
        let index = attached.session;
        if attached.jobs.len() >= jobs_max || attached.jobs.insert(id, job).is_some() {
            return wrong(Caught::Protocol, format!("s{index}: job {id} ({job:?}) is one too many"));
        }
        cx.trace.fold(&[3, index as u64, u64::from(id)]);
        cx.say(|| format!("daemon -> s{index} job {id} {job:?}"));
        let at = cx.now() + cx.hop();
        let place = job.host_frame().and_then(|frame| self.place(frame));
        match sessions[index].jobs.push(at, (job::entry(id, job, Ask::Nothing), place)) {
            Ok(seen) => cx.queue.at(seen, Ev::CopyLoop { session: index }),
            Err(_) => return wrong(Caught::Protocol, format!("s{index}: job ring overrun")),
        }
        Ok(())
    }

    /// Answer a request for memory, as long as the quota has some.
    pub fn slab(&mut self, cx: &mut Context, sessions: &mut [Session], class: u8) -> Check {
        let bytes = u64::from(stride(cx.geometry.class_bytes[usize::from(class)])) * u64::from(SLAB_FRAMES);
        let quota = cx.geometry.config.limits.host_bytes_max;
        if self.granted_bytes + bytes > quota || cx.rng.chance(cx.faults.refuse) {
            cx.coverage.met(Met::SlabRefused);
            cx.say(|| format!("node: no slab of class {class}"));
            return self.handle(cx, sessions, Event::SlabRefused { class });
        }
        let arena = cx.arenas.add(SLAB_FRAMES, cx.geometry.slots());
        let slab = self.slabs.iter().position(Option::is_none).unwrap_or_else(|| {
            self.slabs.push(None);
            self.slabs.len() - 1
        });
        self.slabs[slab] = Some(Slab { arena, class });
        self.granted_bytes += bytes;
        cx.coverage.met(Met::SlabGranted);
        cx.say(|| format!("node: slab {slab} of class {class} granted"));
        self.handle(cx, sessions, Event::SlabGranted { class, slab: slab as u32, frames: SLAB_FRAMES })
    }

    fn take_back(&mut self, cx: &mut Context, slab: u32) -> Check {
        let Some(Slab { arena, class }) = self.slabs.get_mut(slab as usize).and_then(Option::take) else {
            return wrong(Caught::Protocol, format!("slab {slab} given back, which was not granted"));
        };
        if self.transfers_in(slab) {
            return wrong(Caught::Protocol, format!("slab {slab} given back under a transfer"));
        }
        if cx.devices.touches(arena, |owner| !cx.dead.contains(&owner)) {
            return wrong(Caught::Protocol, format!("slab {slab} given back while a device copies there"));
        }
        cx.arenas.remove(arena);
        self.granted_bytes -= u64::from(stride(cx.geometry.class_bytes[usize::from(class)])) * u64::from(SLAB_FRAMES);
        cx.coverage.met(Met::SlabReturned);
        cx.say(|| format!("node: slab {slab} is back"));
        Ok(())
    }
}

/// Return whether a job writes its host frame.
pub(super) fn writes_host(job: &Job) -> bool {
    matches!(job, Job::CopyOut { .. } | Job::Gather { .. })
}
