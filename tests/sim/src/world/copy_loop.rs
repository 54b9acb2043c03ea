//! The agent's copy thread: passes jobs to the shipped mover, its copies to devices, and their ends to the daemon.

use super::World;
use super::context::{Check, Context, Ev, wrong};
use super::session::Session;
use crate::coverage::Met;
use crate::disk::DISK;
use crate::failure::Caught;
use crate::memory::{CopyFault, Outcome, Pace, Place, Progress};
use kvtide_client::agent::protocol as agent;
use kvtide_wire::status::Status;

/// The engine's copies between tier 0 and host.
const BUS: Pace = Pace { usual: (0, 6), late: (200, 2000) };

impl Session {
    /// Read the job ring, and advance everything that can continue.
    pub fn run_copy_loop(&mut self, cx: &mut Context) -> Check {
        // Jobs wait until the tables contain their pages again.
        if !self.alive || self.declaring.is_some() {
            return Ok(());
        }
        let now = cx.now();
        while let Some((job, place)) = self.jobs.peek(now).copied() {
            if let Some(place) = place {
                self.slabs.insert(job.slab, place.arena);
            }
            if self.mover.accept(&job, now * 1000).is_err() {
                cx.coverage.met(Met::MoverFull);
                break;
            }
            self.jobs.pop(now);
        }
        self.mover.poll();
        while let Some(copy) = self.mover.next_copy() {
            self.start(cx, copy)?;
        }
        while let Some(ended) = self.mover.next_ended(now * 1000) {
            if ended.done.status == Status::Busy.code() {
                cx.coverage.met(Met::JobBusy);
            }
            cx.trace.fold(&[4, self.index as u64, u64::from(ended.done.id), ended.done.status as u64]);
            let me = self.index;
            cx.say(|| {
                format!(
                    "s{me} -> job {} {:?} ended with {:?}",
                    ended.done.id,
                    ended.kind,
                    Status::from_code(ended.done.status)
                )
            });
            let at = now + cx.hop();
            match self.done.push(at, ended.done) {
                Ok(seen) => cx.queue.at(seen, Ev::Drain { session: me }),
                // The ring has no reader any more, or is full of false completions; their sender is about to be disconnected.
                Err(_) if self.slot.is_none() || cx.faults.babble > 0 => {}
                Err(_) => return wrong(Caught::Protocol, format!("s{me}: more jobs ended than the ring holds")),
            }
        }
        Ok(())
    }

    fn start(&mut self, cx: &mut Context, copy: agent::CopyOp) -> Check {
        let me = self.index;
        if let agent::Place::MappedFrame(frame) = copy.to {
            return self.show(cx, &copy, frame);
        }
        let there = |place| !matches!(place, agent::Place::Frame(frame) if !self.has_frame(cx, frame));
        if !there(copy.from) || !there(copy.to) {
            return wrong(Caught::Protocol, format!("s{me}: {copy:?} names a frame without memory"));
        }
        let (Some(from), Some(to)) = (self.place(copy.from, copy.plane), self.place(copy.to, copy.plane)) else {
            return wrong(Caught::Protocol, format!("s{me}: {copy:?} names memory that was not granted"));
        };
        if let Some(other) = cx.devices.conflict(from, to, |owner| !cx.dead.contains(&owner)) {
            let detail = format!("s{me}: {copy:?} begins while {} still copies there", other.says());
            return wrong(Caught::Overlap, detail);
        }
        let token = self.copies.iter().position(Option::is_none).unwrap_or_else(|| {
            self.copies.push(None);
            self.copies.len() - 1
        });
        self.copies[token] = Some(copy);
        let fault = cx.copy_fault();
        cx.say(|| format!("s{me} copies {:?} to {:?}, fault {fault:?}", copy.from, copy.to));
        let slots = cx.geometry.slots();
        let (id, delay) = cx.devices.start(&mut cx.rng, (me, token as u64), (from, to), slots, fault, BUS);
        if fault == Some(CopyFault::Endless) {
            self.stuck = true;
        }
        cx.queue.after(delay, Ev::Copy { copy: id });
        Ok(())
    }

    /// Make a mapped frame show a page in place, or nothing; that moves no bytes.
    fn show(&mut self, cx: &mut Context, copy: &agent::CopyOp, frame: u32) -> Check {
        let place = self.place(copy.from, copy.plane);
        let named = matches!(copy.from, agent::Place::Nothing);
        if place.is_none() && !named {
            let detail = format!("s{}: {copy:?} names memory that was not granted", self.index);
            return wrong(Caught::Protocol, detail);
        }
        // An eviction cannot fail.
        let fails = !named && cx.copy_fault() == Some(CopyFault::Failed);
        match place.filter(|_| !fails) {
            Some(place) => _ = self.mapped_frames.insert(frame, place),
            None => _ = self.mapped_frames.remove(&frame),
        }
        if !named && !fails {
            cx.coverage.met(Met::InPlace);
        }
        let whole = agent::Copied { bytes: u64::from(copy.bytes), digest: 0 };
        self.mover.copied(copy, if fails { Err(Status::Io) } else { Ok(whole) });
        Ok(())
    }

    /// Return the place of the page that a frame shows.
    pub(super) fn shown_at(&self, frame: u32) -> Place {
        self.mapped_frames.get(&frame).copied().unwrap_or(Place { arena: self.tier0, frame })
    }

    /// Return the place of the agent's memory.
    fn place(&self, place: agent::Place, plane: u16) -> Option<Place> {
        match place {
            agent::Place::Frame(frame) => Some(Place { arena: self.tier0, frame }),
            // Only blocks of a request in flight have a place.
            agent::Place::Engine(block) => self.own.place(block, plane),
            agent::Place::MappedFrame(_) | agent::Place::Nothing => None,
            agent::Place::Host { slab, slot } => Some(Place { arena: *self.slabs.get(&slab)?, frame: slot }),
        }
    }

    /// Return whether the engine's own blocks are being copied.
    pub(super) fn copies_blocks(&self) -> bool {
        let own = |place| matches!(place, agent::Place::Engine(_));
        self.copies.iter().flatten().any(|copy| own(copy.from) || own(copy.to))
    }

    /// Handle the end of a copy on a device.
    fn copied(&mut self, cx: &mut Context, token: u64, outcome: Outcome) -> Check {
        let Some(copy) = self.copies.get_mut(token as usize).and_then(Option::take) else { return Ok(()) };
        let whole = u64::from(copy.bytes);
        let result = match outcome {
            Outcome::Whole => Ok(agent::Copied { bytes: whole, digest: 0 }),
            // Any length from zero to all but one byte.
            Outcome::Short => Ok(agent::Copied { bytes: cx.rng.below(whole), digest: 0 }),
            Outcome::Failed => Err(Status::Io),
        };
        self.mover.copied(&copy, result);
        self.run_copy_loop(cx)
    }
}

impl World {
    /// Let a device access memory.
    pub(super) fn copy_event(&mut self, id: crate::memory::CopyId) -> Check {
        let World { cx, daemon, sessions, .. } = self;
        let Some((owner, token)) = cx.devices.get(id).map(|copy| (copy.owner, copy.token)) else { return Ok(()) };
        match cx.devices.advance(&mut cx.rng, &mut cx.arenas, id) {
            Progress::Again(delay) => cx.queue.after(delay, Ev::Copy { copy: id }),
            Progress::Never => {}
            Progress::Done(outcome) if owner == DISK => {
                if let Some(daemon) = daemon {
                    daemon.disk_copied(cx, token, outcome)?;
                }
            }
            // Ends of a dead process's copies have no receiver; their writes were real.
            Progress::Done(_) if !sessions[owner].alive => {}
            Progress::Done(outcome) => sessions[owner].copied(cx, token, outcome)?,
        }
        Ok(())
    }
}
