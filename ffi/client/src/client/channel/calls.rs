//! The calls of a channel: their tickets, the requests in flight, and the results that were not taken yet.

use super::ops::{Operation, Reply, Work};
use crate::{
    Error,
    agent::{port::Port, session::Session},
    client::{
        Refusal,
        options::deadline,
        request::{Completed, Outcome, Ticket},
    },
};
use kvtide_wire::{status::Status, trace::TraceContext};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// A call: the work that its answers complete, its ticket and its time.
#[derive(Debug)]
pub(super) struct Call {
    /// Ticket that receives the result, and its caller's number; `None`: the result is discarded.
    receiver: Option<(Ticket, u64)>,
    /// Time limit that the daemon applies to the request in flight; zero: the daemon's default.
    timeout: Duration,
    /// Deadline of all requests of the call together; `None`: each request has `timeout`.
    until: Option<Instant>,
    /// Trace that its requests belong to.
    trace: Option<TraceContext>,
    work: Work,
}

impl Call {
    /// Create a call that ends after `timeout`; zero: no deadline of its own.
    pub fn new(receiver: Option<(Ticket, u64)>, timeout: Duration, trace: Option<TraceContext>, work: Work) -> Call {
        let until = (!timeout.is_zero()).then(|| deadline(timeout));
        Call { receiver, timeout, until, trace, work }
    }

    pub fn operation(&mut self) -> &mut dyn Operation {
        self.work.operation()
    }

    /// Give the call's remaining time to its next request.
    fn go_on(&mut self) {
        self.timeout = self.until.map_or(self.timeout, |until| until.saturating_duration_since(Instant::now()));
    }

    fn is_for(&self, ticket: Ticket) -> bool {
        self.receiver.is_some_and(|(receiver, _)| receiver == ticket)
    }

    fn is_late(&self) -> bool {
        self.until.is_some() && self.timeout.is_zero()
    }
}

/// The calls that have not ended for their callers. A ticket is valid from its call's start until its result is taken.
pub(super) struct Calls {
    /// Call in flight of each tag.
    in_flight: Vec<Option<Call>>,
    finished: VecDeque<Completed>,
    /// Number of the last ticket.
    tickets: u64,
}

impl Calls {
    /// Create the calls of channel `index`, of which `room` may be in flight.
    pub fn new(index: u16, room: usize) -> Calls {
        let in_flight = (0..=room).map(|_| None).collect();
        Calls { in_flight, finished: VecDeque::new(), tickets: u64::from(index) << 48 }
    }

    /// Return a ticket for a new call, or `Again`: too many tickets have a result that has not been taken.
    pub fn new_ticket(&mut self) -> Result<Ticket, Status> {
        let waiting = self.in_flight.iter().flatten().filter(|call| call.receiver.is_some()).count();
        let full = waiting + self.finished.len() >= self.in_flight.len() - 1;
        self.tickets += u64::from(!full);
        if full { Err(Status::Again) } else { Ok(Ticket(self.tickets)) }
    }

    /// Return whether a request in flight may have copies under way.
    pub fn is_copying(&self) -> bool {
        self.in_flight.iter().flatten().any(|call| matches!(call.work, Work::CopyBlocks(_)))
    }

    pub fn has_results(&self) -> bool {
        !self.finished.is_empty()
    }

    pub fn take_any(&mut self) -> Option<Completed> {
        self.finished.pop_front()
    }

    /// Return the result of a call if it has ended, or `NotFound`: no such ticket.
    pub fn take(&mut self, ticket: Ticket) -> Result<Option<Completed>, Refusal> {
        match self.finished.iter().position(|completed| completed.ticket == ticket) {
            Some(at) => Ok(self.finished.remove(at)),
            None => self.tag(ticket).map(|_| None),
        }
    }

    /// Return the tag of a call's request in flight; `None`: the call has ended. `NotFound`: no such ticket.
    pub fn tag(&self, ticket: Ticket) -> Result<Option<u16>, Refusal> {
        let waits = |call: &Option<Call>| call.as_ref().is_some_and(|call| call.is_for(ticket));
        let tag = self.in_flight.iter().position(waits).map(|tag| tag as u16);
        if tag.is_none() && !self.finished.iter().any(|completed| completed.ticket == ticket) {
            let why = "this channel has no such ticket, or its result was taken before";
            return Err(Refusal::because(Status::NotFound, why));
        }
        Ok(tag)
    }

    /// Discard the result of a call in flight when it comes.
    pub fn abandon(&mut self, ticket: Ticket) {
        let calls = self.in_flight.iter_mut().flatten();
        calls.filter(|call| call.is_for(ticket)).for_each(|call| call.receiver = None);
    }

    /// Send the next request of a call. Return the call with the error if it cannot be sent.
    pub fn send(&mut self, port: &mut Port, session: &Session, mut call: Call) -> Result<(), (Status, Box<Call>)> {
        port.trace = call.trace;
        let late = if call.is_late() { Err(Status::TimedOut) } else { Ok(()) };
        match late.and_then(|()| port.send(session, call.work.operation().request(), call.timeout)) {
            Ok(tag) => self.in_flight[usize::from(tag)] = Some(call),
            Err(status) => return Err((status, Box::new(call))),
        }
        Ok(())
    }

    /// Take the next call whose request is answered, with the answer. The daemon's death answers every request.
    pub fn answered(&mut self, port: &mut Port, session: &Session) -> Option<(Call, Reply)> {
        let blocks_max = session.shared.geometry().bounds().blocks_max;
        while let Ok(Some(answer)) = port.next(session) {
            if let Some(mut call) = self.in_flight.get_mut(usize::from(answer.tag)).and_then(Option::take) {
                call.go_on();
                let list = if answer.status == Status::Daemon { Vec::new() } else { port.list.words().to_vec() };
                return Some((call, Reply { status: answer.status, value: answer.value, list, blocks_max }));
            }
        }
        let mut calls = self.in_flight.iter_mut().filter(|_| !session.alive());
        let gone = Reply { status: Status::Daemon, value: 0, list: Vec::new(), blocks_max };
        calls.find_map(Option::take).map(|call| (call, gone))
    }

    /// Keep the result of a call for the holder of its ticket. Return the outcome of a call without a ticket.
    pub fn finish(&mut self, session: &Session, mut call: Call, result: Result<Outcome, Status>) -> Option<Outcome> {
        let Some((ticket, user)) = call.receiver else { return result.ok() };
        let operation = call.work.operation();
        let (doing, on) = operation.describe();
        let refusal = |status| Refusal::new(status, operation.why(session, status));
        let result = result.map_err(|status| Error::refused(doing, on, refusal(status)));
        self.finished.push_back(Completed { ticket, user, result });
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_types::Request as WireRequest;

    #[test]
    fn a_call_of_several_requests_has_its_time_once() {
        let hour = Duration::from_secs(3600);
        let mut call = Call::new(None, hour, None, Work::plain(WireRequest::Nop {}));
        call.until = call.until.map(|until| until - hour / 2);
        call.go_on();
        assert!(!call.is_late() && call.timeout <= hour / 2, "remaining: {:?}", call.timeout);
        call.until = Some(Instant::now());
        call.go_on();
        assert!(call.is_late());
        let mut call = Call::new(None, Duration::ZERO, None, Work::plain(WireRequest::Nop {}));
        call.go_on();
        assert!(!call.is_late() && call.timeout.is_zero(), "the daemon's default limit applies");
    }
}
