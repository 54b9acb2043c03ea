//! The rings of one channel as its owner sees them: tags, requests, answers. Every answer is checked against its request.

use super::session::Session;
use kvtide_types::Request as WireRequest;
use kvtide_wire::{
    entry::{Completion, Op, TRACED},
    lists::List,
    os::session::EngineChannel,
    request,
    ring::PushError,
    status::Status,
    trace::TraceContext,
};
use std::{
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

/// Tags reserved for [`Op::Cancel`].
const TAGS_KEPT: usize = 1;

/// Answer to a request of this port.
pub(crate) struct Answer {
    pub tag: u16,
    pub status: Status,
    pub value: u64,
}

/// The rings of one channel. Has a single owner.
pub(crate) struct Port {
    wire: EngineChannel,
    /// Operation in flight for each tag.
    ops: Vec<Option<Op>>,
    free: Vec<u16>,
    /// Requests were pushed since the daemon was last woken.
    unrung: bool,
    /// Trace context of the next request, if the daemon wants one.
    pub trace: Option<TraceContext>,
    /// List of the last answer.
    pub list: List,
}

impl Port {
    pub fn new(wire: EngineChannel, depth: u16) -> Port {
        let free = (0..depth).rev().collect();
        Port { wire, ops: vec![None; usize::from(depth)], free, unrung: false, trace: None, list: List::default() }
    }

    /// Return how many requests may be sent now.
    pub fn room(&self) -> usize {
        self.free.len().saturating_sub(TAGS_KEPT)
    }

    /// Return the number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.ops.len() - self.free.len()
    }

    /// Send a request and return its tag. `timeout`: when the daemon ends it, from now; zero: the daemon's default. Call
    /// [`Port::ring`] to wake the daemon.
    ///
    /// # Errors
    /// `Again`: too many requests are in flight. `Range`: the list is too long. `Daemon`: the daemon is gone or corrupted the
    /// ring.
    pub fn send(&mut self, session: &Session, request: WireRequest<'_>, timeout: Duration) -> Result<u16, Status> {
        session.usable()?;
        let op = request.code();
        let kept = if op == Op::Cancel { 0 } else { TAGS_KEPT };
        let tag = self.free.last().copied().filter(|_| self.free.len() > kept).ok_or(Status::Again)?;
        let (mut entry, list) = request::encode(request);
        entry.tag = tag;
        entry.timeout_us = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
        self.wire.requests.write_hashes(tag, list.hashes, list.words).map_err(|_| Status::Range)?;
        if let Some(context) = self.trace.take() {
            self.wire.requests.write_trace(tag, entry.list_len, &context).map_err(|_| Status::Range)?;
            entry.trace = TRACED;
        }
        match self.wire.submissions.push(&entry) {
            Ok(()) => {}
            Err(PushError::Full) => return Err(Status::Again),
            Err(PushError::Broken(_)) => {
                session.fail(Status::Protocol);
                return Err(Status::Daemon);
            }
        }
        self.free.pop();
        self.ops[usize::from(tag)] = Some(op);
        self.unrung = true;
        session.counters.requests.add(1);
        Ok(tag)
    }

    /// Wake the daemon if it sleeps and a request was sent since the last wake-up.
    pub fn ring(&mut self) {
        if std::mem::take(&mut self.unrung) {
            self.wire.waker.wake();
        }
    }

    /// Wake the daemon if it sleeps, so that it reads shared state that changed without a message.
    pub fn wake_daemon(&mut self) {
        self.unrung = false;
        self.wire.waker.wake();
    }

    /// Take the next answer. Its list is then in `self.list`.
    ///
    /// # Errors
    /// `Daemon`: the daemon corrupted the ring.
    pub fn next(&mut self, session: &Session) -> Result<Option<Answer>, Status> {
        loop {
            let completion = match self.wire.completions.pop() {
                Ok(Some(completion)) => completion,
                Ok(None) => return Ok(None),
                Err(_) => {
                    session.fail(Status::Protocol);
                    return Err(Status::Daemon);
                }
            };
            let tag = completion.tag;
            let Some(op) = self.ops.get_mut(usize::from(tag)).and_then(Option::take) else {
                session.counters.completions_stray.add(1);
                continue;
            };
            self.free.push(tag);
            return Ok(Some(self.check(op, &completion)));
        }
    }

    /// Check an answer. One that does not match its request makes that request fail.
    fn check(&mut self, op: Op, completion: &Completion) -> Answer {
        let mut status = Status::from_code(completion.status).unwrap_or(Status::Protocol);
        if completion.op != op as u16 {
            status = Status::Protocol;
        }
        if self.wire.answers.copy_out(completion.tag, completion.list_len, &mut self.list).is_err() {
            status = Status::Protocol;
        }
        Answer { tag: completion.tag, status, value: completion.value }
    }

    /// Report whether an answer has arrived.
    pub fn answered(&mut self) -> bool {
        self.wire.completions.available() != Ok(0)
    }

    /// Announce that the owner will sleep on [`Port::bell`]. Return true if an answer has already arrived.
    pub fn arm(&mut self) -> bool {
        self.wire.sleeper.announce();
        kvtide_wire::wake::announced();
        self.answered()
    }

    /// Withdraw the announcement and discard earlier rings of the doorbell.
    pub fn disarm(&mut self) {
        self.wire.sleeper.awake();
        self.wire.bell.quiet();
    }

    /// Return the doorbell. It is readable after the daemon rang.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.wire.bell.as_fd()
    }

    /// Sleep until the daemon answers or is gone, `other` is readable, or `timeout` passes. Return at once if an answer has
    /// arrived or `unless` returns true.
    pub fn sleep(
        &mut self,
        session: &Session,
        other: Option<BorrowedFd<'_>>,
        timeout: Duration,
        unless: impl FnOnce() -> bool,
    ) {
        if !self.arm() && !unless() {
            let bell = self.wire.bell.as_fd();
            let fds = [bell, other.unwrap_or(bell)];
            super::thread_waker::sleep(&fds, session.socket(), timeout);
        }
        self.disarm();
    }
}
