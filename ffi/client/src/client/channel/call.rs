//! One call in flight: who is told of its end, and until when it goes on.

use super::{Status, Ticket, calls::Work};
use std::time::{Duration, Instant};

/// A request in flight.
#[derive(Debug)]
pub(super) struct Call {
    /// Who is told of its end; nobody if `None`.
    pub ticket: Option<Ticket>,
    pub user: u64,
    /// The daemon's bound on the request in flight; zero: its own.
    pub timeout: Duration,
    /// When all of the call's requests shall have ended; `None`: each has `timeout`.
    pub until: Option<Instant>,
    pub work: Work,
}

impl Call {
    /// A call that somebody gives so long.
    pub(super) fn new(ticket: Option<Ticket>, user: u64, timeout: Duration, work: Work) -> Call {
        let until = (!timeout.is_zero()).then(|| super::deadline(timeout));
        Call { ticket, user, timeout, until, work }
    }

    /// One whose end nobody is told.
    pub(super) fn of_nobody(work: Work) -> Call {
        Call::new(None, 0, Duration::ZERO, work)
    }

    /// What is left of the call's time is its next request's.
    ///
    /// # Errors
    /// `TimedOut`: nothing is.
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

    #[test]
    fn a_call_of_several_requests_has_its_time_once() {
        let hour = Duration::from_secs(3600);
        let mut call = Call::new(None, 0, hour, Work::Plain);
        call.until = call.until.map(|until| until - hour / 2);
        assert!(call.go_on().is_ok() && call.timeout <= hour / 2, "what is left: {:?}", call.timeout);
        call.until = Some(Instant::now());
        assert_eq!(call.go_on(), Err(Status::TimedOut));
        let mut call = Call::of_nobody(Work::Plain);
        assert!(call.go_on().is_ok() && call.timeout.is_zero(), "the daemon bounds what nobody waits for");
    }
}
