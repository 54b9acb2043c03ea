//! State of a lane, which outlives its handle: its reader, its ring to the daemon, and messages still to be sent.

use super::{NO_STEP, Pass, Refusal, StepSeq, attention::Attention};
use crate::agent::{
    port::Port,
    protocol::{
        seqs::SeqState,
        step::{Counts, Fault, Found, Reader},
    },
    session::Session,
};
use kvtide_types::Request as WireRequest;
use kvtide_wire::{entry::LIST_WORDS, os::session::LaneWriter, status::Status};
use std::time::{Duration, Instant};

/// How long a boundary spins for its page before it sleeps: a few times a page fault between two running processes.
const SPIN: Duration = Duration::from_micros(200);

pub(super) const OPEN_STEP: &str = "a step is open: end it first";

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
    pub(super) fn prepare(&mut self, _: &Session) -> std::result::Result<(), Refusal> {
        Ok(())
    }

    /// No graph is captured without a device.
    #[cfg(not(feature = "cuda"))]
    pub(super) fn outside_capture(&self, _: &Session) -> std::result::Result<(), Refusal> {
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
    ) -> std::result::Result<(), Refusal> {
        Err(Status::Device.into())
    }

    /// Begin a step. See [`super::Lane::begin`].
    pub(super) fn begin(&mut self, session: &Session, seqs: &[StepSeq]) -> std::result::Result<(), Refusal> {
        if seqs.len() > LIST_WORDS {
            let why = format!("{} sequences; a step has at most {LIST_WORDS}", seqs.len());
            return Err(Refusal::because(Status::Limit, why));
        }
        self.outside_capture(session)?;
        self.prepare(session)?;
        let announce = self.begin_reader(session, seqs).map_err(|status| self.not_begun(session, seqs, status))?;
        self.begin_attention(session);
        self.unsent = None;
        self.unannounced = announce;
        self.words.steps(self.reader.step(), self.reader.step() - 1);
        self.words.position(self.reader.view().position());
        if announce || self.unended.is_some() {
            // The ring is full or the daemon is gone: the first boundary that misses a page tries again, and reports the error.
            let sent = self.catch_up(session).is_ok();
            session.counters.messages_before_steps.add(u64::from(announce && sent));
            self.port.ring();
            session.lane_moved();
        }
        Ok(self.enqueue(session)?)
    }

    /// Find why the reader began no step. It has changed nothing, so the reason is still there, unless another thread has removed it.
    fn not_begun(&self, session: &Session, seqs: &[StepSeq], status: Status) -> Refusal {
        if status == Status::State && self.reader.view().active() {
            return Refusal::because(status, OPEN_STEP);
        }
        let (table, page_tokens) = (session.shared.seqs(), session.shared.geometry().bounds().page_tokens);
        let why = |at: usize, StepSeq { seq, tokens }: StepSeq| match status {
            Status::NotFound if table.state(seq) == SeqState::Free => Some(format!("there is no sequence {seq}")),
            Status::State if seqs[..at].iter().any(|earlier| earlier.seq == seq) => {
                Some(format!("sequence {seq} is in the step twice"))
            }
            Status::State if table.in_step(seq) => Some(format!("sequence {seq} is in the step of another lane")),
            Status::State if !table.is_open(seq) => {
                Some(format!("sequence {seq} is parked, or a fork or truncate of it is in flight"))
            }
            Status::Range if session.shared.geometry().blocks_for(tokens) > table.len(seq) => {
                let room = u64::from(table.len(seq)) * u64::from(page_tokens);
                Some(format!("{tokens} tokens of sequence {seq}, which has room for {room}: reserve first"))
            }
            _ => None,
        };
        Refusal::new(status, seqs.iter().enumerate().find_map(|(at, wanted)| why(at, *wanted)))
    }

    /// Pass a boundary. See [`super::Lane::boundary`].
    pub(super) fn boundary(&mut self, session: &Session, plane: u16) -> std::result::Result<Pass, Refusal> {
        self.outside_capture(session)?;
        let before = self.reader.view().moves();
        if self.attention.inexact && self.reader.plane() != Some(plane) {
            self.reader.arrive(plane).map_err(|status| self.out_of_turn(plane, status))?;
            self.pick(session, plane);
        }
        let found = self.reader.boundary(plane).map_err(|status| self.out_of_turn(plane, status))?;
        self.words.position(self.reader.view().position());
        if before != self.reader.view().moves() {
            session.lane_moved();
        }
        let pass = match found {
            Found::All => Pass::All,
            Found::Part { last } => Pass::Part { count: self.reader.ready().len(), last },
            Found::Nothing { .. } => {
                let since = Instant::now();
                let pass = self.wait(session, plane, found, since);
                session.counters.stalls.add(1);
                session.counters.stall_ns.add(u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX));
                pass?
            }
        };
        self.build_owed(session, plane, pass);
        self.enqueue(session)?;
        Ok(pass)
    }

    /// Find why the reader refused a boundary.
    pub(super) fn out_of_turn(&self, plane: u16, status: Status) -> Refusal {
        let why = match (status, self.reader.plane()) {
            (Status::Range, _) => {
                format!("the space has {} planes", self.reader.view().shared().geometry().plane_count())
            }
            (Status::State, _) if !self.reader.view().active() => NO_STEP.into(),
            (Status::State, _) if self.reader.is_gated() => "the gates of the step are open: end the step".into(),
            (Status::State, Some(at)) if at > plane => format!("plane {at} has begun: planes come in ascending order"),
            (Status::State, Some(at)) if at == plane => {
                "the plane had a boundary, and is complete or in part read".into()
            }
            (status, _) => return status.into(),
        };
        Refusal::because(status, why)
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
            let Fault { seq, index, plane, use_pos, whole } = fault;
            let request = WireRequest::Fault { lane, use_pos, seq, index, plane, whole };
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
