//! State of a lane, which outlives its handle: how its steps begin, pass boundaries and end.

use super::{
    DeviceSide, NO_STEP, OPEN_STEP, Pass, Refusal, StepSeq,
    attention::{Attention, Open},
    messages::Messages,
};
use crate::agent::{
    port::Port,
    protocol::{
        seqs::SeqState,
        step::{Found, Reader},
    },
    session::Session,
};
#[cfg(feature = "cuda")]
use crate::agent::{
    protocol::Tracks,
    stream::{LaneStream, Sketches, Wait},
};
use kvtide_wire::{entry::LIST_WORDS, os::session::LaneWriter, status::Status};
#[cfg(feature = "cuda")]
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a boundary spins for its page before it sleeps: a few times a page fault between two running processes.
const SPIN: Duration = Duration::from_micros(200);

/// State of a lane, kept by the client while no handle exists. A call moves the reader, and then tells the daemon and the device.
pub(crate) struct State {
    reader: Reader,
    messages: Messages,
    attention: Attention,
    device: DeviceSide,
}

impl State {
    pub fn new(reader: Reader, port: Port, words: LaneWriter) -> State {
        let attention = Attention::new(reader.view().shared().geometry().plane_count());
        State { reader, messages: Messages::new(port, words), attention, device: Default::default() }
    }

    /// Attach the lane's device side.
    #[cfg(feature = "cuda")]
    pub fn on(&mut self, stream: &Arc<LaneStream>, tracks: Box<dyn Tracks>, sketches: Option<Box<Sketches>>) {
        self.reader.track(tracks);
        self.attention.on(sketches, Arc::clone(stream));
        self.device = DeviceSide::new(Arc::clone(stream));
    }

    pub(super) fn reader(&self) -> &Reader {
        &self.reader
    }

    pub(super) fn attention(&self) -> &Attention {
        &self.attention
    }

    #[cfg(feature = "cuda")]
    pub(super) fn stream(&self) -> Option<&Arc<LaneStream>> {
        self.device.stream()
    }

    /// Return the attention, and the step that it may use.
    pub(super) fn attending<'a>(&'a mut self, session: &'a Session) -> (&'a mut Attention, Open<'a>) {
        (&mut self.attention, Open { session, reader: &mut self.reader, messages: &mut self.messages })
    }

    /// Publish that the reader has moved, if it has: it had made `before` moves.
    fn moved(&self, session: &Session, before: u64) {
        self.messages.position(&self.reader);
        if before != self.reader.view().moves() {
            session.lane_moved();
        }
    }

    /// Begin a step. See [`super::Lane::begin`].
    pub(super) fn begin(&mut self, session: &Session, seqs: &[StepSeq]) -> Result<(), Refusal> {
        if seqs.len() > LIST_WORDS {
            let why = format!("{} sequences; a step has at most {LIST_WORDS}", seqs.len());
            return Err(Refusal::because(Status::Limit, why));
        }
        self.device.outside_capture(session)?;
        self.device.begin(session, &mut self.reader)?;
        let announce = self.begin_reader(session, seqs).map_err(|status| self.not_begun(session, seqs, status))?;
        self.attention.begin(session, &self.reader);
        self.messages.begun(session, &self.reader, announce);
        Ok(self.device.enqueue(session)?)
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
    pub(super) fn boundary(&mut self, session: &Session, plane: u16) -> Result<Pass, Refusal> {
        self.device.outside_capture(session)?;
        let before = self.reader.view().moves();
        let (attention, mut open) = self.attending(session);
        let arrived = attention.arrive(&mut open, plane).and_then(|()| open.reader.boundary(plane));
        let found = arrived.map_err(|status| self.out_of_turn(plane, status))?;
        self.moved(session, before);
        let pass = match found {
            Found::All => Pass::All,
            Found::Part { last } => Pass::Part { count: self.reader.ready().len(), last },
            Found::Nothing { .. } => {
                let since = Instant::now();
                let pass = self.wait(session, plane, found, since);
                session.counters.stalled(since);
                pass?
            }
        };
        self.attention.handed_out(session, &self.reader, plane, pass);
        self.device.enqueue(session)?;
        Ok(pass)
    }

    /// Find why the reader refused a boundary.
    fn out_of_turn(&self, plane: u16, status: Status) -> Refusal {
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
    fn begin_reader(&mut self, session: &Session, seqs: &[StepSeq]) -> Result<bool, Status> {
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

    /// Wait until a page that was not handed out yet is readable. Help with copies meanwhile.
    fn wait(&mut self, session: &Session, plane: u16, found: Found, since: Instant) -> Result<Pass, Status> {
        let mut found = found;
        let mut helping = Some(session.helping());
        let mut spin_from = since;
        loop {
            match found {
                Found::All => return Ok(Pass::All),
                Found::Part { last } => return Ok(Pass::Part { count: self.reader.ready().len(), last }),
                Found::Nothing { announce, fault } => {
                    self.messages.ask(session, &self.reader, announce, fault)?;
                }
            }
            let progress = session.try_round().progress;
            self.messages.answers(session, &mut self.reader, plane)?;
            let now = Instant::now();
            let hope = self.attention.hope().filter(|_| self.reader.hopes());
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
                self.messages.sleep(session, &self.reader, left.min(hoped));
                helping = Some(session.helping());
                spin_from = Instant::now();
            } else {
                std::hint::spin_loop();
            }
            found = self.reader.boundary(plane)?;
        }
    }

    /// End the step. See [`super::Lane::end`].
    pub(super) fn end(&mut self, session: &Session) -> Result<(), Refusal> {
        self.device.outside_capture(session)?;
        self.close(session)
    }

    /// End the step whatever its stream does.
    pub(super) fn close(&mut self, session: &Session) -> Result<(), Refusal> {
        if self.reader.view().active() {
            let (attention, mut open) = self.attending(session);
            attention.end(&mut open);
        }
        let announced = self.reader.end().map_err(|status| Refusal::because(status, NO_STEP))?;
        self.device.close_gates();
        self.messages.ended(session, &mut self.reader, announced);
        session.counters.lane(&self.reader.take_counts());
        session.lane_moved();
        Ok(self.device.healthy(session)?)
    }
}

/// Steps whose boundaries the lane's stream waits for.
#[cfg(feature = "cuda")]
impl State {
    /// Return the lane's stream, to be bound now.
    pub(super) fn to_bind(&self) -> Result<Arc<LaneStream>, Refusal> {
        if self.reader.view().active() {
            return Err(Refusal::because(Status::State, OPEN_STEP));
        }
        self.device.stream().cloned().ok_or_else(super::stream::not_on_device)
    }

    /// Gather a plane's pages. Return true if all are readable. Otherwise ask for one that is not, and process answers.
    pub(super) fn gather(&mut self, session: &Session, plane: u16) -> Result<bool, Status> {
        let before = self.reader.view().moves();
        let found = self.reader.gather(plane);
        self.moved(session, before);
        let Found::Nothing { announce, fault } = found? else { return Ok(true) };
        self.messages.ask(session, &self.reader, announce, fault)?;
        self.messages.answers(session, &mut self.reader, plane).map(|()| false)
    }

    /// Pass a boundary, or let the stream wait for it. See [`super::Lane::boundary_async`].
    pub(super) fn boundary_async(&mut self, session: &Session, plane: u16) -> Result<Option<Wait>, Refusal> {
        let before = self.reader.view().moves();
        let found = self.reader.gather(plane).map_err(|status| self.out_of_turn(plane, status))?;
        self.moved(session, before);
        let Found::Nothing { announce, fault } = found else {
            self.device.enqueue(session)?;
            return Ok(None);
        };
        let waits = self.device.check_wait(session, &self.reader);
        waits.inspect_err(|_| self.reader.fault_ended())?;
        self.messages.ask(session, &self.reader, announce, fault)?;
        self.device.wait(session)?.map(Some).ok_or(Status::Again.into())
    }

    /// Open the gates of the step. See [`super::Lane::open_gates`].
    pub(super) fn open_gates(&self, session: &Session) -> Result<(), Refusal> {
        self.device.outside_capture(session)?;
        if !self.reader.is_new() {
            let why = if self.reader.view().active() { "the step had a boundary already" } else { NO_STEP };
            return Err(Refusal::because(Status::State, why));
        }
        self.device.check_wait(session, &self.reader)?;
        self.device.open_gates(session)
    }

    /// Gather planes of a gated step until one misses a page, and ask for that page.
    pub(super) fn gather_gated(&mut self, session: &Session, next: &mut u16) -> Result<(), Status> {
        let before = self.reader.view().moves();
        let mut missing = None;
        while missing.is_none() && u32::from(*next) < session.shared.geometry().plane_count() {
            match self.reader.gather_gated(*next)? {
                Found::Nothing { announce, fault } => missing = Some((announce, fault)),
                _ => *next += 1,
            }
        }
        self.moved(session, before);
        let Some((announce, fault)) = missing else { return Ok(()) };
        self.messages.ask(session, &self.reader, announce, fault)?;
        self.messages.answers(session, &mut self.reader, *next)
    }
}
