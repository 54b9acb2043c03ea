//! Waiting on a channel: spin and copy for a short time, then sleep. Every wait has a deadline.

use super::{calls::State, ops::Begin};
use crate::{
    Result,
    agent::session::Session,
    client::{Refusal, options::deadline, request::Outcome},
};
use kvtide_types::Request as WireRequest;
use kvtide_wire::{os::spin::Turns, status::Status};
use std::time::{Duration, Instant};

/// How long a call spins for its answer before it sleeps: a few round trips between two running processes.
pub(super) const SPIN: Duration = Duration::from_micros(250);

impl State {
    /// Wait until `ready` returns a value. Help with copies meanwhile.
    ///
    /// # Errors
    /// `TimedOut`.
    pub(super) fn wait_until<T>(
        &mut self,
        session: &Session,
        deadline: Instant,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> std::result::Result<T, Status> {
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
                self.port.sleep(session, None, deadline.saturating_duration_since(now), || !session.alive());
                (spin_from, turns) = (Instant::now(), Turns::begin());
            }
        }
    }

    /// Send a request and wait for the answer without running the copy loop: no job may be processed while the page table is being
    /// rebuilt. Nothing else may be in flight. Repeat the request while the daemon answers `Again`. Return the answer's list.
    pub(in crate::client) fn ask(
        &mut self,
        session: &Session,
        request: WireRequest<'_>,
        deadline: Instant,
    ) -> std::result::Result<Vec<u32>, Status> {
        loop {
            match self.ask_once(session, request, deadline)? {
                (Status::Ok, _) => return Ok(self.port.list.words().to_vec()),
                (Status::Again, _) if Instant::now() < deadline => std::thread::yield_now(),
                (status, _) => return Err(status),
            }
        }
    }

    /// Do the same once, and return the answer's status and value.
    pub(in crate::client) fn ask_once(
        &mut self,
        session: &Session,
        request: WireRequest<'_>,
        deadline: Instant,
    ) -> std::result::Result<(Status, u64), Status> {
        self.port.send(session, request, Duration::ZERO)?;
        self.port.ring();
        loop {
            if let Some(answer) = self.port.next(session)? {
                return Ok((answer.status, answer.value));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Status::TimedOut);
            }
            self.port.sleep(session, None, left, || !session.alive());
            if session.hung_up() {
                return Err(Status::Daemon);
            }
        }
    }

    /// Start a request, wait for room if needed, and wait for its result. The outer error is that of the wait.
    pub(super) fn run(
        &mut self,
        session: &Session,
        request: impl Begin + Copy,
        timeout: Duration,
    ) -> std::result::Result<Result<Outcome>, Refusal> {
        let deadline = deadline(timeout);
        let started = self.wait_until(session, deadline, |state| match state.submit(request, timeout, 0) {
            Err(refusal) if refusal.status == Status::Again => None,
            other => Some(other),
        });
        let ticket = started??;
        let ended = self.wait_until(session, deadline, |state| state.take(ticket).transpose());
        match ended {
            Ok(completed) => Ok(completed?.result),
            Err(status) => {
                // Cancel the request. Its result, if any, is undone or applied to the mirror without a waiter.
                let _ = self.cancel(ticket); // no room in the ring: the request's own deadline ends it
                if let Some((_, call)) = self.in_flight(ticket) {
                    call.ticket = None;
                }
                self.port.ring();
                Err(status.into())
            }
        }
    }
}
