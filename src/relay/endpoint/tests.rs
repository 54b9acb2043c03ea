//! Tests of the endpoint with a scripted store and a clock that stands still until all tasks wait.

use super::*;
use crate::name::{SharedKey, SpaceKeys};
use crate::run::BlockKey;
use std::collections::VecDeque;

/// Script of the next request: a delay, then an error or an answer.
type Script = (Duration, Option<ErrorKind>);

/// A store that has every run, each with the same bytes, and follows a script; without one it answers at once.
#[derive(Default)]
struct Scripted {
    script: Mutex<VecDeque<Script>>,
    bytes: Bytes,
    deleted: AtomicU64,
    requests: AtomicU64,
}

impl Scripted {
    fn then(&self, count: usize, delay_ms: u64, error: Option<ErrorKind>) {
        lock(&self.script).extend(vec![(Duration::from_millis(delay_ms), error); count]);
    }

    async fn step(&self) -> Result<(), StoreError> {
        add(&self.requests, 1);
        let (delay, error) = lock(&self.script).pop_front().unwrap_or_default();
        tokio::time::sleep(delay).await;
        error.map_or(Ok(()), |kind| Err(StoreError::new(kind, "play", "the script", "it says so")))
    }

    fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

#[async_trait::async_trait]
impl Store for Scripted {
    fn endpoint(&self) -> &str {
        "scripted://"
    }
    fn asks_cheaply(&self) -> bool {
        true
    }
    async fn put_run(&self, _: &RunName, _: Bytes) -> Result<Put, StoreError> {
        self.step().await.map(|()| Put::Stored)
    }
    async fn get_run(&self, _: &RunName, range: Option<Range<u64>>) -> Result<Option<Bytes>, StoreError> {
        self.step().await?;
        let end = range.map_or(self.bytes.len(), |range| self.bytes.len().min(range.end as usize));
        Ok(Some(self.bytes.slice(..end)))
    }
    async fn present(&self, names: &[RunName]) -> Result<Vec<bool>, StoreError> {
        self.step().await.map(|()| vec![true; names.len()])
    }
    async fn delete(&self, _: &RunName) -> Result<(), StoreError> {
        add(&self.deleted, 1);
        self.step().await
    }
}

fn endpoint(config: EndpointConfig, bytes: Bytes) -> (Arc<Scripted>, Endpoint) {
    let store = Arc::new(Scripted { bytes, ..Scripted::default() });
    (store.clone(), Endpoint::new(store, config))
}

fn keys() -> SpaceKeys {
    SpaceKeys::new(&SharedKey::new([1; 32]), "d", &[2; 32], 0, false)
}

fn name() -> RunName {
    keys().run_name((0, 0), &[1])
}

async fn get(endpoint: &Endpoint) -> Result<(), ErrorKind> {
    endpoint.get(&name(), 0..10).await.map(drop).map_err(|error| error.kind)
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_an_error_at_the_deadline_and_is_left_alone() {
    let (store, endpoint) = endpoint(EndpointConfig::default(), Bytes::new());
    store.then(5, 3_600_000, None);
    for _ in 0..5 {
        let started = Instant::now();
        assert_eq!(get(&endpoint).await, Err(ErrorKind::TimedOut));
        assert_eq!(started.elapsed(), Duration::from_secs(2));
    }
    assert_eq!(endpoint.state(), BreakerState::Open);
    let started = Instant::now();
    assert_eq!(get(&endpoint).await, Err(ErrorKind::NotSent));
    assert_eq!((started.elapsed(), store.requests()), (Duration::ZERO, 5), "no request, no wait");
    assert!(endpoint.last_error().unwrap().contains("no answer in 2s"), "{:?}", endpoint.last_error());
    // It answers again: the first probe finds out.
    sleep(Duration::from_millis(500)).await;
    assert_eq!(get(&endpoint).await, Ok(()));
    assert_eq!(endpoint.state(), BreakerState::Closed);
    let errors = |kind| endpoint.counters().errors(kind);
    assert_eq!((errors(ErrorKind::TimedOut), errors(ErrorKind::NotSent), errors(ErrorKind::Busy)), (5, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn what_each_error_does_to_the_breaker() {
    for kind in ErrorKind::ALL {
        let (store, endpoint) = endpoint(EndpointConfig::default(), Bytes::new());
        store.then(1, 0, Some(kind));
        assert_eq!(get(&endpoint).await, Err(kind));
        let fatal = [ErrorKind::Refused, ErrorKind::Clock, ErrorKind::NoBucket, ErrorKind::Config].contains(&kind);
        assert_eq!(endpoint.state() == BreakerState::Open, fatal, "one {kind:?}");
        store.then(9, 0, Some(kind));
        for _ in 0..9 {
            let _ = get(&endpoint).await;
        }
        assert_eq!(endpoint.state() == BreakerState::Closed, kind == ErrorKind::Full, "ten {kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_in_flight_are_bounded() {
    let config = EndpointConfig { in_flight_kib_max: 8, ..EndpointConfig::default() };
    let (store, endpoint) = endpoint(config, Bytes::new());
    store.then(3, 1_500, None);
    let put = |kib: usize| endpoint.put(const { &NAME }.get_or_init(name), Bytes::from(vec![0; kib << 10]));
    let results = tokio::join!(put(4), put(4), put(4), async {
        tokio::task::yield_now().await;
        store.requests()
    });
    assert!(results.0.is_ok() && results.1.is_ok());
    assert_eq!(results.3, 2, "the third waits");
    assert_eq!(results.2.unwrap_err().kind, ErrorKind::TimedOut, "its deadline runs while it waits");
    assert_eq!(put(1_000).await.unwrap(), Put::Stored, "a request above the bound goes alone");
    // Nothing gets through, and that is not the store's fault.
    store.then(1, 10_000, None);
    let results = tokio::join!(put(8), async {
        tokio::task::yield_now().await;
        put(1).await
    });
    assert_eq!(results.0.unwrap_err().kind, ErrorKind::TimedOut);
    assert!(results.1.is_ok() || results.1.unwrap_err().kind == ErrorKind::NotSent);
}

static NAME: std::sync::OnceLock<RunName> = std::sync::OnceLock::new();

/// Let an endpoint see reads of 10 ms, until it hedges.
async fn warmed(reads: usize) -> (Arc<Scripted>, Endpoint) {
    let (store, endpoint) = endpoint(EndpointConfig::default(), Bytes::from(vec![7; 10]));
    store.then(reads, 10, None);
    for _ in 0..reads {
        get(&endpoint).await.unwrap();
    }
    (store, endpoint)
}

fn hedges(endpoint: &Endpoint) -> u64 {
    endpoint.counters().hedges.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn a_slow_read_is_sent_twice_and_the_faster_answer_counts() {
    let (store, endpoint) = warmed(64).await;
    store.then(1, 1_000, None);
    store.then(1, 3, None);
    let started = Instant::now();
    get(&endpoint).await.unwrap();
    assert_eq!(started.elapsed(), Duration::from_millis(13), "the 95th percentile, then the second read");
    assert_eq!(hedges(&endpoint), 1);
    // The first answer counts if it comes first, and an error only if both fail.
    store.then(1, 12, None);
    store.then(1, 500, None);
    get(&endpoint).await.unwrap();
    store.then(1, 12, Some(ErrorKind::Unreachable));
    store.then(1, 30, None);
    get(&endpoint).await.unwrap();
    assert_eq!(hedges(&endpoint), 3);
}

#[tokio::test(start_paused = true)]
async fn hedges_have_a_budget() {
    let mut hedging = Hedging::default();
    (0..1_000).for_each(|_| assert!(hedging.next_delay().is_none()));
    assert_eq!((0..100).filter(|_| hedging.spend()).count(), 10, "what is saved up");
    for (reads, expected) in [(19, false), (1, true), (19, false), (20, true), (0, false)] {
        (0..reads).for_each(|_| assert!(hedging.next_delay().is_none()));
        assert_eq!(hedging.spend(), expected, "{reads} reads");
    }
    // A read that finds no hedge left waits for its first answer.
    let (store, endpoint) = warmed(64).await;
    while lock(&endpoint.hedging).spend() {}
    store.then(1, 1_000, None);
    let started = Instant::now();
    get(&endpoint).await.unwrap();
    assert_eq!((started.elapsed().as_millis(), hedges(&endpoint)), (1_000, 0));
    let few = warmed(15).await;
    few.0.then(1, 1_000, None);
    get(&few.1).await.unwrap();
    assert_eq!(hedges(&few.1), 0, "too few latencies to know what is slow");
}

#[tokio::test(start_paused = true)]
async fn a_hedge_needs_room_in_flight() {
    let config = EndpointConfig { in_flight_kib_max: 1, ..EndpointConfig::default() };
    let (store, endpoint) = endpoint(config, Bytes::from(vec![7; 10]));
    for _ in 0..64 {
        get(&endpoint).await.unwrap();
    }
    store.then(1, 1_000, None);
    get(&endpoint).await.unwrap();
    assert_eq!(hedges(&endpoint), 0);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_fails_verification_is_counted_and_deleted() {
    let (keys, blocks) = (keys(), [BlockKey { hash: 1, parent: 0, index: 0 }]);
    let run = Run::new(&keys, &blocks, 100);
    let good = run.encode(&[&[5; 100]]);
    let (store, end) = endpoint(EndpointConfig::default(), good.clone());
    assert_eq!(end.load(&run, 1).await.unwrap().unwrap(), [vec![5; 100]]);
    assert_eq!(store.deleted.load(Ordering::Relaxed), 0);
    let mut bad = good.to_vec();
    bad[150] ^= 1;
    let (store, end) = endpoint(EndpointConfig::default(), bad.into());
    let error = end.load(&run, 1).await.unwrap_err();
    assert!(matches!(error, LoadError::Bad { bad: BadRun::Block { place: 0 }, .. }), "{error}");
    assert_eq!(store.deleted.load(Ordering::Relaxed), 1);
    assert_eq!(end.counters().bad_runs.load(Ordering::Relaxed), 1);
    assert_eq!(end.state(), BreakerState::Closed, "the store answers");
}

#[tokio::test(start_paused = true)]
async fn counters_add_up() {
    let (_, endpoint) = endpoint(EndpointConfig::default(), Bytes::from(vec![7; 10]));
    get(&endpoint).await.unwrap();
    endpoint.put(&name(), Bytes::from(vec![0; 30])).await.unwrap();
    let counters = endpoint.counters();
    let values = [
        &counters.gets,
        &counters.hits,
        &counters.misses,
        &counters.puts,
        &counters.bytes_read,
        &counters.bytes_written,
    ];
    assert_eq!(values.map(|value| value.load(Ordering::Relaxed)), [1, 1, 0, 1, 10, 30]);
}

#[tokio::test(start_paused = true)]
async fn a_store_is_in_use_once_it_answers_and_full_until_it_takes_a_write() {
    let (store, endpoint) = endpoint(EndpointConfig::default(), Bytes::new());
    let state = || endpoint.usage().state;
    let is_full = |state: Use| matches!(state, Use::Full(error) if error.contains("it says so"));
    assert_eq!(state(), Use::Untried);
    store.then(1, 0, Some(ErrorKind::TimedOut));
    get(&endpoint).await.unwrap_err();
    assert_eq!(state(), Use::Untried, "one error decides nothing");
    get(&endpoint).await.unwrap();
    assert_eq!(state(), Use::Used);
    store.then(2, 0, Some(ErrorKind::Full));
    for _ in 0..2 {
        endpoint.put(&name(), Bytes::new()).await.unwrap_err();
        assert!(is_full(state()), "{:?}", state());
    }
    get(&endpoint).await.unwrap();
    assert!(is_full(state()), "a read says nothing about room");
    endpoint.put(&name(), Bytes::new()).await.unwrap();
    assert_eq!(state(), Use::Used);
    store.then(1, 0, Some(ErrorKind::Refused));
    get(&endpoint).await.unwrap_err();
    assert!(matches!(state(), Use::Failed(_)), "{:?}", state());
}
