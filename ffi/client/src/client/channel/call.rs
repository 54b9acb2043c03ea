//! A call in flight: its ticket, its timeout, and the work that its answer completes.

use super::{Status, Ticket, ops::Work};
use kvtide_wire::trace::TraceContext;
use std::time::{Duration, Instant};

/// A request in flight.
#[derive(Debug)]
pub(super) struct Call {
    /// Ticket that receives the result; `None`: the result is discarded.
    pub ticket: Option<Ticket>,
    pub user: u64,
    /// Time limit that the daemon applies to the request in flight; zero: the daemon's default.
    pub timeout: Duration,
    /// Deadline of all requests of the call together; `None`: each request has `timeout`.
    pub until: Option<Instant>,
    /// Trace that its requests belong to.
    pub trace: Option<TraceContext>,
    pub work: Work,
}

impl Call {
    /// Create a call that ends after `timeout`; zero: no deadline of its own.
    pub(super) fn new(ticket: Option<Ticket>, user: u64, timeout: Duration, work: Work) -> Call {
        let until = (!timeout.is_zero()).then(|| super::deadline(timeout));
        Call { ticket, user, timeout, until, trace: None, work }
    }

    /// Create a call without a receiver; its result is discarded.
    pub(super) fn of_nobody(work: Work) -> Call {
        Call::new(None, 0, Duration::ZERO, work)
    }

    /// Give the call's remaining time to its next request.
    ///
    /// # Errors
    /// `TimedOut`: no time remains.
    pub(super) fn go_on(&mut self) -> Result<(), Status> {
        if let Some(until) = self.until {
            self.timeout = until.saturating_duration_since(Instant::now());
            if self.timeout.is_zero() {
                return Err(Status::TimedOut);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_types::Request as WireRequest;

    #[test]
    fn a_call_of_several_requests_has_its_time_once() {
        let hour = Duration::from_secs(3600);
        let mut call = Call::new(None, 0, hour, Work::plain(WireRequest::Nop {}));
        call.until = call.until.map(|until| until - hour / 2);
        assert!(call.go_on().is_ok() && call.timeout <= hour / 2, "remaining: {:?}", call.timeout);
        call.until = Some(Instant::now());
        assert_eq!(call.go_on(), Err(Status::TimedOut));
        let mut call = Call::of_nobody(Work::plain(WireRequest::Nop {}));
        assert!(call.go_on().is_ok() && call.timeout.is_zero(), "the daemon's default limit applies");
    }
}
