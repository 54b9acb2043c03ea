//! The calls of a channel: their tickets, the requests in flight, and the results that were not taken yet.

use super::{
    super::{Error, Refusal, request::Completed, request::Outcome, request::Ticket},
    call::Call,
    ops::{Begin, Reply, Started, Work},
    owned::Owned,
    wait::SPIN,
};
use crate::agent::{
    port::{Answer, Port},
    session::Session,
};
use kvtide_types::Request as WireRequest;
use kvtide_wire::{os::spin::Spin, status::Status, trace::TraceContext};
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

/// The requests and sequences of a channel.
pub(crate) struct State {
    pub(super) port: Port,
    calls: Vec<Option<Call>>,
    pub(super) finished: VecDeque<Completed>,
    pub(super) tickets: u64,
    pub(super) owned: HashMap<u32, Owned>,
    /// Sequences with local changes that the daemon does not know yet.
    pub(super) dirty: VecDeque<u32>,
    /// Releases that did not fit into the ring.
    pub(super) releases: VecDeque<WireRequest<'static>>,
    pub(super) spin: Spin,
    /// Trace that the calls belong to.
    pub(super) trace: Option<TraceContext>,
    session: Arc<Session>,
}

impl State {
    pub fn new(index: u16, port: Port, session: &Arc<Session>) -> State {
        let calls = (0..=port.room()).map(|_| None).collect();
        State {
            port,
            calls,
            finished: VecDeque::new(),
            tickets: u64::from(index) << 48,
            owned: HashMap::new(),
            dirty: VecDeque::new(),
            releases: VecDeque::new(),
            spin: Spin::new(SPIN),
            trace: None,
            session: Arc::clone(session),
        }
    }

    pub(super) fn session(&self) -> Arc<Session> {
        Arc::clone(&self.session)
    }

    /// Number of tickets with a result that has not been taken.
    pub(super) fn open_tickets(&self) -> usize {
        self.calls.iter().flatten().filter(|call| call.ticket.is_some()).count() + self.finished.len()
    }

    /// Return whether a request in flight may have copies under way.
    pub(super) fn is_copying(&self) -> bool {
        self.calls.iter().flatten().any(|call| matches!(call.work, Work::CopyBlocks(_)))
    }

    pub(super) fn room(&self) -> usize {
        self.calls.len() - 1
    }

    /// Find the request in flight of a ticket.
    pub(super) fn in_flight(&mut self, ticket: Ticket) -> Option<(u16, &mut Call)> {
        let mut calls = self.calls.iter_mut().enumerate();
        calls.find_map(|(tag, call)| {
            let call = call.as_mut().filter(|call| call.ticket == Some(ticket))?;
            Some((tag as u16, call))
        })
    }

    /// Start a request. Its result is kept for the holder of the ticket.
    pub(super) fn submit(&mut self, begin: impl Begin, timeout: Duration, user: u64) -> Result<Ticket, Refusal> {
        if self.open_tickets() >= self.room() {
            return Err(Status::Again.into());
        }
        let ticket = Ticket(self.tickets + 1);
        self.start_for(begin, timeout, user, Some(ticket))?;
        self.tickets += 1;
        Ok(ticket)
    }

    /// Start a request without a time limit of its own. Its result is discarded.
    pub(super) fn start(&mut self, begin: impl Begin) -> Result<(), Refusal> {
        self.start_for(begin, Duration::ZERO, 0, None)
    }

    fn start_for(
        &mut self,
        begin: impl Begin,
        timeout: Duration,
        user: u64,
        ticket: Option<Ticket>,
    ) -> Result<(), Refusal> {
        let session = self.session();
        session.usable()?;
        self.flush()?; // the daemon receives a channel's calls in their order
        match begin.begin(self, &session)? {
            Started::Send(work) => {
                let call = Call { trace: self.trace, ..Call::new(ticket, user, timeout, work) };
                Ok(self.send_first(call)?)
            }
            Started::Done(outcome) => {
                let work = Work::plain(WireRequest::Nop {}); // nothing is in flight
                self.finish(Call::new(ticket, user, Duration::ZERO, work), Ok(outcome));
                Ok(())
            }
        }
    }

    /// Send a request and discard its result.
    pub(super) fn post(&mut self, work: Work) -> Result<(), Status> {
        self.send_first(Call::of_nobody(work))
    }

    /// Send the first request of a call. Undo its local changes if it cannot be sent.
    fn send_first(&mut self, call: Call) -> Result<(), Status> {
        self.send(call).map_err(|(status, mut call)| {
            let session = self.session();
            call.work.operation().take_back(self, &session);
            status
        })
    }

    /// Send a request of a call. Return the call with the error if it cannot be sent.
    fn send(&mut self, mut call: Call) -> Result<(), (Status, Box<Call>)> {
        let operation = call.work.operation();
        self.port.trace = call.trace;
        match self.port.send(&self.session, operation.request(), call.timeout) {
            Ok(tag) => {
                if let Some(owned) = operation.changes().and_then(|seq| self.owned.get_mut(&seq)) {
                    owned.changing = true;
                }
                self.calls[usize::from(tag)] = Some(call);
                Ok(())
            }
            Err(status) => Err((status, Box::new(call))),
        }
    }

    /// Process the daemon's answers. After the daemon's death, end every call.
    pub(crate) fn progress(&mut self) {
        let session = self.session();
        while let Ok(Some(answer)) = self.port.next(&session) {
            if let Some(call) = self.calls.get_mut(usize::from(answer.tag)).and_then(Option::take) {
                self.answered(call, &answer);
            }
        }
        if !session.alive() && self.calls.iter().any(Option::is_some) {
            for tag in 0..self.calls.len() {
                if let Some(call) = self.calls[tag].take() {
                    self.answered(call, &Answer { tag: tag as u16, status: Status::Daemon, value: 0 });
                }
            }
        }
    }

    fn answered(&mut self, mut call: Call, answer: &Answer) {
        let session = self.session();
        let operation = call.work.operation();
        if let Some(owned) = operation.changes().and_then(|seq| self.owned.get_mut(&seq)) {
            owned.changing = false;
        }
        let list = if answer.status == Status::Daemon { Vec::new() } else { self.port.list.words().to_vec() };
        let blocks_max = session.shared.geometry().bounds().blocks_max;
        let reply = Reply { status: answer.status, value: answer.value, list: &list, blocks_max };
        let result = match operation.answered(self, &session, &reply).transpose() {
            Some(result) => result,
            None => {
                let sent = match call.go_on() {
                    Ok(()) => self.send(call),
                    Err(status) => Err((status, Box::new(call))),
                };
                let Err((status, back)) = sent else { return };
                call = *back;
                call.work.operation().take_back(self, &session);
                Err(status)
            }
        };
        self.finish(call, result);
    }

    /// Deliver a result to its ticket. Without a ticket, release everything that the request acquired.
    fn finish(&mut self, mut call: Call, result: Result<Outcome, Status>) {
        match (call.ticket, result) {
            (Some(ticket), result) => {
                let operation = call.work.operation();
                let (doing, on) = operation.describe();
                let refusal = |status| Refusal::new(status, operation.why(&self.session, status));
                let result = result.map_err(|status| Error::refused(doing, on, refusal(status)));
                self.finished.push_back(Completed { ticket, user: call.user, result });
            }
            (None, Ok(Outcome::Pin(pin))) => {
                let _ = self.release(pin); // it was just taken
            }
            (None, Ok(Outcome::Seq(child))) => {
                let _ = self.drop_seq(child); // without room in the ring it ends with the session
            }
            (None, Ok(Outcome::Lease(leased))) => {
                let _ = self.drop_seq(leased.seq); // without room in the ring it expires
            }
            (None, _) => {}
        }
    }

    /// Request the cancellation of a request in flight.
    pub(super) fn cancel(&mut self, ticket: Ticket) -> Result<(), Refusal> {
        let Some((tag, _)) = self.in_flight(ticket) else {
            let ended = self.finished.iter().any(|completed| completed.ticket == ticket);
            return if ended { Ok(()) } else { Err(no_ticket()) };
        };
        Ok(self.post(Work::plain(WireRequest::Cancel { tag }))?)
    }

    /// Return the result of a request if it has ended.
    pub(super) fn take(&mut self, ticket: Ticket) -> Result<Option<Completed>, Refusal> {
        if let Some(at) = self.finished.iter().position(|completed| completed.ticket == ticket) {
            return Ok(self.finished.remove(at));
        }
        if self.in_flight(ticket).is_some() { Ok(None) } else { Err(no_ticket()) }
    }
}

fn no_ticket() -> Refusal {
    Refusal::because(Status::NotFound, "this channel has no such ticket, or its result was taken before")
}
