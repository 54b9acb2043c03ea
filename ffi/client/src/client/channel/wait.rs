//! Waiting on a channel: spin and pump a little, then sleep; always with a bound.

use super::calls::State;
use crate::{
    Result,
    agent::session::Session,
    client::{
        options::deadline,
        request::{Outcome, Request},
    },
};
use kvtide_wire::{
    entry::{Op, Submission},
    os::spin::Turns,
    status::Status,
};
use std::time::{Duration, Instant};

/// How long a call looks for its answer before it sleeps: a few round trips between two processes that are awake.
pub(super) const SPIN: Duration = Duration::from_micros(250);

impl State {
    /// Waits until `ready` finds something.
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
            let _ = self.flush(); // what finds no room goes with a later round
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

    /// Asks the daemon and waits for the answer without pumping: while the page table is being rebuilt, no job may be looked
    /// at. Nothing else may be in flight. Asks again while the daemon says `Again`. Returns the answer's list.
    pub(in crate::client) fn ask(
        &mut self,
        session: &Session,
        op: Op,
        request: Submission,
        list: &[u32],
        deadline: Instant,
    ) -> std::result::Result<Vec<u32>, Status> {
        loop {
            self.port.send(session, op, request, list)?;
            self.port.ring();
            let status = loop {
                if let Some(answer) = self.port.next(session)? {
                    break answer.status;
                }
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Status::TimedOut);
                }
                self.port.sleep(session, None, left, || !session.alive());
                if session.hung_up() {
                    return Err(Status::Daemon);
                }
            };
            match status {
                Status::Ok => return Ok(self.port.list.words().to_vec()),
                Status::Again if Instant::now() < deadline => std::thread::yield_now(),
                status => return Err(status),
            }
        }
    }

    /// Starts a request, waiting for room, and waits for its end. The outer error is the wait's own.
    pub(super) fn run(
        &mut self,
        session: &Session,
        request: Request<'_>,
        timeout: Duration,
    ) -> std::result::Result<Result<Outcome>, Status> {
        let deadline = deadline(timeout);
        let started = self.wait_until(session, deadline, |state| match state.submit(&request, timeout, 0) {
            Err(Status::Again) => None,
            other => Some(other),
        });
        let ticket = started??;
        let ended = self.wait_until(session, deadline, |state| state.take(ticket).transpose());
        match ended {
            Ok(completed) => Ok(completed?.result),
            Err(status) => {
                // It is cancelled, and whatever it still does is undone or kept by the mirror without anybody waiting.
                let _ = self.cancel(ticket); // no room: its own deadline ends it
                if let Some((_, call)) = self.in_flight(ticket) {
                    call.ticket = None;
                }
                self.port.ring();
                Err(status)
            }
        }
    }
}
