//! Start and end of processes, sessions, daemons, and of the episode itself.

use super::context::{Check, Ev, wrong};
use super::daemon::Daemon;
use super::session::Session;
use super::{AUDIT_US, World};
use crate::coverage::Met;
use crate::failure::Caught;
use kvtide_tiering::api::{Event, Limits};

/// Simulated microseconds after its last operation within which an episode must be idle.
const QUIET_US: u64 = 2_000_000;

/// At one audit in this many another space of the node runs out of memory.
const RECLAIM_AUDITS: u64 = 7;

/// Simulated microseconds after which an unfinished episode counts as hung.
const LIFE_US: u64 = 60_000_000;

/// Phase of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Engines work.
    Running,
    /// Engines drop everything and wait for requests in flight, until then.
    Draining {
        /// Time by which it must be idle.
        until_us: u64,
    },
    /// Engines have left; the daemon releases their sessions.
    Closing {
        /// Time by which it must be idle.
        until_us: u64,
    },
    /// Over.
    Over,
}

impl World {
    pub(super) fn begin(&mut self) -> Check {
        self.daemon_starts()?;
        self.cx.queue.after(AUDIT_US, Ev::Audit);
        Ok(())
    }

    pub(super) fn daemon_starts(&mut self) -> Check {
        self.daemons += 1;
        self.daemon = Some(Daemon::start(&mut self.cx, self.daemons)?);
        self.cx.say(|| "daemon: started".to_owned());
        for replica in 0..self.cx.geometry.replicas {
            for shard in 0..self.cx.geometry.config.shards {
                let delay = self.cx.rng.between(0, 100);
                self.cx.queue.after(delay, Ev::Attach { replica, shard });
            }
        }
        for reader in 0..self.cx.geometry.readers {
            let (replica, shard) = (self.cx.geometry.replicas + reader, reader as u16 % self.cx.geometry.config.shards);
            let delay = self.cx.rng.between(0, 2_000);
            self.cx.queue.after(delay, Ev::Attach { replica, shard });
        }
        Ok(())
    }

    /// Attach an engine, unless the episode ends or its place is taken.
    pub(super) fn attach(&mut self, replica: usize, shard: u16) -> Check {
        let World { cx, daemon, sessions, phase, .. } = self;
        let taken = sessions.iter().any(|s| s.alive && (s.replica, s.shard) == (replica, shard));
        let Some(daemon) = daemon.as_mut().filter(|_| !taken && *phase == Phase::Running) else { return Ok(()) };
        let Some(slot) = daemon.free_slot() else {
            // All session entries are taken by sessions that have not ended completely.
            cx.queue.after(5_000, Ev::Attach { replica, shard });
            return Ok(());
        };
        let index = sessions.len();
        let session = Session::new(cx, index, replica, shard)?;
        sessions.push(session);
        cx.say(|| format!("s{index}: replica {replica} shard {shard} attaches to slot {slot}"));
        sessions[index].slot = Some(slot);
        daemon.attach(cx, sessions, index, slot)?;
        sessions[index].wake(cx);
        Ok(())
    }

    /// Kill an engine's process. Its devices continue until it has exited completely; the daemon detects it later.
    pub(super) fn die(&mut self, index: usize) -> Check {
        let World { cx, daemon, sessions, phase, .. } = self;
        let session = &mut sessions[index];
        if !session.alive {
            return Ok(());
        }
        session.alive = false;
        cx.dead.insert(index);
        let writing = cx.devices.in_flight(index) > 0;
        cx.say(|| format!("s{index}: dies, {} copies in flight", if writing { "with" } else { "no" }));
        let lost = cx.rng.between(0, 200);
        let mut exit = if cx.rng.chance(300) { cx.rng.between(0, 200) } else { cx.rng.between(200, 60_000) };
        if exit % 4 == 1 {
            // It detaches: its copies are over, and it sends the message.
            cx.devices.stop(index);
            exit = lost;
            if writing && *phase == Phase::Running {
                cx.coverage.met(Met::SessionLeft);
            }
        }
        cx.queue.after(lost, Ev::Lost { session: index });
        cx.queue.after(exit, Ev::Exit { session: index });
        if *phase == Phase::Running {
            cx.coverage.met(Met::SessionDied);
            if session.reader.is_some() {
                cx.coverage.met(Met::FeedReaderDied);
            }
            if writing {
                cx.coverage.met(Met::Quarantine);
            }
            if daemon.as_ref().is_some_and(|daemon| !daemon.transfers.is_empty()) {
                cx.coverage.met(Met::SessionDiedTransferring);
            }
            if session.copies_blocks() {
                cx.coverage.met(Met::SessionDiedCopying);
            }
            let (replica, shard) = (session.replica, session.shard);
            let delay = cx.rng.between(0, 20_000);
            cx.queue.after(delay, Ev::Attach { replica, shard });
        }
        Ok(())
    }

    /// Handle the complete exit of an engine's process: nothing writes any more.
    pub(super) fn exit(&mut self, index: usize) -> Check {
        let World { cx, daemon, sessions, .. } = self;
        cx.say(|| format!("s{index}: has exited"));
        cx.devices.stop(index);
        cx.arenas.remove(sessions[index].tier0);
        cx.arenas.remove(sessions[index].own.arena);
        match daemon {
            Some(daemon) => daemon.exited(cx, sessions, index),
            None => Ok(()),
        }
    }

    /// Kill the daemon: its state is gone, the engines' memory is not.
    pub(super) fn daemon_dies(&mut self) -> Check {
        let World { cx, daemon, sessions, phase, .. } = self;
        let Some(mut dead) = daemon.take_if(|_| *phase == Phase::Running) else { return Ok(()) };
        dead.replay(cx)?;
        dead.drop_disk(cx);
        cx.say(|| "daemon: dies".to_owned());
        cx.coverage.met(Met::DaemonDied);
        cx.library.forget();
        for session in sessions.iter_mut() {
            session.slot = None;
            if session.alive {
                if session.copies_blocks() {
                    cx.coverage.met(Met::DaemonDiedCopying);
                }
                session.daemon_gone(cx)?;
            }
        }
        let delay = cx.rng.between(100, 20_000);
        cx.queue.after(delay, Ev::DaemonStarts);
        Ok(())
    }

    /// Check for hangs and broken invariants, and advance the episode.
    pub(super) fn audit(&mut self) -> Check {
        if self.cx.now() > LIFE_US {
            return wrong(Caught::Hang, format!("the episode has not ended after {LIFE_US} us"));
        }
        self.cx.queue.after(AUDIT_US, Ev::Audit);
        let World { cx, daemon, sessions, .. } = self;
        if let Some(daemon) = daemon {
            daemon.check()?;
            if (cx.now() / AUDIT_US).is_multiple_of(RECLAIM_AUDITS) {
                cx.say(|| "node: another space wants memory".to_owned());
                let before = daemon.granted_bytes;
                // A roomy space must find everything that was published, so its cached content is never reclaimed.
                let cached = !cx.geometry.roomy && (cx.now() / AUDIT_US / RECLAIM_AUDITS).is_multiple_of(2);
                daemon.handle(cx, sessions, Event::Reclaim { cached })?;
                if daemon.granted_bytes < before {
                    cx.coverage.met(Met::Reclaimed);
                    daemon.handle(cx, sessions, Event::Freed)?;
                }
            }
            if cx.rng.chance(cx.faults.reload) {
                let policy = cx.geometry.other_policy(&mut cx.rng);
                cx.coverage.met(Met::Reconfigured);
                cx.say(|| format!("operator: {policy:?}"));
                let Limits { host_bytes_max, nvme_bytes_max, .. } = cx.geometry.config.limits;
                daemon.handle(cx, sessions, Event::Reconfigure { policy, host_bytes_max, nvme_bytes_max })?;
            }
        }
        for session in self.sessions.iter().filter(|s| s.alive && s.slot.is_some()) {
            session.audit(&self.cx)?;
        }
        self.advance()
    }

    fn advance(&mut self) -> Check {
        let World { cx, daemon, sessions, phase, ops_max, .. } = self;
        let now = cx.now();
        match *phase {
            Phase::Running if cx.ops >= *ops_max && daemon.is_some() => {
                cx.say(|| "episode: draining".to_owned());
                *phase = Phase::Draining { until_us: now + QUIET_US };
                sessions.iter_mut().for_each(|s| s.draining = s.reader.is_none());
            }
            Phase::Draining { until_us } => {
                // Readers compare their views with the cache once the engines have left.
                if sessions.iter().filter(|s| s.alive && s.reader.is_none()).all(Session::quiet) {
                    sessions.iter_mut().for_each(|s| s.draining = true);
                }
                let quiet = sessions.iter().filter(|s| s.alive).all(Session::quiet);
                if !quiet && now > until_us && cx.faults.endless == 0 {
                    let open: Vec<String> = sessions.iter().filter(|s| s.alive).map(Session::unquiet).collect();
                    return wrong(Caught::Hang, format!("not quiet {QUIET_US} us after its last operation: {open:?}"));
                }
                if quiet || now > until_us {
                    cx.say(|| "episode: closing".to_owned());
                    *phase = Phase::Closing { until_us: now + QUIET_US };
                    let alive = sessions.iter().filter(|s| s.alive).map(|s| s.index);
                    alive.for_each(|session| cx.queue.after(0, Ev::Die { session }));
                }
            }
            Phase::Closing { until_us } => {
                let attached = daemon.as_ref().map_or(0, Daemon::attached_count);
                if attached == 0 {
                    *phase = Phase::Over;
                } else if now > until_us {
                    return wrong(Caught::Leak, format!("{attached} session entries are not given back"));
                }
            }
            Phase::Running | Phase::Over => {}
        }
        Ok(())
    }

    /// After the last event: check that everything was returned.
    pub(super) fn finish(&mut self) -> Check {
        let Some(daemon) = &self.daemon else { return Ok(()) };
        daemon.check()?;
        daemon.all_back()?;
        daemon.replay(&mut self.cx)
    }

    /// Return whether no event is left.
    pub(super) fn over(&self) -> bool {
        self.phase == Phase::Over
    }
}
