//! Waiting on a channel: spin and pump a little, then sleep; always with a bound.

use super::calls::State;
use crate::{
    Result,
    agent::session::Session,
    client::request::{Outcome, Request},
};
use kvtide_wire::status::Status;
use std::time::{Duration, Instant};

/// How long a call looks for its answer before it sleeps: a few round trips between two processes that are awake.
const SPIN: Duration = Duration::from_micros(100);

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
        let mut spin_from = Instant::now();
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
            } else if now >= deadline {
                return Err(Status::TimedOut);
            } else if now.duration_since(spin_from) >= SPIN {
                helping = None;
                self.port.sleep(session, None, deadline.saturating_duration_since(now), || !session.alive());
                spin_from = Instant::now();
            } else {
                std::hint::spin_loop();
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
        let deadline = Instant::now().checked_add(timeout).ok_or(Status::Invalid)?;
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
