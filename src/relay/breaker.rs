//! A circuit breaker: it stops requests to a store that fails, and lets one through now and then to find out whether it is back.
//!
//! It has no clock. Time is a duration since any fixed moment.

use std::time::Duration;

/// When the breaker opens, and how long it waits.
#[derive(Clone, Copy, Debug)]
pub struct BreakerConfig {
    /// Failures in a row that open it; at least 1.
    pub failures_max: u32,
    /// Time from opening to the first probe. It doubles with each probe that fails.
    pub wait_min: Duration,
    /// Maximum of that time: a store that is back is used again after at most this.
    pub wait_max: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self { failures_max: 5, wait_min: Duration::from_millis(500), wait_max: Duration::from_secs(4) }
    }
}

/// State of a breaker, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Requests pass.
    Closed,
    /// No request passes.
    Open,
    /// One request, the probe, is on its way.
    HalfOpen,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The store answered.
    Success,
    /// The store did not answer, or wrongly.
    Failure,
    /// An error that more requests would only repeat: it opens the breaker at once.
    Fatal,
}

/// Permission to send one request. Its outcome counts only in the period that admitted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Ticket {
    period: u64,
}

/// A circuit breaker.
#[derive(Clone, Debug)]
pub struct Breaker {
    config: BreakerConfig,
    state: State,
    /// Changes when the breaker opens, closes, or sends a probe. Requests of an earlier period say nothing of the store now.
    period: u64,
}

#[derive(Clone, Debug)]
enum State {
    Closed {
        failures: u32,
    },
    /// Until `until`, nothing passes. `wait` led to it.
    Open {
        until: Duration,
        wait: Duration,
    },
    /// A probe is on its way. After `until` it is taken for lost, and another one may go.
    Probing {
        until: Duration,
        wait: Duration,
    },
}

impl Breaker {
    /// Create a closed breaker.
    pub fn new(config: BreakerConfig) -> Self {
        Self { config, state: State::Closed { failures: 0 }, period: 0 }
    }

    /// Return how long no request will be admitted; `None` if one is now.
    pub fn wait(&self, now: Duration) -> Option<Duration> {
        match self.state {
            State::Closed { .. } => None,
            State::Open { until, .. } | State::Probing { until, .. } => {
                until.checked_sub(now).filter(|wait| !wait.is_zero())
            }
        }
    }

    /// Admit a request, or return how long none will be admitted.
    ///
    /// # Errors
    ///
    /// The time to wait.
    pub fn admit(&mut self, now: Duration) -> Result<Ticket, Duration> {
        match self.state {
            State::Closed { .. } => (),
            State::Open { until, .. } | State::Probing { until, .. } if now < until => return Err(until - now),
            State::Open { wait, .. } | State::Probing { wait, .. } => {
                self.enter(State::Probing { until: now + wait, wait });
            }
        }
        Ok(Ticket { period: self.period })
    }

    /// Record how an admitted request ended. A request that was dropped has no outcome.
    pub fn record(&mut self, now: Duration, ticket: Ticket, outcome: Outcome) {
        if ticket.period != self.period {
            return;
        }
        match (&mut self.state, outcome) {
            (State::Closed { failures }, Outcome::Success) => *failures = 0,
            (State::Closed { failures }, Outcome::Failure) if *failures + 1 < self.config.failures_max => {
                *failures += 1
            }
            (State::Closed { .. }, _) => self.open(now, self.config.wait_min),
            (State::Probing { .. }, Outcome::Success) => self.enter(State::Closed { failures: 0 }),
            (State::Probing { wait, .. }, _) => {
                let wait = (*wait * 2).min(self.config.wait_max);
                self.open(now, wait);
            }
            (State::Open { .. }, _) => unreachable!("an open breaker admits no request of its period"),
        }
    }

    /// Return the state.
    pub fn state(&self) -> BreakerState {
        match self.state {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { .. } => BreakerState::Open,
            State::Probing { .. } => BreakerState::HalfOpen,
        }
    }

    fn open(&mut self, now: Duration, wait: Duration) {
        self.enter(State::Open { until: now + wait, wait });
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.period += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);
    const CONFIG: BreakerConfig =
        BreakerConfig { failures_max: 3, wait_min: Duration::from_millis(100), wait_max: Duration::from_millis(350) };

    fn opened() -> Breaker {
        let mut breaker = Breaker::new(CONFIG);
        let ticket = breaker.admit(Duration::ZERO).unwrap();
        breaker.record(Duration::ZERO, ticket, Outcome::Fatal);
        breaker
    }

    #[test]
    fn failures_in_a_row_open_it() {
        let mut breaker = Breaker::new(CONFIG);
        let mut send = |outcome| {
            let ticket = breaker.admit(Duration::ZERO).unwrap();
            breaker.record(Duration::ZERO, ticket, outcome);
            breaker.state()
        };
        for outcome in [Outcome::Failure, Outcome::Failure, Outcome::Success, Outcome::Failure, Outcome::Failure] {
            assert_eq!(send(outcome), BreakerState::Closed);
        }
        assert_eq!(send(Outcome::Failure), BreakerState::Open);
        assert_eq!(breaker.admit(MS), Err(99 * MS));
    }

    #[test]
    fn one_probe_at_a_time_and_longer_waits() {
        let mut breaker = opened();
        let mut now = Duration::ZERO;
        for wait in [100, 200, 350, 350] {
            assert_eq!(breaker.admit(now + (wait - 1) * MS), Err(MS), "wait {wait}");
            now += wait * MS;
            let probe = breaker.admit(now).unwrap();
            assert_eq!(breaker.state(), BreakerState::HalfOpen);
            assert!(breaker.admit(now).is_err(), "a second probe");
            breaker.record(now, probe, Outcome::Failure);
        }
        let probe = breaker.admit(now + 350 * MS).unwrap();
        breaker.record(now + 350 * MS, probe, Outcome::Success);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn a_lost_probe_is_followed_by_another() {
        let mut breaker = opened();
        let lost = breaker.admit(100 * MS).unwrap();
        assert!(breaker.admit(199 * MS).is_err());
        let second = breaker.admit(200 * MS).unwrap();
        breaker.record(200 * MS, lost, Outcome::Success);
        assert_eq!(breaker.state(), BreakerState::HalfOpen, "the lost probe counts no more");
        breaker.record(200 * MS, second, Outcome::Success);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn late_outcomes_do_not_count() {
        let mut breaker = Breaker::new(CONFIG);
        let early = breaker.admit(Duration::ZERO).unwrap();
        let fatal = breaker.admit(Duration::ZERO).unwrap();
        breaker.record(Duration::ZERO, fatal, Outcome::Fatal);
        breaker.record(MS, early, Outcome::Success);
        assert_eq!(breaker.state(), BreakerState::Open);
        let probe = breaker.admit(100 * MS).unwrap();
        breaker.record(100 * MS, early, Outcome::Failure);
        breaker.record(100 * MS, probe, Outcome::Success);
        breaker.record(100 * MS, early, Outcome::Fatal);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Wait(u64),
        Admit,
        Record(usize, Outcome),
    }

    fn step() -> impl Strategy<Value = Step> {
        let outcome = prop_oneof![1 => Just(Outcome::Success), 3 => Just(Outcome::Failure), 1 => Just(Outcome::Fatal)];
        prop_oneof![
            1 => (0u64..200).prop_map(Step::Wait),
            2 => Just(Step::Admit),
            2 => (0usize..4, outcome).prop_map(|(which, outcome)| Step::Record(which, outcome)),
        ]
    }

    proptest! {
        /// Whatever happens: a store that answers is used again after at most `wait_max`, and one that always fails gets few requests.
        #[test]
        fn it_always_recovers_and_always_protects(steps in proptest::collection::vec(step(), 0..200)) {
            let mut breaker = Breaker::new(CONFIG);
            let mut now = Duration::ZERO;
            let mut tickets = vec![];
            let mut last_probe: Option<Duration> = None;
            for step in steps {
                match step {
                    Step::Wait(ms) => now += Duration::from_millis(ms),
                    Step::Admit => {
                        let closed = breaker.state() == BreakerState::Closed;
                        let wait = breaker.wait(now);
                        prop_assert_eq!(wait.map_or(Ok(()), Err), breaker.clone().admit(now).map(drop));
                        match breaker.admit(now) {
                            Ok(ticket) => {
                                tickets.push(ticket);
                                prop_assert!(!closed || breaker.state() == BreakerState::Closed);
                                if !closed {
                                    prop_assert!(last_probe.is_none_or(|last| now - last >= CONFIG.wait_min));
                                    last_probe = Some(now);
                                }
                            }
                            Err(wait) => prop_assert!(!closed && wait > Duration::ZERO && wait <= CONFIG.wait_max),
                        }
                    }
                    Step::Record(which, outcome) if !tickets.is_empty() => {
                        let ticket = tickets.swap_remove(which % tickets.len());
                        let before = breaker.state();
                        breaker.record(now, ticket, outcome);
                        match (before, breaker.state()) {
                            (BreakerState::Open, after) => prop_assert_eq!(after, BreakerState::Open),
                            (_, BreakerState::Closed) if before != BreakerState::Closed => {
                                prop_assert_eq!(outcome, Outcome::Success);
                                last_probe = None;
                            }
                            (BreakerState::Closed, BreakerState::Open) => prop_assert_ne!(outcome, Outcome::Success),
                            _ => (),
                        }
                    }
                    Step::Record(..) => (),
                }
            }
            now += CONFIG.wait_max;
            let ticket = breaker.admit(now);
            prop_assert!(ticket.is_ok(), "{:?}", breaker);
            breaker.record(now, ticket.unwrap(), Outcome::Success);
            prop_assert_eq!(breaker.state(), BreakerState::Closed);
        }
    }
}
