//! The S3 server of moto as a store, directly and behind a proxy that makes faults.
//!
//! Not among the tests that always run, because it needs Python: `KVTIDE_MOTO_SERVER=/path/to/moto_server cargo test -p kvtide-relay
//! --test s3`, with the program from `pip install 'moto[server]'`.
#![allow(clippy::unwrap_used)] // tests may unwrap

mod common;

use common::proxy::{Fault, Proxy, Way};
use kvtide_relay::breaker::{BreakerConfig, BreakerState};
use kvtide_relay::endpoint::{Endpoint, EndpointConfig, LoadError};
use kvtide_relay::run::{BadRun, Run};
use kvtide_relay::store::{ErrorKind, ObjectStore, Put, Store};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

struct Moto {
    child: Child,
    addr: SocketAddr,
}

impl Moto {
    /// Start a server with the bucket `tests`.
    async fn start() -> Self {
        let program = std::env::var("KVTIDE_MOTO_SERVER")
            .expect("KVTIDE_MOTO_SERVER names the program moto_server (pip install 'moto[server]')");
        let addr = SocketAddr::from(([127, 0, 0, 1], common::free_port()));
        let mut child = Command::new(&program)
            .args(["-H", "127.0.0.1", "-p", &addr.port().to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {program}: {error}"));
        let mut log = BufReader::new(child.stderr.take().expect("piped")).lines();
        let ready = log.by_ref().map_while(Result::ok).any(|line| line.contains("Running on"));
        std::thread::spawn(move || log.for_each(drop));
        let moto = Self { child, addr };
        assert!(ready, "{program} ended at once");
        let mut connection = TcpStream::connect(addr).await.unwrap();
        let request = format!("PUT /tests HTTP/1.1\r\nHost: {addr}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains(" 200 "), "{answer}");
        moto
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn open(addr: SocketAddr, url: &str) -> ObjectStore {
    let options = [
        ("aws_endpoint", format!("http://{addr}")),
        ("aws_allow_http", "true".into()),
        ("aws_region", "us-east-1".into()),
        ("aws_access_key_id", "key".into()),
        ("aws_secret_access_key", "secret".into()),
    ];
    ObjectStore::open(url, &options.map(|(key, value)| (key.to_owned(), value)), Duration::from_secs(10)).unwrap()
}

#[tokio::test]
async fn s3_conforms() {
    let moto = Moto::start().await;
    common::conformance(&open(moto.addr, "s3://tests/a/prefix")).await;
    let missing = open(moto.addr, "s3://missing");
    let name = &common::names(1)[0];
    for error in
        [missing.get_run(name, None).await.unwrap_err(), missing.put_run(name, b"x"[..].into()).await.unwrap_err()]
    {
        assert_eq!(error.kind, ErrorKind::NoBucket, "{error}");
    }
}

#[tokio::test]
async fn s3_with_faults() {
    let moto = Moto::start().await;
    let proxy = Proxy::start(moto.addr).await;
    let config = EndpointConfig {
        deadline: Duration::from_secs(1),
        breaker: BreakerConfig { failures_max: 2, ..BreakerConfig::default() },
        ..EndpointConfig::default()
    };
    let endpoint = Endpoint::new(Arc::new(open(proxy.addr, "s3://tests")), config);
    let (keys, blocks) = (common::keys(false), common::blocks(0, 4));
    let run = Run::new(&keys, &blocks, 100_000);
    let contents: Vec<_> = blocks.iter().map(|block| common::block_bytes(block, 100_000)).collect();
    let object = run.encode(&contents.iter().map(Vec::as_slice).collect::<Vec<_>>());
    assert_eq!(endpoint.put(run.name(), object.clone()).await.unwrap(), Put::Stored);
    assert_eq!(endpoint.load(&run, 4).await.unwrap().unwrap(), contents);

    proxy.set(Some((Way::Answer, Fault::Corrupt { at: 250_000, mask: 0x10 })));
    let error = endpoint.load(&run, 4).await.unwrap_err();
    assert!(matches!(error, LoadError::Bad { bad: BadRun::Block { place: 2 }, .. }), "{error}");
    assert!(endpoint.load(&run, 4).await.unwrap().is_none(), "it was deleted");
    assert_eq!(endpoint.put(run.name(), object).await.unwrap(), Put::Stored);

    proxy.set(Some((Way::Answer, Fault::Cut { after: 200_000 })));
    let error = endpoint.load(&run, 4).await.unwrap_err();
    assert!(matches!(&error, LoadError::Store(error) if error.kind == ErrorKind::Unreachable), "{error}");

    proxy.set(Some((Way::Answer, Fault::Hang)));
    for _ in 0..2 {
        let _ = endpoint.load(&run, 4).await.unwrap_err();
    }
    assert_eq!(endpoint.state(), BreakerState::Open);
    proxy.set(None);
    let recovered = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            match endpoint.load(&run, 4).await {
                Ok(found) => return found,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await, // a retry's pace
            }
        }
    });
    assert_eq!(recovered.await.expect("used again").unwrap(), contents);
    assert_eq!(endpoint.state(), BreakerState::Closed);
}
