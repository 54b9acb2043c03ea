//! KV events over real sockets: order, gaps, replays, overflows, restarts, with a plain subscriber.
#![allow(clippy::unwrap_used)] // helpers of tests too: a panic there is a failure with a place

use bytes::Bytes;
use kvtide_relay::config::{Config, Events as Settings};
use kvtide_relay::events::{Counters, Events, Follower, NoStream};
use kvtide_types::FeedEvent;
use kvtide_wire::hello::SpaceOpened;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

const BOUND: Duration = Duration::from_secs(60);
const SPACE: [u8; 32] = [9; 32];

fn parsed(addresses: &str, dir: &Path) -> Settings {
    let text = format!(
        "[[domains]]\nname = \"a\"\nshared_key_file = \"/k\"\n[store]\nurl = \"file:///s\"\n[domains.events]\n{addresses}\n\
         topic = \"kv@{{space}}\"\ntokens_dir = \"{}\"\ntokens_mib = 64\n",
        dir.display()
    );
    Config::parse(Path::new("relay.toml"), &text).unwrap().domains.remove(0).events.unwrap()
}

/// Settings with Unix sockets for this user.
fn settings(dir: &Path) -> Settings {
    let (shown, uid) = (dir.display(), std::fs::metadata(dir).unwrap().uid());
    parsed(&format!("publish = \"ipc://{shown}/publish\"\nreplay = \"ipc://{shown}/replay\"\nuids = [{uid}]"), dir)
}

/// Settings with ports that were free just now.
fn tcp_settings(dir: &Path) -> Settings {
    let ports = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let [publish, replay] = ports.map(|port| port.local_addr().unwrap());
    parsed(&format!("publish = \"tcp://{publish}\"\nreplay = \"tcp://{replay}\"\nanyone = true"), dir)
}

fn open(settings: &Settings, runtime: &Runtime) -> (Events, Arc<Counters>) {
    let counters = Arc::new(Counters::default());
    (Events::open(settings, runtime.handle().clone(), Arc::clone(&counters)).unwrap(), counters)
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn space() -> SpaceOpened {
    SpaceOpened { space: 1, name: "a".into(), fingerprint: SPACE, page_tokens: 2, planes: Vec::new(), shards: 1 }
}

fn stored(hash: u128, parent: u128) -> FeedEvent {
    FeedEvent::Stored { hash, parent, relayed: false }
}

/// Note the tokens of blocks: each has its number twice.
fn note(events: &Events, hashes: &[u128]) {
    let tokens: Vec<u32> = hashes.iter().flat_map(|hash| [*hash as u32; 2]).collect();
    events.note(&SPACE, hashes.to_vec(), &tokens, None).unwrap();
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type")]
enum Event {
    BlockStored { block_hashes: Vec<u64>, parent_block_hash: Option<u64>, token_ids: Vec<u32>, medium: String },
    BlockRemoved { block_hashes: Vec<u64>, medium: String },
    AllBlocksCleared,
}

/// A router: it subscribes, asks for what it missed, and keeps the blocks of each medium.
struct Router {
    live: SubSocket,
    replay: DealerSocket,
    last: Option<u64>,
    blocks: BTreeMap<u64, String>,
    cleared: u32,
}

impl Router {
    async fn connect(settings: &Settings) -> Router {
        let (mut live, mut replay) = (SubSocket::new(), DealerSocket::new());
        live.connect(&settings.publish.of_space(0).to_string()).await.unwrap();
        live.subscribe("kv@a").await.unwrap();
        replay.connect(&settings.replay.of_space(0).to_string()).await.unwrap();
        Router { live, replay, last: None, blocks: BTreeMap::new(), cleared: 0 }
    }

    fn apply(&mut self, number: u64, batch: &[u8]) {
        let (_, events, rank): (f64, Vec<Event>, Option<u32>) = rmp_serde::from_slice(batch).unwrap();
        assert_eq!(rank, None);
        self.last = Some(number);
        for event in events {
            match event {
                Event::AllBlocksCleared => {
                    self.blocks.clear();
                    self.cleared += 1;
                }
                Event::BlockStored { block_hashes, parent_block_hash, token_ids, medium } => {
                    assert!(parent_block_hash.is_none_or(|parent| self.blocks.contains_key(&parent)), "parents first");
                    for (hash, tokens) in block_hashes.iter().zip(token_ids.chunks(2)) {
                        assert_eq!(tokens, [*hash as u32; 2]);
                        *self.blocks.entry(*hash).or_default() += &medium;
                    }
                }
                Event::BlockRemoved { block_hashes, medium } => {
                    for hash in block_hashes {
                        // A replay may begin with the removal of a block that the router never had.
                        let left = self.blocks.remove(&hash).unwrap_or_default().replace(&medium, "");
                        if !left.is_empty() {
                            self.blocks.insert(hash, left);
                        }
                    }
                }
            }
        }
    }

    /// Ask for all batches from a number on.
    async fn catch_up(&mut self, first: u64) {
        let mut request = ZmqMessage::from(Bytes::new());
        request.push_back(Bytes::copy_from_slice(&first.to_be_bytes()));
        self.replay.send(request).await.unwrap();
        loop {
            let answer = self.replay.recv().await.unwrap().into_vec();
            let [_, topic, number, batch] = &answer[..] else { panic!("{answer:?}") };
            if batch.is_empty() {
                assert_eq!((&topic[..], &number[..]), (&b""[..], &[0xff; 8][..]));
                return;
            }
            assert_eq!(&topic[..], b"kv@a");
            let number = u64::from_be_bytes(number[..].try_into().unwrap());
            assert!(number >= first);
            self.apply(number, batch);
        }
    }

    /// Read batches until the blocks are these.
    async fn until(&mut self, expected: &[(u64, &str)]) {
        let expected: BTreeMap<u64, String> = expected.iter().map(|(hash, media)| (*hash, (*media).into())).collect();
        let reading = async {
            while self.blocks != expected {
                let message = self.live.recv().await.unwrap().into_vec();
                let [_, number, batch] = &message[..] else { panic!("{message:?}") };
                let number = u64::from_be_bytes(number[..].try_into().unwrap());
                if self.last.is_none_or(|last| last + 1 < number) {
                    self.catch_up(self.last.map_or(0, |last| last + 1)).await;
                }
                if self.last.is_none_or(|last| last < number) {
                    self.apply(number, batch);
                }
            }
        };
        let in_time = tokio::time::timeout(BOUND, reading).await.is_ok();
        assert!(in_time, "expected {expected:?}, got {:?}", self.blocks);
    }
}

fn follow(events: &Events) -> Follower {
    events.follow(&space()).unwrap()
}

#[test]
fn a_router_that_comes_late_or_sees_a_restart_knows_all_blocks() {
    for settings in [settings, tcp_settings] {
        late_and_restarted(settings);
    }
}

fn late_and_restarted(settings: fn(&Path) -> Settings) {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), runtime());
    let settings = settings(dir.path());
    let (events, _) = open(&settings, &runtime);
    note(&events, &[1, 2]);
    let follower = follow(&events);
    assert_eq!(events.follow(&space()).err(), Some(NoStream::Taken), "one thread follows a space");
    follower.listing(vec![stored(2, 1), FeedEvent::Recorded { hash: 2 }, stored(1, 0), stored(3, 2)]);
    // Nothing more happens: an idle stream tells the router that it has missed something.
    let mut router = runtime.block_on(Router::connect(&settings));
    runtime.block_on(router.until(&[(1, "CPU"), (2, "CPUSTORAGE")]));
    note(&events, &[3, 4]);
    follower.event(stored(4, 1));
    follower.event(FeedEvent::Removed { hash: 2 });
    runtime.block_on(router.until(&[(1, "CPU"), (4, "CPU")]));
    // The daemon ends.
    drop(follower);
    runtime.block_on(router.until(&[]));
    let follower = follow(&events);
    follower.listing(vec![stored(1, 0)]);
    runtime.block_on(router.until(&[(1, "CPU")]));
    // The relay ends: what engines noted is on disk, and the router's sockets connect again.
    let before = router.last;
    drop(follower);
    drop((events, runtime));
    let runtime = self::runtime();
    let (events, _) = open(&settings, &runtime);
    let follower = follow(&events);
    follower.listing(vec![stored(1, 0), stored(4, 1), stored(5, 4)]);
    let again = self::runtime();
    let mut second = again.block_on(Router::connect(&settings));
    again.block_on(second.until(&[(1, "CPU"), (4, "CPU")]));
    assert!(second.last > before, "a router drops numbers that it has seen");
}

#[test]
fn a_full_queue_asks_for_a_listing_and_everything_is_published_again() {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), runtime());
    let settings = settings(dir.path());
    let (events, counters) = open(&settings, &runtime);
    note(&events, &[1, 2, 3]);
    let follower = follow(&events);
    follower.listing(vec![stored(1, 0), stored(2, 0)]);
    let mut router = runtime.block_on(Router::connect(&settings));
    runtime.block_on(router.until(&[(1, "CPU"), (2, "CPU")]));
    // One note that is larger than the queue.
    let many: Vec<u128> = (1000..100_000).collect();
    note(&events, &many);
    assert!(follower.is_lost());
    follower.event(FeedEvent::Removed { hash: 2 }); // void, like everything until the listing
    assert_eq!(counters.overflows.load(Ordering::Relaxed), 1);
    let cleared = router.cleared;
    follower.listing(vec![stored(1, 0), stored(3, 1), stored(5000, 3)]);
    assert!(!follower.is_lost());
    runtime.block_on(router.until(&[(1, "CPU"), (3, "CPU"), (5000, "CPU")]));
    assert_eq!(router.cleared, cleared + 1);
}

#[test]
fn a_router_that_missed_more_than_the_ring_has_gets_everything_again() {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), runtime());
    let settings = settings(dir.path());
    let (events, counters) = open(&settings, &runtime);
    note(&events, &[1, 2]);
    let follower = follow(&events);
    follower.listing(vec![stored(1, 0)]);
    // More batches than the ring has: each of these is one, once it is published.
    let deadline = Instant::now() + BOUND;
    let published = || counters.events.load(Ordering::Relaxed);
    for _ in 0..12_000 {
        let before = published();
        follower.event(stored(2, 0));
        follower.event(FeedEvent::Removed { hash: 2 });
        while published() < before + 2 {
            assert!(Instant::now() < deadline, "{} events", published());
            std::thread::yield_now();
        }
    }
    let mut router = runtime.block_on(Router::connect(&settings));
    runtime.block_on(router.until(&[(1, "CPU")]));
    assert_eq!(router.cleared, 1, "the first batch was not in the ring");
}
