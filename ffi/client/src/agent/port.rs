//! One channel's rings as its owner sees them: tags, requests out, answers in. Everything that the daemon answers is checked
//! against what was asked.

use super::session::Session;
use kvtide_wire::{
    entry::{Completion, Op, Submission},
    lists::List,
    os::session::EngineChannel,
    ring::PushError,
    status::Status,
};
use std::{
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

/// Tags kept back for [`Op::Cancel`].
const TAGS_KEPT: usize = 1;

/// An answer to a request of this port.
pub(crate) struct Answer {
    pub tag: u16,
    pub status: Status,
    pub value: u64,
}

/// One channel's rings. One owner.
pub(crate) struct Port {
    wire: EngineChannel,
    /// Operation in flight for each tag.
    ops: Vec<Option<Op>>,
    free: Vec<u16>,
    /// Requests pushed since the daemon was last woken.
    unrung: bool,
    /// The list of the last answer.
    pub list: List,
}

impl Port {
    pub fn new(wire: EngineChannel, depth: u16) -> Port {
        let free = (0..depth).rev().collect();
        Port { wire, ops: vec![None; usize::from(depth)], free, unrung: false, list: List::default() }
    }

    /// Requests that may be sent now.
    pub fn room(&self) -> usize {
        self.free.len().saturating_sub(TAGS_KEPT)
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.ops.len() - self.free.len()
    }

    /// Sends a request with a list of words; returns its tag. The daemon is woken by [`Port::ring`].
    ///
    /// # Errors
    /// `Again`: too many are in flight. `Range`: the list is too long. `Daemon`: it is gone or broke the ring.
    pub fn send(&mut self, session: &Session, op: Op, request: Submission, list: &[u32]) -> Result<u16, Status> {
        self.submit(session, op, request, |port, tag| port.wire.requests.write(tag, list).map_err(|_| Status::Range))
    }

    /// The same with hashes.
    pub fn send_hashes(
        &mut self,
        session: &Session,
        op: Op,
        request: Submission,
        hashes: &[u128],
    ) -> Result<u16, Status> {
        self.submit(session, op, request, |port, tag| {
            port.wire.requests.write_hashes(tag, hashes).map_err(|_| Status::Range)
        })
    }

    fn submit(
        &mut self,
        session: &Session,
        op: Op,
        mut request: Submission,
        write: impl FnOnce(&mut Port, u16) -> Result<u32, Status>,
    ) -> Result<u16, Status> {
        session.usable()?;
        let kept = if op == Op::Cancel { 0 } else { TAGS_KEPT };
        let tag = self.free.last().copied().filter(|_| self.free.len() > kept).ok_or(Status::Again)?;
        request.op = op as u16;
        request.tag = tag;
        request.list_len = write(self, tag)?;
        match self.wire.submissions.push(&request) {
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

    /// Wakes the daemon if it sleeps and something was sent.
    pub fn ring(&mut self) {
        if std::mem::take(&mut self.unrung) {
            self.wire.waker.wake();
        }
    }

    /// Wakes the daemon if it sleeps, to look at what is told without a message.
    pub fn nudge(&mut self) {
        self.unrung = false;
        self.wire.waker.wake();
    }

    /// Takes the next answer; its list is in `self.list`.
    ///
    /// # Errors
    /// `Daemon`: the daemon broke the ring.
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

    /// An answer that does not fit its request is a failure of that request.
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

    /// Whether an answer is there.
    pub fn answered(&mut self) -> bool {
        self.wire.completions.available() != Ok(0)
    }

    /// Announces that the owner will sleep on [`Port::bell`]. True: an answer is there already.
    pub fn arm(&mut self) -> bool {
        self.wire.sleeper.announce();
        kvtide_wire::wake::announced();
        self.answered()
    }

    /// Takes the announcement back and forgets earlier rings.
    pub fn disarm(&mut self) {
        self.wire.sleeper.awake();
        self.wire.bell.quiet();
    }

    /// Readable when the daemon has rung.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.wire.bell.as_fd()
    }

    /// Sleeps until the daemon answers, is gone, one of `others` is readable, or the time is over; not at all if an answer
    /// is there or `unless` says so.
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
            super::nudge::sleep(&fds, session.socket(), timeout);
        }
        self.disarm();
    }
}
