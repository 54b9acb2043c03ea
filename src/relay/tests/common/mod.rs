//! Shared by the tests with real stores: servers, a proxy that makes faults, runs, and the conformance test of all stores.
#![allow(dead_code, clippy::unwrap_used)] // each test program uses a part of it; tests may unwrap

pub mod proxy;

use bytes::Bytes;
use kvtide_relay::endpoint::{Endpoint, EndpointConfig, LoadError};
use kvtide_relay::name::{RunName, SharedKey, SpaceKeys};
use kvtide_relay::run::{BadRun, BlockKey, Run};
use kvtide_relay::store::{Put, Store};
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Keys of the space that the tests use.
pub fn keys(encrypted: bool) -> SpaceKeys {
    SpaceKeys::new(&SharedKey::new([7; 32]), "tests", &[9; 32], 0, encrypted)
}

/// Names of runs, each of another one.
pub fn names(count: u32) -> Vec<RunName> {
    (0..count).map(|i| keys(false).run_name((0, 0), &[u128::from(i) + 1])).collect()
}

/// The blocks `first .. first + count` of one prefix.
pub fn blocks(first: u32, count: u32) -> Vec<BlockKey> {
    (first..first + count)
        .map(|index| BlockKey { hash: u128::from(index) + 1, parent: u128::from(index), index })
        .collect()
}

/// Bytes of a block, which no other block has.
pub fn block_bytes(block: &BlockKey, len: usize) -> Vec<u8> {
    let seed = block.hash as u64;
    (0..len as u64).map(|i| ((seed * 0x9e37_79b9 + i * 0x85eb_ca6b) >> 13) as u8).collect()
}

/// Return a port that no program used a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port()
}

/// A server of Redis or Valkey in a folder of its own. It ends with the value.
pub struct Server {
    child: Child,
    _folder: TempDir,
    /// Where it listens.
    pub addr: SocketAddr,
}

impl Server {
    /// Start a server with further options of its command line, and wait until it accepts connections.
    pub fn start(options: &[&str]) -> Self {
        for _ in 0..5 {
            if let Some(server) = Self::start_once(options) {
                return server;
            }
        }
        panic!(
            "the server of Redis or Valkey ended at once, five times: start it by hand with {options:?} and read its log"
        );
    }

    /// Return a server, or none if it ended, as it does if another program took its port.
    fn start_once(options: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let start = |program: &str| {
            Command::new(program)
                .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port"])
                .arg(addr.port().to_string())
                .arg("--dir")
                .arg(folder.path())
                .args(options)
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
        };
        let mut child = start("redis-server").or_else(|_| start("valkey-server")).unwrap_or_else(|error| {
            panic!(
                "cannot start redis-server or valkey-server: {error}; this test needs one: apt-get install redis-server"
            )
        });
        let mut log = BufReader::new(child.stdout.take().expect("piped")).lines();
        let ready = log.by_ref().map_while(Result::ok).any(|line| line.contains("eady to accept connections"));
        // The rest of the log is read, so that the server never waits for a reader.
        std::thread::spawn(move || log.for_each(drop));
        let server = Self { child, _folder: folder, addr };
        ready.then_some(server)
    }

    /// Return the URL of the server behind an address.
    pub fn url(addr: SocketAddr) -> String {
        format!("redis://{addr}/")
    }

    /// Return a connection beside the store's, for what only a test does.
    pub async fn connect(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(Self::url(self.addr)).expect("a URL");
        client.get_multiplexed_async_connection().await.expect("the server runs")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Test of any store: objects under the names of runs that are no runs are reported as absent, read as empty, and replaced. `plant` puts
/// one under a name.
pub async fn no_runs_are_replaced(store: std::sync::Arc<dyn Store>, plant: impl AsyncFn(&RunName)) {
    let (keys, blocks) = (keys(true), blocks(0, 2));
    let run = Run::new(&keys, &blocks, 100);
    let bytes: Vec<Vec<u8>> = blocks.iter().map(|block| block_bytes(block, 100)).collect();
    let object = run.encode(&[&bytes[0], &bytes[1]]);
    let endpoint = Endpoint::new(std::sync::Arc::clone(&store), EndpointConfig::default());
    // A write replaces it.
    plant(run.name()).await;
    assert_eq!(store.present(&[run.name().clone()]).await.unwrap(), [false]);
    assert_eq!(store.put_run(run.name(), object.clone()).await.unwrap(), Put::Stored);
    assert_eq!(endpoint.load(&run, 2).await.unwrap().unwrap(), bytes);
    assert_eq!(store.put_run(run.name(), object.clone()).await.unwrap(), Put::Existed);
    store.delete(run.name()).await.unwrap();
    // A read deletes it.
    plant(run.name()).await;
    assert_eq!(store.get_run(run.name(), None).await.unwrap().unwrap(), Bytes::new());
    assert_eq!(store.get_run(run.name(), Some(0..9)).await.unwrap().unwrap(), Bytes::new());
    let error = endpoint.load(&run, 2).await.unwrap_err();
    assert!(matches!(error, LoadError::Bad { bad: BadRun::Length { got: 0, .. }, .. }), "{error}");
    assert_eq!(store.get_run(run.name(), None).await.unwrap(), None);
    assert_eq!(endpoint.put(run.name(), object).await.unwrap(), Put::Stored);
}

/// Test of any store. The store is empty at first.
pub async fn conformance(store: &dyn Store) {
    let names = names(1_100);
    let [one, two, ..] = &names[..] else { unreachable!("1,100 names") };
    let bytes = Bytes::from((0..100_000u32).map(|i| ((i * 7) >> 3) as u8).collect::<Vec<_>>());

    assert_eq!(store.get_run(one, None).await.unwrap(), None);
    assert_eq!(store.get_run(one, Some(0..10)).await.unwrap(), None);
    store.delete(one).await.unwrap();

    assert_eq!(store.put_run(one, bytes.clone()).await.unwrap(), Put::Stored);
    assert_eq!(store.put_run(one, Bytes::from_static(b"other")).await.unwrap(), Put::Existed);
    assert_eq!(store.get_run(one, None).await.unwrap().unwrap(), bytes, "the first write stays");
    for range in [0..1u64, 5..77_777, 99_999..100_000] {
        let expected = bytes.slice(range.start as usize..range.end as usize);
        assert_eq!(store.get_run(one, Some(range.clone())).await.unwrap().unwrap(), expected, "{range:?}");
    }
    let longer = store.get_run(one, Some(99_990..100_100)).await.unwrap().unwrap();
    assert_eq!(longer, bytes.slice(99_990..), "a range that ends behind the run");

    let writes = (0..16).map(|i| store.put_run(two, Bytes::from(vec![i; 1_000])));
    let written = futures_util::future::try_join_all(writes).await.unwrap();
    assert_eq!(written.iter().filter(|&&put| put == Put::Stored).count(), 1, "one of 16 writers at a time");
    let kept = store.get_run(two, None).await.unwrap().unwrap();
    assert!(kept.len() == 1_000 && kept.iter().all(|&byte| byte == kept[0]), "the bytes of one writer");

    let stored: Vec<usize> = (0..1_100).filter(|i| i % 100 == 0).collect();
    for &i in &stored[1..] {
        assert_eq!(store.put_run(&names[i], bytes.slice(..10)).await.unwrap(), Put::Stored);
    }
    let present = store.present(&names).await.unwrap();
    let expected: Vec<bool> = (0..1_100).map(|i| i == 1 || stored.contains(&i)).collect();
    assert_eq!(present, expected);
    assert_eq!(store.present(&[]).await.unwrap(), [false; 0]);

    store.delete(one).await.unwrap();
    store.delete(one).await.unwrap();
    assert_eq!(store.get_run(one, None).await.unwrap(), None);
    assert_eq!(store.put_run(one, Bytes::from_static(b"again")).await.unwrap(), Put::Stored);
}
