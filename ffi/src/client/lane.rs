//! A lane: one ordered stream of engine work, and its view of the page table.

use super::{Client, Error, Result, inner::Inner, options::FrameId, options::SeqId};
use crate::agent::{
    port::Port,
    protocol::step::{Counts, Fault, Found, Reader},
    session::Session,
};
use kvtide_wire::{
    entry::{LIST_WORDS, Op, Submission},
    os::session::LaneWriter,
    status::Status,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

pub use crate::agent::protocol::step::{Ready, StepSeq};

/// How long a boundary looks for its page before it sleeps: a few times a page fault between two processes that are awake.
const SPIN: Duration = Duration::from_micros(200);

/// What a boundary found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Every page that this plane of the step needs is readable through the table, and none was handed out before.
    All,
    /// [`Lane::ready`] holds `count` (at least one) pages that are readable now and were not handed out before for this step
    /// and plane; after `last` there are no more.
    Part {
        /// Pages in [`Lane::ready`].
        count: usize,
        /// Whether the plane is complete with them.
        last: bool,
    },
}

/// What a lane owns while nobody holds its handle.
pub(crate) struct State {
    reader: Reader,
    port: Port,
    words: LaneWriter,
    /// Fault in flight by tag.
    faults: Vec<Option<Fault>>,
    /// Announced steps of which the daemon does not know yet that they ended.
    unended: Option<u64>,
    /// A step of which the daemon does not know yet that it began.
    unannounced: bool,
    /// A fault that found no room in the ring.
    unsent: Option<Fault>,
    counted: Counts,
}

impl State {
    pub fn new(reader: Reader, port: Port, words: LaneWriter) -> State {
        let faults = vec![None; port.room() + 1];
        let counted = Counts::default();
        State { reader, port, words, faults, unended: None, unannounced: false, unsent: None, counted }
    }

    fn lane(&self) -> u16 {
        self.reader.view().lane()
    }

    fn send(
        &mut self,
        session: &Session,
        op: Op,
        request: Submission,
        list: &[u32],
    ) -> std::result::Result<u16, Status> {
        let request = Submission { lane: self.lane(), ..request };
        self.port.send(session, op, request, list)
    }

    /// Opens a step. While tier 0 shrinks, pages that the engine writes are moved between steps: then this thread carries that
    /// out first, within the session's timeout.
    fn begin_reader(&mut self, session: &Session, seqs: &[StepSeq]) -> std::result::Result<bool, Status> {
        let mut deadline = None;
        loop {
            if !session.shared.wants_quiet() {
                match self.reader.begin(seqs) {
                    Err(Status::Again) => {}
                    result => return result,
                }
            }
            if !session.alive() {
                // Nobody ends them any more.
                session.pump().mover().give_up_moves();
                continue;
            }
            let _helping = session.helping();
            let deadline = *deadline.get_or_insert_with(|| super::options::deadline(session.timeout));
            if session.try_round().progress {
                continue;
            }
            if Instant::now() >= deadline {
                return Err(Status::TimedOut);
            }
            std::thread::yield_now();
        }
    }

    /// Sends what could not be sent before.
    fn catch_up(&mut self, session: &Session) -> std::result::Result<(), Status> {
        if let Some(step) = self.unended {
            self.send(session, Op::StepEnd, Submission { value: step, ..Submission::default() }, &[])?;
            self.unended = None;
        }
        if self.unannounced {
            let mut list = [0; LIST_WORDS];
            let members = self.reader.members();
            let count = members.len().min(LIST_WORDS);
            list.iter_mut().zip(members).for_each(|(word, seq)| *word = seq);
            let request = Submission { value: self.reader.step(), count: count as u32, ..Submission::default() };
            self.send(session, Op::Step, request, &list[..count])?;
            self.unannounced = false;
        }
        if let Some(fault) = self.unsent {
            let Fault { seq, index, plane, use_pos } = fault;
            let request = Submission { seq, first: index, flags: plane, value: use_pos, ..Submission::default() };
            let tag = self.send(session, Op::Fault, request, &[])?;
            self.faults[usize::from(tag)] = Some(fault);
            self.unsent = None;
            session.counters.faults.add(1);
        }
        Ok(())
    }

    /// Takes the daemon's answers. An error is that of a fault which this boundary waits for.
    fn answers(&mut self, session: &Session, plane: u16) -> std::result::Result<(), Status> {
        while let Some(answer) = self.port.next(session)? {
            let Some(fault) = self.faults.get_mut(usize::from(answer.tag)).and_then(Option::take) else { continue };
            self.reader.fault_answered(&fault);
            let current = fault.use_pos == self.reader.view().position() && fault.plane == plane;
            match answer.status {
                // Resident, or gone again, or its deadline there has passed: the boundary looks, and asks again.
                Status::Ok | Status::TimedOut | Status::Again | Status::Canceled | Status::Busy => {}
                status if current => return Err(status),
                _ => {}
            }
        }
        Ok(())
    }

    /// Tells the session what was counted since the last time.
    fn count(&mut self, session: &Session) {
        let now = self.reader.counts();
        session.counters.lane(&self.counted, &now);
        self.counted = now;
    }
}

/// One ordered stream of engine work. Owned by one thread at a time.
pub struct Lane {
    inner: Arc<Inner>,
    state: Option<Box<State>>,
    index: u16,
}

impl Lane {
    pub(super) fn new(client: &Client, index: u16) -> Result<Lane> {
        let state = client.inner.take_lane(index)?;
        Ok(Lane { inner: Arc::clone(&client.inner), state: Some(state), index })
    }

    fn state(&self) -> Option<&State> {
        self.state.as_deref()
    }

    /// The lane's state and session, for calls of this process.
    fn parts(&mut self, doing: &'static str) -> Result<(&mut State, &Arc<Session>)> {
        let error = Error::call(doing, u64::from(self.index), Status::Fork);
        let session = &self.inner.session;
        match (session.ours(), self.state.as_deref_mut()) {
            (Ok(()), Some(state)) => Ok((state, session)),
            _ => Err(error),
        }
    }

    /// Begins a step over `seqs`, at most 512; each names the length that attention covers at this step (the new tokens
    /// included), which must be reserved already. A sequence is in at most one lane's step at a time. Sends a message only if
    /// something that the step needs is not resident, and waits for nothing but, while tier 0 shrinks, for pages that are moved.
    ///
    /// # Errors
    /// `State`: the lane's step has begun already, or a sequence is in another lane's step, parked, or being forked or
    /// truncated. `NotFound`: no such sequence. `Range`: more tokens than reserved. `Limit`: too many sequences. `Lost`: a
    /// page of a sequence exists nowhere any more. `Fork`.
    pub fn begin(&mut self, seqs: &[StepSeq]) -> Result<()> {
        const DOING: &str = "begin a step on lane";
        let index = u64::from(self.index);
        let error = |status| Error::call(DOING, index, status);
        let (state, session) = self.parts(DOING)?;
        if seqs.len() > LIST_WORDS {
            return Err(error(Status::Limit));
        }
        let announce = state.begin_reader(session, seqs).map_err(error)?;
        state.unsent = None;
        state.unannounced = announce;
        state.words.steps(state.reader.step(), state.reader.step() - 1);
        state.words.position(state.reader.view().position());
        if announce || state.unended.is_some() {
            // Full or gone: the first boundary that misses a page tries again, and says so if it cannot.
            let sent = state.catch_up(session).is_ok();
            session.counters.messages_before_steps.add(u64::from(announce && sent));
            state.port.ring();
            session.lane_moved();
        }
        Ok(())
    }

    /// A boundary before the pages of `plane` are read: applies what changed in the table, and reports what is readable.
    /// Planes come in rising order within a step; a plane is asked for again until it is complete. Waits (within the
    /// session's timeout) only if a needed page is missing and no other became readable.
    ///
    /// # Errors
    /// `State`: no step has begun, the plane is complete, or a later plane was begun. `Range`: no such plane. `Lost`, `Io`,
    /// `TimedOut`, `Daemon`: a page cannot be had; the step stays open, and the boundary may be tried again.
    pub fn boundary(&mut self, plane: u16) -> Result<Pass> {
        const DOING: &str = "pass a boundary of plane";
        let error = |status| Error::call(DOING, u64::from(plane), status);
        let (state, session) = self.parts(DOING)?;
        let before = state.reader.view().moves();
        let found = state.reader.boundary(plane).map_err(error)?;
        state.words.position(state.reader.view().position());
        if before != state.reader.view().moves() {
            session.lane_moved();
        }
        match found {
            Found::All => Ok(Pass::All),
            Found::Part { last } => Ok(Pass::Part { count: state.reader.ready().len(), last }),
            Found::Nothing { .. } => {
                let since = Instant::now();
                let pass = state.wait(session, plane, found, since);
                session.counters.stalls.add(1);
                session.counters.stall_ns.add(u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX));
                pass.map_err(error)
            }
        }
    }

    /// The pages that the last boundary handed out, in order of sequence position and block index.
    #[must_use]
    pub fn ready(&self) -> &[Ready] {
        self.state().map_or(&[], |state| state.reader.ready())
    }

    /// Ends the step, complete or not: this lane reads no frame until its next `begin`. Never waits.
    ///
    /// # Errors
    /// `State`: no step has begun. `Fork`.
    pub fn end(&mut self) -> Result<()> {
        const DOING: &str = "end a step on lane";
        let index = u64::from(self.index);
        let (state, session) = self.parts(DOING)?;
        let announced = state.reader.end().map_err(|status| Error::call(DOING, index, status))?;
        state.words.steps(state.reader.step(), state.reader.step());
        state.unsent = None;
        let told = !std::mem::take(&mut state.unannounced);
        if announced && told {
            state.unended = Some(state.reader.step());
        }
        if state.port.in_flight() > 0 {
            let _ = state.answers(session, u16::MAX); // nothing waits for any of them
        }
        if state.unended.is_some() {
            let _ = state.catch_up(session); // full or gone: the next begin tries again
            state.port.ring();
        }
        state.count(session);
        session.lane_moved();
        Ok(())
    }

    /// The frame that shows the page of `block` in `plane` in this lane's table, as of its last boundary.
    #[inline]
    #[must_use]
    pub fn pte(&self, block: u32, plane: u16) -> Option<FrameId> {
        self.state()?.reader.view().frame(block, plane)
    }

    /// This lane's table: the entry of `block × planes + plane` is 0 (absent) or frame + 1. Its address stays the same for
    /// the lane's life; entries change only within `begin` and `boundary`, and are to be believed between `begin` and `end`.
    #[must_use]
    pub fn table(&self) -> &[u32] {
        self.state().map_or(&[], |state| state.reader.view().table())
    }

    /// Where a page of a sequence in this lane's step is, if it is readable now.
    fn place(&self, seq: SeqId, index: u32, plane: u16) -> Option<(*mut u8, usize)> {
        let session = &self.inner.session;
        session.ours().ok().filter(|()| session.tier0.is_host())?;
        session.tier0.frame(self.state()?.reader.page(seq, index, plane)?)
    }

    /// The bytes of a page of a sequence in this lane's step, if it is readable now. Valid until the next call of
    /// `begin`, `boundary` or `end`. `page_bytes` long, 64-byte aligned. `None` also if tier 0 is a device's memory.
    #[must_use]
    pub fn page(&self, seq: SeqId, index: u32, plane: u16) -> Option<&[u8]> {
        let (at, bytes) = self.place(seq, index, plane)?;
        // SAFETY: the frame lies in tier 0, which lives as long as `inner`. The lane's table shows the page in it, so it is
        // initialised and not overwritten before this lane's next boundary or end (protocol rule 5), which need `&mut self`.
        // Only the engine writes unsealed pages, by `page_mut`, which needs `&mut self`; and no other lane has the sequence.
        Some(unsafe { std::slice::from_raw_parts(at, bytes) })
    }

    /// The bytes of an unsealed page of a sequence in this lane's step, to be written. `None` also if tier 0 is a device's memory.
    #[must_use]
    pub fn page_mut(&mut self, seq: SeqId, index: u32, plane: u16) -> Option<&mut [u8]> {
        let shared = &self.inner.session.shared;
        let sealed = shared.seqs().committed(seq) / u64::from(shared.geometry().bounds().page_tokens);
        if u64::from(index) < sealed {
            return None;
        }
        let (at, bytes) = self.place(seq, index, plane)?;
        // SAFETY: as in `page`. An unsealed block belongs to one sequence, a sequence to one lane's step, and `&mut self`
        // keeps this lane's other slices away.
        Some(unsafe { std::slice::from_raw_parts_mut(at, bytes) })
    }
}

impl State {
    /// Waits until something that was not handed out is readable, and pumps meanwhile.
    fn wait(
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
                Found::Nothing { announce, fault } => {
                    self.unannounced |= announce;
                    self.unsent = fault.or(self.unsent);
                }
            }
            session.usable()?;
            match self.catch_up(session) {
                Ok(()) | Err(Status::Again) => {}
                Err(status) => return Err(status),
            }
            self.port.ring();
            let progress = session.try_round().progress;
            self.answers(session, plane)?;
            let now = Instant::now();
            if progress {
                spin_from = now;
            } else if now.duration_since(since) >= session.timeout {
                return Err(Status::TimedOut);
            } else if now.duration_since(spin_from) >= SPIN {
                drop(helping.take());
                self.sleep(session, session.timeout.saturating_sub(now.duration_since(since)));
                helping = Some(session.helping());
                spin_from = Instant::now();
            } else {
                std::hint::spin_loop();
            }
            found = self.reader.boundary(plane)?;
        }
    }

    /// Sleeps until the table changes, the daemon answers or is gone, or the time is over.
    fn sleep(&mut self, session: &Session, timeout: Duration) {
        let nudge = &session.lanes[usize::from(self.reader.view().lane())];
        nudge.announce(1);
        let reader = &self.reader;
        let moved = || reader.view().behind() || !session.alive();
        self.port.sleep(session, Some(std::os::fd::AsFd::as_fd(nudge)), timeout, moved);
        nudge.awake();
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if self.inner.session.ours().is_err() {
            return;
        }
        let _ = self.end(); // no step open: nothing to end
        if let Some(state) = self.state.take() {
            self.inner.give_lane(self.index, state);
        }
    }
}
