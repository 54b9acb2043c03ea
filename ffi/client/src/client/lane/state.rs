//! State of a lane, which outlives its handle: its reader, its ring to the daemon, and messages still to be sent.

use super::{Pass, StepSeq, attention::Attention};
use crate::agent::{
    port::Port,
    protocol::step::{Counts, Fault, Found, Reader},
    session::Session,
};
use kvtide_types::Request as WireRequest;
use kvtide_wire::{entry::LIST_WORDS, os::session::LaneWriter, status::Status};
use std::time::{Duration, Instant};

/// How long a boundary spins for its page before it sleeps: a few times a page fault between two running processes.
const SPIN: Duration = Duration::from_micros(200);

/// State of a lane, kept by the client while no handle exists.
pub(crate) struct State {
    pub(super) reader: Reader,
    pub(super) port: Port,
    pub(super) words: LaneWriter,
    /// Fault in flight of each tag.
    faults: Vec<Option<Fault>>,
    /// The last announced step, if the daemon does not know yet that it ended.
    pub(super) unended: Option<u64>,
    /// True if a step began that the daemon does not know yet.
    pub(super) unannounced: bool,
    /// A fault that did not fit into the ring.
    pub(super) unsent: Option<Fault>,
    counted: Counts,
    /// Attention reported by the engine, and the pages selected by it.
    pub(super) attention: Attention,
    /// The lane's device side, if tier 0 is on a device.
    #[cfg(feature = "cuda")]
    pub(super) stream: Option<std::sync::Arc<crate::agent::stream::LaneStream>>,
    /// Sketches of pages' keys on the device.
    #[cfg(feature = "cuda")]
    pub(crate) sketches: Option<Box<crate::agent::stream::Sketches>>,
}

impl State {
    pub fn new(reader: Reader, port: Port, words: LaneWriter) -> State {
        let faults = vec![None; port.room() + 1];
        let counted = Counts::default();
        let attention = Attention::new(reader.view().shared().geometry().plane_count());
        State {
            attention,
            reader,
            port,
            words,
            faults,
            unended: None,
            unannounced: false,
            unsent: None,
            counted,
            #[cfg(feature = "cuda")]
            stream: None,
            #[cfg(feature = "cuda")]
            sketches: None,
        }
    }

    /// Nothing to prepare without a device.
    #[cfg(not(feature = "cuda"))]
    pub(super) fn prepare(&mut self, _: &Session) -> std::result::Result<(), Status> {
        Ok(())
    }

    /// No graph is captured without a device.
    #[cfg(not(feature = "cuda"))]
    pub(super) fn outside_capture(&self, _: &Session) -> std::result::Result<(), Status> {
        Ok(())
    }

    /// Always healthy without a device.
    #[cfg(not(feature = "cuda"))]
    pub(super) fn healthy(&self, _: &Session) -> std::result::Result<(), Status> {
        Ok(())
    }

    /// Nothing to enqueue without a device.
    #[cfg(not(feature = "cuda"))]
    pub(super) fn enqueue(&self, _: &Session) -> std::result::Result<(), Status> {
        Ok(())
    }

    /// No gates without a device.
    #[cfg(not(feature = "cuda"))]
    pub(super) fn close_gates(&self) {}

    /// No sketches without a device.
    #[cfg(not(feature = "cuda"))]
    pub(super) fn build_on_device(&mut self, _: &Session, _: impl Iterator<Item = u32>, _: bool) {}

    /// As above.
    #[cfg(not(feature = "cuda"))]
    pub(super) fn take_answers(&mut self, _: &Session) {}

    /// As above.
    #[cfg(not(feature = "cuda"))]
    pub(super) fn ask_device(
        &mut self,
        _: &Session,
        _: super::ScoreKind,
        _: StepSeq,
        _: u16,
        _: &[f32],
    ) -> std::result::Result<(), Status> {
        Err(Status::Device)
    }

    /// Open a step. While tier 0 shrinks, unsealed pages are moved between steps; this thread then helps with the moves first,
    /// within the session's timeout.
    pub(super) fn begin_reader(&mut self, session: &Session, seqs: &[StepSeq]) -> std::result::Result<bool, Status> {
        let mut deadline = None;
        let mut helping = None;
        loop {
            if !session.shared.wants_quiet() {
                match self.reader.begin(seqs) {
                    Err(Status::Again) => {}
                    result => return result,
                }
            }
            if !session.alive() {
                // The daemon cannot complete the moves any more.
                session.copy_loop().mover().give_up_moves();
                continue;
            }
            helping.get_or_insert_with(|| session.helping());
            let deadline = *deadline.get_or_insert_with(|| crate::client::options::deadline(session.timeout));
            if session.try_round().progress {
                continue;
            }
            if Instant::now() >= deadline {
                return Err(Status::TimedOut);
            }
            std::thread::yield_now();
        }
    }

    /// Send the messages that did not fit into the ring before.
    pub(super) fn catch_up(&mut self, session: &Session) -> std::result::Result<(), Status> {
        let lane = self.reader.view().lane();
        if let Some(step) = self.unended {
            self.port.send(session, WireRequest::StepEnd { lane, step }, Duration::ZERO)?;
            self.unended = None;
        }
        if self.unannounced {
            let mut list = [0; LIST_WORDS];
            let members = self.reader.members();
            let count = members.len().min(LIST_WORDS);
            list.iter_mut().zip(members).for_each(|(word, seq)| *word = seq);
            let request = WireRequest::Step { lane, step: self.reader.step(), seqs: &list[..count] };
            self.port.send(session, request, Duration::ZERO)?;
            self.unannounced = false;
        }
        if let Some(fault) = self.unsent {
            let Fault { seq, index, plane, use_pos } = fault;
            let request = WireRequest::Fault { lane, use_pos, seq, index, plane };
            let tag = self.port.send(session, request, Duration::ZERO)?;
            self.faults[usize::from(tag)] = Some(fault);
            self.unsent = None;
            session.counters.faults.add(1);
        }
        Ok(())
    }

    /// Process the daemon's answers. Return the error of a fault that this boundary waits for.
    pub(super) fn answers(&mut self, session: &Session, plane: u16) -> std::result::Result<(), Status> {
        while let Some(answer) = self.port.next(session)? {
            let Some(fault) = self.faults.get_mut(usize::from(answer.tag)).and_then(Option::take) else { continue };
            self.reader.fault_answered(&fault);
            let current = fault.use_pos == self.reader.view().position() && fault.plane == plane;
            match answer.status {
                // The page is resident, was evicted again, or the fault's deadline has passed: the boundary checks, and sends the
                // fault again.
                Status::Ok | Status::TimedOut | Status::Again | Status::Canceled | Status::Busy => {}
                status if current => return Err(status),
                _ => {}
            }
        }
        Ok(())
    }

    /// Add the lane's counts since the last call to the session's statistics.
    pub(super) fn count(&mut self, session: &Session) {
        let now = self.reader.counts();
        session.counters.lane(&self.counted, &now);
        self.counted = now;
    }

    /// Report a boundary's missing page to the daemon.
    pub(super) fn ask(
        &mut self,
        session: &Session,
        announce: bool,
        fault: Option<Fault>,
    ) -> std::result::Result<(), Status> {
        self.unannounced |= announce;
        self.unsent = fault.or(self.unsent);
        session.usable()?;
        match self.catch_up(session) {
            Ok(()) | Err(Status::Again) => {}
            Err(status) => return Err(status),
        }
        self.port.ring();
        Ok(())
    }

    /// Wait until a page that was not handed out yet is readable. Help with copies meanwhile.
    pub(super) fn wait(
        &mut self,
        session: &Session,
        plane: u16,
        found: Found,
        since: Instant,
    ) -> std::result::Result<Pass, Status> {
        let mut found = found;
        let mut helping = Some(session.helping());
        let mut spin_from = since;
        loop {
            match found {
                Found::All => return Ok(Pass::All),
                Found::Part { last } => return Ok(Pass::Part { count: self.reader.ready().len(), last }),
                Found::Nothing { announce, fault } => self.ask(session, announce, fault)?,
            }
            let progress = session.try_round().progress;
            self.answers(session, plane)?;
            let now = Instant::now();
            let hope = self.attention.hope.filter(|_| self.reader.hopes());
            if hope.is_some_and(|until| now >= until) && self.reader.waive_late() {
                return Ok(Pass::Part { count: 0, last: true });
            }
            if progress {
                spin_from = now;
            } else if now.duration_since(since) >= session.timeout {
                return Err(Status::TimedOut);
            } else if now.duration_since(spin_from) >= SPIN {
                drop(helping.take());
                let left = session.timeout.saturating_sub(now.duration_since(since));
                let hoped = hope.map_or(left, |until| until.saturating_duration_since(now));
                self.sleep(session, left.min(hoped));
                helping = Some(session.helping());
                spin_from = Instant::now();
            } else {
                std::hint::spin_loop();
            }
            found = self.reader.boundary(plane)?;
        }
    }

    /// Sleep until the table changes, the daemon answers or is gone, or the timeout has passed.
    fn sleep(&mut self, session: &Session, timeout: Duration) {
        let waker = &session.lanes[usize::from(self.reader.view().lane())];
        waker.announce(1);
        let reader = &self.reader;
        let moved = || reader.view().behind() || !session.alive();
        self.port.sleep(session, Some(std::os::fd::AsFd::as_fd(waker)), timeout, moved);
        waker.awake();
    }
}
