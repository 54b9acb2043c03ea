//! State of a channel, which outlives its handle: how its calls are sent, answered and waited for.
//!
//! A wait spins and copies for a short time, then sleeps. Every wait has a deadline.

use super::{
    blocks::{CALL_BLOCKS_MAX, too_many},
    calls::{Call, Calls},
    ops::{Begin, Reply, Started, Work},
    sequences::{Sequences, close},
};
use crate::{
    agent::{port::Port, session::Session},
    client::{
        Refusal,
        options::deadline,
        request::{Completed, Outcome, Pin, Ticket},
    },
};
use kvtide_types::{Request as WireRequest, SeqId};
use kvtide_wire::{
    os::spin::{Spin, Turns},
    status::Status,
    trace::TraceContext,
};
use std::{
    os::fd::BorrowedFd,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long a call spins for its answer before it sleeps: a few round trips between two running processes.
const SPIN: Duration = Duration::from_micros(250);

/// A channel's rings, calls and sequences. It keeps the daemon informed of the sequences' changes in the order of the calls.
pub(crate) struct State {
    session: Arc<Session>,
    port: Port,
    calls: Calls,
    sequences: Sequences,
    spin: Spin,
    /// Trace that the calls belong to.
    trace: Option<TraceContext>,
}

impl State {
    pub fn new(index: u16, port: Port, session: &Arc<Session>) -> State {
        let (calls, sequences) = (Calls::new(index, port.room()), Sequences::new(session));
        State { session: Arc::clone(session), port, calls, sequences, spin: Spin::new(SPIN), trace: None }
    }

    pub(super) fn set_trace(&mut self, trace: Option<TraceContext>) {
        self.trace = trace;
    }

    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.port.bell()
    }

    /// Request a wake-up through the bell. Return true if a call has ended already.
    pub(super) fn arm(&mut self) -> Result<bool, Status> {
        self.port.disarm();
        let answered = self.port.arm();
        if self.session.alive() { Ok(answered || self.calls.has_results()) } else { Err(Status::Daemon) }
    }

    /// Run a call that does not wait.
    pub(super) fn at_once<T>(&mut self, call: impl FnOnce(&mut State) -> Result<T, Refusal>) -> Result<T, Refusal> {
        self.progress();
        let result = call(self);
        self.port.ring();
        result
    }

    /// Start a request. Its result is kept for the holder of the ticket.
    pub(super) fn submit(&mut self, begin: impl Begin, timeout: Duration, user: u64) -> Result<Ticket, Refusal> {
        let ticket = self.calls.new_ticket()?;
        self.start_for(begin, timeout, Some((ticket, user))).map(|()| ticket)
    }

    /// Start a request without a time limit of its own. Its result is discarded.
    pub(super) fn start(&mut self, begin: impl Begin) -> Result<(), Refusal> {
        self.start_for(begin, Duration::ZERO, None)
    }

    fn start_for(&mut self, begin: impl Begin, timeout: Duration, to: Option<(Ticket, u64)>) -> Result<(), Refusal> {
        self.session.usable()?;
        self.flush()?; // the daemon receives a channel's calls in their order
        match begin.begin(&mut self.sequences, &self.session)? {
            Started::Send(work) => {
                let call = Call::new(to, timeout, self.trace, work);
                Ok(self.send(call).map_err(|(status, _)| status)?)
            }
            Started::Done(outcome) => {
                let work = Work::plain(WireRequest::Nop {}); // nothing is in flight
                self.finish(Call::new(to, Duration::ZERO, None, work), Ok(outcome));
                Ok(())
            }
        }
    }

    /// Send a request and discard its result.
    fn post(&mut self, request: WireRequest<'static>) -> Result<(), Status> {
        self.send(Call::new(None, Duration::ZERO, None, Work::plain(request))).map_err(|(status, _)| status)
    }

    /// Send the next request of a call. If it cannot be sent, undo its local changes, and return the call with the error.
    fn send(&mut self, mut call: Call) -> Result<(), (Status, Box<Call>)> {
        let changes = call.operation().changes();
        let sent = self.calls.send(&mut self.port, &self.session, call);
        sent.map(|()| self.sequences.set_changing(changes, true)).map_err(|(status, mut call)| {
            call.operation().take_back(&mut self.sequences, &self.session);
            (status, call)
        })
    }

    /// Send local changes to the daemon, as far as the ring has room. `Again`: changes remain.
    fn flush(&mut self) -> Result<(), Status> {
        while let Some(change) = self.sequences.unsent() {
            self.post(change)?;
            self.sequences.sent(change);
        }
        Ok(())
    }

    /// Send local changes, and wake the daemon for them. A later call sends the changes that do not fit into the ring.
    pub(super) fn send_changes(&mut self) {
        let _ = self.flush();
        self.port.ring();
    }

    /// Process the daemon's answers. After the daemon's death, end every call.
    pub(crate) fn progress(&mut self) {
        while let Some((call, reply)) = self.calls.answered(&mut self.port, &self.session) {
            self.answered(call, &reply);
        }
    }

    fn answered(&mut self, mut call: Call, reply: &Reply) {
        let operation = call.operation();
        self.sequences.set_changing(operation.changes(), false);
        let result = match operation.answered(&mut self.sequences, &self.session, reply).transpose() {
            Some(result) => result,
            None => {
                let Err((status, back)) = self.send(call) else { return };
                call = *back;
                Err(status)
            }
        };
        self.finish(call, result);
    }

    /// Deliver a result to its ticket. Without a ticket, release everything that the request acquired.
    fn finish(&mut self, call: Call, result: Result<Outcome, Status>) {
        let _ = match self.calls.finish(&self.session, call, result) {
            Some(Outcome::Pin(pin)) => self.release(pin),      // it was just taken
            Some(Outcome::Seq(child)) => self.drop_seq(child), // without room in the ring it ends with the session
            Some(Outcome::Lease(leased)) => self.drop_seq(leased.seq), // without room in the ring it expires
            _ => Ok(()),
        };
    }

    /// Request the cancellation of a request in flight.
    pub(super) fn cancel(&mut self, ticket: Ticket) -> Result<(), Refusal> {
        let Some(tag) = self.calls.tag(ticket)? else { return Ok(()) };
        Ok(self.post(WireRequest::Cancel { tag })?)
    }

    /// Return the result of a request if it has ended.
    pub(super) fn poll(&mut self, ticket: Ticket) -> Result<Option<Completed>, Refusal> {
        self.progress();
        self.calls.take(ticket)
    }

    /// Return the result of any request that has ended.
    pub(super) fn poll_any(&mut self) -> Option<Completed> {
        self.progress();
        self.send_changes();
        self.calls.take_any()
    }

    /// Wait until `ready` returns a value, or `TimedOut`. Help with copies meanwhile.
    fn wait_until<T>(
        &mut self,
        deadline: Instant,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, Status> {
        let session = Arc::clone(&self.session);
        let mut helping = None;
        let (mut spin_from, mut turns) = (Instant::now(), Turns::begin());
        loop {
            self.progress();
            let _ = self.flush(); // changes that do not fit into the ring are sent in a later round
            let found = ready(self);
            self.port.ring();
            if let Some(found) = found {
                return Ok(found);
            }
            helping.get_or_insert_with(|| session.helping());
            let progress = session.try_round().progress;
            let now = Instant::now();
            if progress {
                spin_from = now;
                turns.pass();
            } else if now >= deadline {
                return Err(Status::TimedOut);
            } else if !self.spin.pause(now.duration_since(spin_from)) {
                helping = None;
                self.port.sleep(&session, None, deadline.saturating_duration_since(now), || !session.alive());
                (spin_from, turns) = (Instant::now(), Turns::begin());
            }
        }
    }

    /// Wait for the result of a request.
    pub(super) fn wait(&mut self, ticket: Ticket, deadline: Instant) -> Result<Completed, Refusal> {
        self.wait_until(deadline, |state| state.calls.take(ticket).transpose())?
    }

    /// Wait until no copy of an earlier call is under way.
    pub(super) fn settle(&mut self, deadline: Instant) -> Result<(), Status> {
        let settled = self.wait_until(deadline, |state| (!state.calls.is_copying()).then_some(()));
        // Rounds of the copy loop exclude each other: with the lock taken, the copies of earlier rounds have ended.
        drop(self.session.copy_loop());
        settled
    }

    /// Start a request, wait for room if needed, and wait for its result. The outer error is that of the wait.
    pub(super) fn run(
        &mut self,
        request: impl Begin + Copy,
        timeout: Duration,
    ) -> Result<crate::Result<Outcome>, Refusal> {
        let deadline = deadline(timeout);
        let started = self.wait_until(deadline, |state| match state.submit(request, timeout, 0) {
            Err(refusal) if refusal.status == Status::Again => None,
            other => Some(other),
        });
        let ticket = started??;
        match self.wait_until(deadline, |state| state.calls.take(ticket).transpose()) {
            Ok(completed) => Ok(completed?.result),
            Err(status) => {
                // Cancel the request. Its result, if any, is undone or applied to the mirror without a waiter.
                let _ = self.cancel(ticket); // no room in the ring: the request's own deadline ends it
                self.calls.abandon(ticket);
                self.port.ring();
                Err(status.into())
            }
        }
    }

    /// Send a request and wait for the answer without running the copy loop: no job may be processed while the page table is being
    /// rebuilt. Nothing else may be in flight. Repeat the request while the daemon answers `Again`. Return the answer's list.
    pub(in crate::client) fn ask(&mut self, request: WireRequest<'_>, deadline: Instant) -> Result<Vec<u32>, Status> {
        loop {
            match self.ask_once(request, deadline)? {
                (Status::Ok, _) => return Ok(self.port.list.words().to_vec()),
                (Status::Again, _) if Instant::now() < deadline => std::thread::yield_now(),
                (status, _) => return Err(status),
            }
        }
    }

    /// Do the same once, and return the answer's status and value.
    pub(in crate::client) fn ask_once(
        &mut self,
        request: WireRequest<'_>,
        deadline: Instant,
    ) -> Result<(Status, u64), Status> {
        let State { session, port, .. } = self;
        port.send(session, request, Duration::ZERO)?;
        port.ring();
        loop {
            if let Some(answer) = port.next(session)? {
                return Ok((answer.status, answer.value));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Status::TimedOut);
            }
            port.sleep(session, None, left, || !session.alive());
            if session.hung_up() {
                return Err(Status::Daemon);
            }
        }
    }

    pub(super) fn create(&mut self) -> Result<SeqId, Refusal> {
        self.session.usable()?;
        let seq = self.sequences.new_slot(None)?;
        self.post(WireRequest::SeqCreate { seq }).inspect_err(|_| self.sequences.forget(seq))?;
        Ok(seq)
    }

    pub(super) fn commit(&mut self, seq: SeqId, tokens: u64) -> Result<(), Refusal> {
        self.session.usable()?;
        // A commit that seals no page gives the daemon nothing to do. It is sent with the next message, so that the daemon is not
        // woken for every token.
        if self.sequences.commit(seq, tokens)? {
            let _ = self.flush(); // what does not fit into the ring is sent with a later call
        }
        Ok(())
    }

    pub(super) fn release(&mut self, pin: Pin) -> Result<(), Refusal> {
        if self.sequences.release(pin)? {
            let _ = self.flush(); // what does not fit into the ring is sent with a later call
        }
        Ok(())
    }

    pub(super) fn end_lease(&mut self, lease: SeqId) -> Result<(), Refusal> {
        let none = "this channel has no such lease, or it was ended before";
        if self.sequences.is_lease(lease) {
            self.drop_seq(lease)
        } else {
            Err(Refusal::because(Status::NotFound, none))
        }
    }

    pub(super) fn drop_seq(&mut self, seq: SeqId) -> Result<(), Refusal> {
        let parked = self.sequences.to_drop(seq)?.parked;
        if self.session.alive() {
            self.flush()?; // the daemon receives a channel's calls in their order
        }
        if !parked {
            close(&self.session, seq)?;
        }
        if self.session.alive()
            && let Err(status) = self.post(WireRequest::SeqDrop { seq })
            && status != Status::Daemon
        {
            if !parked {
                self.session.shared.seqs().open(seq);
            }
            return Err(status.into());
        }
        self.sequences.dropped(seq);
        Ok(())
    }

    /// Check a call that copies blocks: the engine's blocks, and those that it reads, from an index of a lease on.
    pub(super) fn check_copy(&self, blocks: &[u32], reads: Option<(SeqId, u32)>) -> Result<(), Refusal> {
        let count = blocks.len();
        match count {
            0 => return Ok(()),
            1..=CALL_BLOCKS_MAX => {}
            _ => return Err(too_many(count, CALL_BLOCKS_MAX)),
        }
        self.session.usable()?;
        self.session.numbering().check(blocks)?;
        match reads {
            Some((lease, first)) => self.sequences.check_blocks(lease, first, count).map(|_| ()),
            None => Ok(()),
        }
    }

    pub(in crate::client) fn sequences(&mut self) -> &mut Sequences {
        &mut self.sequences
    }
}
