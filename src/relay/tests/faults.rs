//! A store behind a proxy that makes faults: it becomes an error or a miss, never wrong bytes, and is used again when it recovers.
#![allow(clippy::unwrap_used)] // tests may unwrap

mod common;

use bytes::Bytes;
use common::Server;
use common::proxy::{Fault, Proxy, Way};
use kvtide_relay::breaker::{BreakerConfig, BreakerState};
use kvtide_relay::endpoint::{Endpoint, EndpointConfig, LoadError};
use kvtide_relay::name::SpaceKeys;
use kvtide_relay::run::{BadRun, BlockKey, Run};
use kvtide_relay::store::{ErrorKind, Put, ValkeyConfig, ValkeyStore};
use kvtide_types::random::Random;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const BLOCK_BYTES: usize = 4096;

/// An endpoint of a server of Valkey at an address.
fn endpoint(addr: std::net::SocketAddr, deadline_ms: u64, failures_max: u32) -> Endpoint {
    // The store alone would wait for an hour: a deadline of the endpoint must be enough.
    let timeout = Duration::from_secs(3_600);
    let deadline = Duration::from_millis(deadline_ms);
    let url = Server::url(addr);
    let config = ValkeyConfig { url, cluster: false, ttl: Duration::from_secs(1_000), timeout };
    let wait = Duration::from_millis(20);
    let config_of_endpoint = EndpointConfig {
        deadline,
        breaker: BreakerConfig { failures_max, wait_min: wait, wait_max: wait * 4 },
        ..EndpointConfig::default()
    };
    Endpoint::new(Arc::new(ValkeyStore::open(&config).unwrap()), config_of_endpoint)
}

fn encode(run: &Run<'_>, blocks: &[BlockKey]) -> Bytes {
    let contents = contents(blocks);
    run.encode(&contents.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

fn contents(blocks: &[BlockKey]) -> Vec<Vec<u8>> {
    blocks.iter().map(|block| common::block_bytes(block, BLOCK_BYTES)).collect()
}

#[tokio::test]
async fn a_store_that_hangs_opens_the_breaker_and_closes_it_when_it_recovers() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.addr).await;
    for fault in [Fault::Hang, Fault::Vanish] {
        let endpoint = endpoint(proxy.addr, 300, 3);
        let (keys, blocks) = (common::keys(false), common::blocks(0, 8));
        let run = Run::new(&keys, &blocks, BLOCK_BYTES as u64);
        endpoint.put(run.name(), encode(&run, &blocks)).await.unwrap();
        for _ in 0..4 {
            endpoint.load(&run, 8).await.unwrap().unwrap(); // all connections of the store are made
        }
        proxy.set(Some((Way::Answer, fault)));
        for _ in 0..3 {
            let error = endpoint.load(&run, 8).await.unwrap_err();
            assert!(matches!(&error, LoadError::Store(error) if error.kind == ErrorKind::TimedOut), "{error}");
        }
        assert_eq!(endpoint.state(), BreakerState::Open, "{fault:?}");
        proxy.set(None);
        let recovered = tokio::time::timeout(Duration::from_secs(30), async {
            loop {
                match endpoint.load(&run, 8).await {
                    Ok(found) => return found,
                    Err(LoadError::Store(_)) => tokio::time::sleep(Duration::from_millis(5)).await, // a retry's pace
                    Err(error) => panic!("{error}"),
                }
            }
        });
        assert_eq!(recovered.await.expect("used again").unwrap(), contents(&blocks), "{fault:?}");
        assert_eq!(endpoint.state(), BreakerState::Closed);
        // No connection that vanished is left: each is used once more.
        for _ in 0..4 {
            endpoint.load(&run, 8).await.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn changed_bytes_are_a_bad_run_which_the_next_write_replaces() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.addr).await;
    let endpoint = endpoint(proxy.addr, 10_000, 3);
    for encrypted in [false, true] {
        let (keys, blocks) = (common::keys(encrypted), common::blocks(0, 8));
        let run = Run::new(&keys, &blocks, BLOCK_BYTES as u64);
        let object = encode(&run, &blocks);
        assert_eq!(endpoint.put(run.name(), object.clone()).await.unwrap(), Put::Stored);
        let changed = run.layout().block_range(5).start + 200;
        proxy.set(Some((Way::Answer, Fault::Corrupt { at: changed, mask: 1 })));
        let error = endpoint.load(&run, 8).await.unwrap_err();
        assert!(matches!(error, LoadError::Bad { bad: BadRun::Block { place: 5 }, .. }), "{error}");
        assert!(endpoint.load(&run, 8).await.unwrap().is_none(), "it was deleted");
        assert_eq!(endpoint.put(run.name(), object).await.unwrap(), Put::Stored);
        assert_eq!(endpoint.load(&run, 3).await.unwrap().unwrap(), contents(&blocks)[..3]);
    }
    assert_eq!(endpoint.counters().bad_runs.load(Ordering::Relaxed), 2);
    assert_eq!(endpoint.state(), BreakerState::Closed);
}

/// Runs of 8 blocks over a prefix of 1,000 blocks.
struct Prefix<'a> {
    blocks: &'a [BlockKey],
    runs: Vec<(Run<'a>, Bytes)>,
}

impl<'a> Prefix<'a> {
    fn new(keys: &'a SpaceKeys, blocks: &'a [BlockKey]) -> Self {
        let runs = blocks.chunks(8).map(|blocks| {
            let run = Run::new(keys, blocks, BLOCK_BYTES as u64);
            let object = encode(&run, blocks);
            (run, object)
        });
        Self { blocks, runs: runs.collect() }
    }
}

/// A fault somewhere in a request or answer of `bytes` bytes. One in 500 hangs.
fn fault(random: &mut Random, bytes: u64) -> Fault {
    match random.below(500) {
        0 => Fault::Hang,
        1..150 => Fault::Cut { after: random.below(bytes) },
        150..200 => Fault::Delay(Duration::from_micros(random.below(2_000))),
        _ => Fault::Corrupt { at: random.below(bytes), mask: 1 << random.below(8) },
    }
}

/// Results of 10,000 faults.
#[derive(Debug, Default)]
struct Outcomes {
    right: u32,
    missing: u32,
    bad: u32,
    errors: u32,
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_faults_give_no_wrong_byte() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.addr).await;
    let endpoint = endpoint(proxy.addr, 200, u32::MAX); // the breaker would keep the faults from happening
    for encrypted in [false, true] {
        let (keys, blocks) = (common::keys(encrypted), common::blocks(0, 1_000));
        let prefix = Prefix::new(&keys, &blocks);
        let mut random = Random::new(42);
        let mut outcomes = Outcomes::default();
        let before = proxy.happened();
        while proxy.happened() - before < 5_000 {
            let which = random.below(prefix.runs.len() as u64) as usize;
            let (run, object) = &prefix.runs[which];
            let writes = random.below(5) == 0;
            let (way, bytes) = if writes { (Way::Request, 32 << 10) } else { (Way::Answer, 32 << 10) };
            let fault = (way, fault(&mut random, bytes));
            proxy.set(Some(fault));
            if writes {
                let _ = endpoint.put(run.name(), object.clone()).await;
                proxy.set(None);
            } else {
                let expected = &prefix.blocks[which * 8..][..run.layout().count as usize];
                check(&endpoint, run, expected, &mut outcomes).await;
                proxy.set(None);
                // The run is written again if it is gone, so that the next fault finds one.
                let _ = endpoint.put(run.name(), object.clone()).await;
            }
        }
        println!("encrypted {encrypted}: {outcomes:?}, {} faults happened", proxy.happened() - before);
        assert!(outcomes.bad > 500 && outcomes.errors > 500 && outcomes.right > 100, "{outcomes:?}");
        // Without faults, what is left is right: a write that was changed on its way is found here.
        for (place, (run, object)) in prefix.runs.iter().enumerate() {
            let expected = &prefix.blocks[place * 8..][..run.layout().count as usize];
            check(&endpoint, run, expected, &mut outcomes).await;
            endpoint.put(run.name(), object.clone()).await.unwrap();
            assert_eq!(endpoint.load(run, run.layout().count).await.unwrap().unwrap(), contents(expected));
        }
    }
}

async fn check(endpoint: &Endpoint, run: &Run<'_>, expected: &[BlockKey], outcomes: &mut Outcomes) {
    let count = match endpoint.load(run, expected.len() as u32).await {
        Ok(Some(blocks)) => {
            assert_eq!(blocks, contents(expected), "wrong bytes");
            &mut outcomes.right
        }
        Ok(None) => &mut outcomes.missing,
        Err(LoadError::Bad { .. }) => &mut outcomes.bad,
        Err(_) => &mut outcomes.errors,
    };
    *count += 1;
}
