//! A store with failure isolation: deadlines, a circuit breaker, a bound on bytes in flight, hedged reads, and counters.

use crate::breaker::{Breaker, BreakerConfig, BreakerState, Outcome, Ticket};
use crate::name::RunName;
use crate::run::{BadRun, Run};
use crate::store::{ErrorKind, Put, Store, StoreError};
use bytes::Bytes;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout_at};

/// Latencies from which the delay of a hedge is computed.
const SAMPLES: usize = 64;
/// Latencies before the first hedge.
const SAMPLES_MIN: usize = 16;
/// Reads per hedge: at most one read in 20 is sent twice. (Dean and Barroso, "The Tail at Scale", 2013: hedging after the 95th
/// percentile adds about 5 % of load.)
const READS_PER_HEDGE: u32 = 20;
/// Hedges that may be saved up.
const HEDGES_SAVED_MAX: u32 = 10;
/// Bytes of a name in a request, for the bound on bytes in flight.
const NAME_BYTES: u64 = 256;

/// How a store is used.
#[derive(Clone, Copy, Debug)]
pub struct EndpointConfig {
    /// Time from the call to an answer or an error, waiting for other requests included.
    pub deadline: Duration,
    /// Maximum of all requests and answers at a time, in KiB; at least 1. A larger request goes alone.
    pub in_flight_kib_max: u32,
    /// Minimum delay after which a read is sent a second time.
    pub hedge_delay_min: Duration,
    /// The circuit breaker.
    pub breaker: BreakerConfig,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(2),
            in_flight_kib_max: 256 << 10,
            hedge_delay_min: Duration::from_millis(5),
            breaker: BreakerConfig::default(),
        }
    }
}

/// Counters since the start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads asked for.
    pub gets: AtomicU64,
    /// Reads that found the run.
    pub hits: AtomicU64,
    /// Reads that did not find the run.
    pub misses: AtomicU64,
    /// Reads that were sent a second time.
    pub hedges: AtomicU64,
    /// Runs that were read and failed verification.
    pub bad_runs: AtomicU64,
    /// Writes asked for.
    pub puts: AtomicU64,
    /// Writes that found the run there.
    pub puts_existed: AtomicU64,
    /// Bytes of runs that were read.
    pub bytes_read: AtomicU64,
    /// Bytes of runs that were written.
    pub bytes_written: AtomicU64,
    errors: [AtomicU64; ErrorKind::ALL.len()],
}

impl Counters {
    /// Return the errors of one kind.
    pub fn errors(&self, kind: ErrorKind) -> u64 {
        self.errors[kind as usize].load(Ordering::Relaxed)
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// Reason why a run was not loaded. To a caller, both are a miss.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The store could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store has other bytes than were written.
    #[error("cannot use run {name} of {endpoint}: {bad}")]
    Bad {
        /// Name of the run.
        name: RunName,
        /// Where it was read.
        endpoint: String,
        /// The mistake in it.
        bad: BadRun,
    },
}

/// A store with failure isolation.
pub struct Endpoint {
    store: Arc<dyn Store>,
    config: EndpointConfig,
    started: Instant,
    breaker: Mutex<Breaker>,
    in_flight: Semaphore,
    hedging: Mutex<Hedging>,
    counters: Counters,
    last_error: Mutex<Option<String>>,
    usage: Mutex<Usage>,
}

/// State of a store's use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// When that began.
    pub since: SystemTime,
    /// The state.
    pub state: Use,
}

/// Use of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// It has not answered yet.
    Untried,
    /// It answers.
    Used,
    /// It answers, and has no room for more runs: the error of a write.
    Full(String),
    /// It is not used, after this error.
    Failed(String),
}

impl Endpoint {
    /// Put a store behind deadlines and a breaker. Must be called within a tokio runtime.
    pub fn new(store: Arc<dyn Store>, config: EndpointConfig) -> Self {
        let kib = config.in_flight_kib_max.max(1) as usize;
        Self {
            store,
            config,
            started: Instant::now(),
            breaker: Mutex::new(Breaker::new(config.breaker)),
            in_flight: Semaphore::new(kib),
            hedging: Mutex::default(),
            counters: Counters::default(),
            last_error: Mutex::default(),
            usage: Mutex::new(Usage { since: SystemTime::now(), state: Use::Untried }),
        }
    }

    /// Return the counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Return the state of the circuit breaker.
    pub fn state(&self) -> BreakerState {
        lock(&self.breaker).state()
    }

    /// Return how long the circuit breaker admits no request; `None` if it admits one now.
    pub fn wait(&self) -> Option<Duration> {
        lock(&self.breaker).wait(self.now())
    }

    /// Return whether the store is used, and since when. A probe of a store that is not used changes nothing until it succeeds.
    pub fn usage(&self) -> Usage {
        lock(&self.usage).clone()
    }

    /// Return the address of the store, without credentials.
    pub fn address(&self) -> &str {
        self.store.endpoint()
    }

    /// Return the text of the last error.
    pub fn last_error(&self) -> Option<String> {
        lock(&self.last_error).clone()
    }

    /// Return whether one question about many runs is cheap.
    pub fn asks_cheaply(&self) -> bool {
        self.store.asks_cheaply()
    }

    /// Write an encoded run.
    ///
    /// # Errors
    ///
    /// [`StoreError`], of kind `NotSent` if nothing was sent.
    pub async fn put(&self, name: &RunName, bytes: Bytes) -> Result<Put, StoreError> {
        let len = bytes.len() as u64;
        add(&self.counters.puts, 1);
        let put = self.send("write a run", len, self.store.put_run(name, bytes)).await?;
        match put {
            Put::Stored => {
                add(&self.counters.bytes_written, len);
                if matches!(self.usage().state, Use::Full(_)) {
                    tracing::info!(endpoint = self.store.endpoint(), "store has room again");
                    self.enter(Use::Used);
                }
            }
            Put::Existed => add(&self.counters.puts_existed, 1),
        }
        Ok(put)
    }

    /// Read the bytes in `range` of a run, or `None` if the store does not have the run. They are not verified.
    ///
    /// # Errors
    ///
    /// [`StoreError`], of kind `NotSent` if nothing was sent.
    pub async fn get(&self, name: &RunName, range: Range<u64>) -> Result<Option<Bytes>, StoreError> {
        let len = range.end.saturating_sub(range.start);
        add(&self.counters.gets, 1);
        let found = self.send("read a run", len, self.hedged(name, range)).await?;
        match &found {
            Some(bytes) => {
                add(&self.counters.hits, 1);
                add(&self.counters.bytes_read, bytes.len() as u64);
            }
            None => add(&self.counters.misses, 1),
        }
        Ok(found)
    }

    /// Load and verify the first `count` blocks of a run in one read, or `None` if the store does not have it.
    ///
    /// A run that fails verification is deleted, so that the next write replaces it.
    ///
    /// # Errors
    ///
    /// [`LoadError`]. Bytes that fail verification are never returned.
    pub async fn load(&self, run: &Run<'_>, count: u32) -> Result<Option<Vec<Bytes>>, LoadError> {
        // By range even for the whole run: an object that is longer than it should be does not fill the memory.
        let range = 0..run.layout().first_bytes(count);
        let Some(bytes) = self.get(run.name(), range).await? else { return Ok(None) };
        match run.decode_first(count, bytes) {
            Ok(blocks) => Ok(Some(blocks)),
            Err(bad) => {
                add(&self.counters.bad_runs, 1);
                let (name, endpoint) = (run.name().clone(), self.store.endpoint().to_owned());
                tracing::warn!(endpoint, %name, %bad, "run failed verification and is deleted");
                let _ = self.delete(&name).await; // its error is counted and kept; this caller has its own
                Err(LoadError::Bad { name, endpoint, bad })
            }
        }
    }

    /// Return for each name whether the store has a run of it.
    ///
    /// # Errors
    ///
    /// [`StoreError`], of kind `NotSent` if nothing was sent.
    pub async fn present(&self, names: &[RunName]) -> Result<Vec<bool>, StoreError> {
        self.send("ask for runs", NAME_BYTES * names.len() as u64, self.store.present(names)).await
    }

    /// Delete a run. A run that does not exist is no error.
    ///
    /// # Errors
    ///
    /// [`StoreError`], of kind `NotSent` if nothing was sent.
    pub async fn delete(&self, name: &RunName) -> Result<(), StoreError> {
        self.send("delete a run", NAME_BYTES, self.store.delete(name)).await
    }

    /// Send a request within the deadline, if the breaker and the bound on bytes in flight admit it, and record its outcome.
    async fn send<T>(
        &self,
        tried: &str,
        bytes: u64,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let deadline = Instant::now() + self.config.deadline;
        let endpoint = self.store.endpoint();
        let result = async {
            let _permit = timeout_at(deadline, self.in_flight.acquire_many(self.kib(bytes))).await.map_err(|_| {
                let reason = format!("{} KiB are in flight, the maximum", self.config.in_flight_kib_max);
                StoreError::new(ErrorKind::NotSent, tried, endpoint, reason)
            })?;
            let ticket = lock(&self.breaker).admit(self.now()).map_err(|wait| {
                let last = self.last_error().unwrap_or_default();
                let reason = format!("its circuit breaker is open, probe in {wait:?}; it opened after: {last}");
                StoreError::new(ErrorKind::NotSent, tried, endpoint, reason)
            })?;
            let result = timeout_at(deadline, request).await.unwrap_or_else(|_| {
                let reason = format!("no answer in {:?}", self.config.deadline);
                Err(StoreError::new(ErrorKind::TimedOut, tried, endpoint, reason))
            });
            self.record(ticket, result.as_ref().err());
            result
        }
        .await;
        if let Err(error) = &result {
            add(&self.counters.errors[error.kind as usize], 1);
        }
        result
    }

    fn record(&self, ticket: Ticket, error: Option<&StoreError>) {
        if let Some(error) = error {
            *lock(&self.last_error) = Some(error.text.clone());
        }
        let mut breaker = lock(&self.breaker);
        let before = breaker.state();
        breaker.record(self.now(), ticket, error.map_or(Outcome::Success, |error| outcome(error.kind)));
        let after = breaker.state();
        drop(breaker);
        let endpoint = self.store.endpoint();
        match (before, after) {
            (BreakerState::Closed, BreakerState::Open) => {
                let error = error.map_or("", |error| &error.text);
                tracing::warn!(endpoint, error, "store is not used until it answers again");
                return self.enter(Use::Failed(error.to_owned()));
            }
            (BreakerState::HalfOpen, BreakerState::Closed) => {
                tracing::info!(endpoint, "store answers again");
                self.enter(Use::Used);
            }
            _ => (),
        }
        match (error, self.usage().state) {
            (None, Use::Untried) => {
                tracing::info!(endpoint, "store answers");
                self.enter(Use::Used);
            }
            (Some(error), Use::Untried | Use::Used) if error.kind == ErrorKind::Full => {
                tracing::warn!(endpoint, error = error.text, "store is full: no run is copied to it until it has room");
                self.enter(Use::Full(error.text.clone()));
            }
            _ => (),
        }
    }

    fn enter(&self, state: Use) {
        *lock(&self.usage) = Usage { since: SystemTime::now(), state };
    }

    /// Read, and read a second time if the first takes longer than usual. The first answer counts, and an error only if both fail.
    async fn hedged(&self, name: &RunName, range: Range<u64>) -> Result<Option<Bytes>, StoreError> {
        let started = Instant::now();
        let result = self.first_of_two(name, range).await;
        if let Ok(Some(_)) = result {
            lock(&self.hedging).sample(started.elapsed());
        }
        result
    }

    async fn first_of_two(&self, name: &RunName, range: Range<u64>) -> Result<Option<Bytes>, StoreError> {
        let mut first = pin!(self.store.get_run(name, Some(range.clone())));
        let Some(delay) = lock(&self.hedging).next_delay() else { return first.await };
        tokio::select! {
            biased;
            result = &mut first => return result,
            () = sleep(delay.max(self.config.hedge_delay_min)) => (),
        }
        let Some(_permit) = self.hedge_permit(range.end - range.start) else { return first.await };
        add(&self.counters.hedges, 1);
        let mut second = pin!(self.store.get_run(name, Some(range)));
        tokio::select! {
            biased;
            result = &mut first => if result.is_ok() { result } else { second.await },
            result = &mut second => if result.is_ok() { result } else { first.await },
        }
    }

    /// A second read must fit the bound on bytes in flight as well; it does not wait for it.
    fn hedge_permit(&self, bytes: u64) -> Option<SemaphorePermit<'_>> {
        let permit = self.in_flight.try_acquire_many(self.kib(bytes)).ok()?;
        lock(&self.hedging).spend().then_some(permit)
    }

    fn kib(&self, bytes: u64) -> u32 {
        bytes.div_ceil(1024).clamp(1, u64::from(self.config.in_flight_kib_max.max(1))) as u32
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

/// Return the breaker's view of an error. A full store still answers reads.
fn outcome(kind: ErrorKind) -> Outcome {
    match kind {
        ErrorKind::Refused | ErrorKind::Clock | ErrorKind::NoBucket | ErrorKind::Config => Outcome::Fatal,
        ErrorKind::Full => Outcome::Success,
        _ => Outcome::Failure,
    }
}

/// No code panics while it holds one of these locks; if one did, the data would still be whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Latencies of the last reads, and how many hedges they allow.
#[derive(Debug, Default)]
struct Hedging {
    /// The last latencies, the oldest overwritten first.
    latencies: Vec<Duration>,
    next: usize,
    /// Reads not yet spent on hedges.
    reads: u32,
}

impl Hedging {
    fn sample(&mut self, latency: Duration) {
        if self.latencies.len() < SAMPLES {
            self.latencies.push(latency);
        } else {
            self.latencies[self.next] = latency;
            self.next = (self.next + 1) % SAMPLES;
        }
    }

    /// Count a read and return the 95th percentile of the latencies, if there are enough.
    fn next_delay(&mut self) -> Option<Duration> {
        self.reads = (self.reads + 1).min(HEDGES_SAVED_MAX * READS_PER_HEDGE);
        if self.latencies.len() < SAMPLES_MIN {
            return None;
        }
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        Some(sorted[sorted.len() * 95 / 100])
    }

    /// Take a hedge from the budget, if one is left.
    fn spend(&mut self) -> bool {
        let left = self.reads.checked_sub(READS_PER_HEDGE);
        self.reads = left.unwrap_or(self.reads);
        left.is_some()
    }
}

#[cfg(test)]
mod tests;
