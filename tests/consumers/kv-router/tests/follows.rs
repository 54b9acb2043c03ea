//! The router's own indexer (listener over libzmq, replay, index) after 100,000 random operations, and over a restart of the relay,
//! knows what a plain model lists.

use dynamo_kv_router::identity::RoutingPartitionId;
use dynamo_kv_router::protocols::{BlockHashOptions, KvCacheEventData, StorageTier, compute_block_hash_for_seq};
use dynamo_kv_router::services::indexer::registry::WorkerRegistry;
use kvtide_relay::config::{Config, Events as Settings};
use kvtide_relay::events::{Events, Follower};
use kvtide_types::FeedEvent;
use kvtide_wire::hello::SpaceOpened;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

const BOUND: Duration = Duration::from_secs(120);
const SPACE: [u8; 32] = [9; 32];
const PAGE_TOKENS: u32 = 16;
const BLOCKS: u64 = 2000;

/// Tier, hash, parent's hash, and the router's hash of tokens and adapter.
type Dump = BTreeSet<(bool, u64, Option<u64>, u64)>;

fn settings(dir: &Path) -> Settings {
    let ports = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let [publish, replay] = ports.map(|port| port.local_addr().unwrap());
    let text = format!(
        "[[domains]]\nname = \"a\"\nshared_key_file = \"/k\"\n[store]\nurl = \"file:///s\"\n[domains.events]\n\
         publish = \"tcp://{publish}\"\nreplay = \"tcp://{replay}\"\nanyone = true\ntokens_dir = \"{}\"\n",
        dir.display()
    );
    Config::parse(Path::new("relay.toml"), &text).unwrap().domains.remove(0).events.unwrap()
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn follow(events: &Events) -> Follower {
    let (name, planes) = ("a".into(), Vec::new());
    let space = SpaceOpened { space: 1, name, fingerprint: SPACE, page_tokens: PAGE_TOKENS, planes, shards: 1 };
    events.follow(&space).unwrap()
}

/// Block `n` of a tree: its parent is block `n / 2 - 10`, and the first ones have none.
fn name(n: u64) -> u128 {
    if n == 0 { 0 } else { u128::from(n) << 64 | u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) }
}

fn parent(n: u64) -> u64 {
    (n / 2).saturating_sub(10)
}

fn tokens(n: u64) -> Vec<u32> {
    (0..PAGE_TOKENS).map(|i| n as u32 * 100 + i).collect()
}

/// Blocks of one prefix have one adapter: it is the root's.
fn adapter(mut n: u64) -> Option<&'static str> {
    while parent(n) != 0 {
        n = parent(n);
    }
    n.is_multiple_of(3).then_some("adapter")
}

#[derive(Default)]
struct Model {
    /// Blocks, and whether they are on NVMe.
    cached: BTreeMap<u64, bool>,
    noted: HashSet<u64>,
}

impl Model {
    fn expected(&self) -> Dump {
        let is_visible = |mut n: u64| {
            while n != 0 && self.cached.contains_key(&n) && self.noted.contains(&n) {
                n = parent(n);
            }
            n == 0
        };
        let mut dump = Dump::new();
        for (&n, &recorded) in self.cached.iter().filter(|(n, _)| is_visible(**n)) {
            let options = BlockHashOptions { lora_name: adapter(n), ..BlockHashOptions::default() };
            let local = compute_block_hash_for_seq(&tokens(n), PAGE_TOKENS, options)[0].0;
            let above = (parent(n) != 0).then(|| name(parent(n)) as u64);
            dump.insert((false, name(n) as u64, above, local));
            if recorded {
                dump.insert((true, name(n) as u64, above, local));
            }
        }
        dump
    }

    fn listing(&self) -> Vec<FeedEvent> {
        let events = self.cached.iter().rev().flat_map(|(&n, &recorded)| {
            let stored = FeedEvent::Stored { hash: name(n), parent: name(parent(n)), relayed: false };
            std::iter::once(stored).chain(recorded.then_some(FeedEvent::Recorded { hash: name(n) }))
        });
        events.collect()
    }
}

/// Wait until the router's dump is this one.
fn until(runtime: &Runtime, registry: &WorkerRegistry, expected: &Dump) {
    let key = RoutingPartitionId::new("model", "default");
    let deadline = Instant::now() + BOUND;
    loop {
        let indexer = registry.get_indexer(&key).unwrap().indexer.clone();
        let events = runtime.block_on(indexer.dump_events()).unwrap();
        let mut dump = Dump::new();
        for event in events {
            assert_eq!((event.worker_id, event.event.dp_rank), (7, 0));
            let on_disk = match event.storage_tier {
                StorageTier::HostPinned => false,
                StorageTier::Disk => true,
                tier => panic!("{tier:?}"),
            };
            let KvCacheEventData::Stored(stored) = event.event.data else { panic!("a dump has stored blocks") };
            for block in stored.blocks {
                let parent = stored.parent_hash.map(|hash| hash.0);
                dump.insert((on_disk, block.block_hash.0, parent, block.tokens_hash.0));
            }
        }
        if dump == *expected {
            return;
        }
        let (more, less) = (dump.difference(expected).count(), expected.difference(&dump).count());
        assert!(Instant::now() < deadline, "of {} blocks, {less} lack and {more} are too many", expected.len());
        std::thread::yield_now();
    }
}

#[test]
fn a_router_knows_what_is_cached_after_random_operations_and_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    let routers = runtime();
    let registry = {
        let _entered = routers.enter();
        WorkerRegistry::new(2)
    };
    registry.signal_ready();
    let (live, replay) = (settings.publish.of_space(0).to_string(), settings.replay.of_space(0).to_string());
    routers
        .block_on(registry.register(7, live, 0, "model".into(), "default".into(), PAGE_TOKENS, Some(replay)))
        .unwrap();

    let relay = runtime();
    let events = Events::open(&settings, relay.handle().clone(), Arc::default()).unwrap();
    let follower = follow(&events);
    follower.listing(Vec::new());
    let (mut model, mut seed) = (Model::default(), 1u64);
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for step in 0..100_000u32 {
        let n = 1 + random(BLOCKS);
        let hash = name(n);
        match random(1000) {
            0..500 => {
                model.cached.entry(n).or_insert(false);
                follower.event(FeedEvent::Stored { hash, parent: name(parent(n)), relayed: false });
            }
            500..700 => {
                model.noted.insert(n);
                events.note(&SPACE, vec![hash], &tokens(n), adapter(n)).unwrap();
            }
            700..880 => {
                model.cached.entry(n).and_modify(|recorded| *recorded = true);
                follower.event(FeedEvent::Recorded { hash });
            }
            880..999 => {
                model.cached.remove(&n);
                follower.event(FeedEvent::Removed { hash });
            }
            _ => follower.listing(model.listing()),
        }
        if follower.is_lost() {
            follower.listing(model.listing());
        }
        if step % 10_000 == 9_999 {
            let expected = model.expected();
            assert!(expected.len() > 100, "{}", expected.len());
            until(&routers, &registry, &expected);
        }
    }

    // The relay ends. The next one has the tokens on disk, and lists what is cached by now.
    drop((follower, events));
    drop(relay);
    (BLOCKS / 2..BLOCKS).for_each(|n| _ = model.cached.remove(&n));
    (1..=BLOCKS / 4).for_each(|n| _ = model.cached.insert(n, true));
    let relay = runtime();
    let events = Events::open(&settings, relay.handle().clone(), Arc::default()).unwrap();
    let follower = follow(&events);
    follower.listing(model.listing());
    assert!(model.expected().len() > 100);
    until(&routers, &registry, &model.expected());
    follower.event(FeedEvent::Removed { hash: name(1) });
    model.cached.remove(&1);
    until(&routers, &registry, &model.expected());
}
