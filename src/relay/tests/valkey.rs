//! A real server of Redis or Valkey as a store.
#![allow(clippy::unwrap_used)] // tests may unwrap

mod common;

use bytes::Bytes;
use common::Server;
use common::proxy::{Fault, Proxy, Way};
use kvtide_relay::name::RunName;
use kvtide_relay::store::{ErrorKind, Put, Store, ValkeyConfig, ValkeyStore};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const TTL_S: u64 = 1_000;

fn open_url(url: &str, cluster: bool) -> ValkeyStore {
    let (ttl, timeout) = (Duration::from_secs(TTL_S), Duration::from_secs(10));
    ValkeyStore::open(&ValkeyConfig { url: url.into(), cluster, ttl, timeout }).unwrap()
}

fn open(addr: SocketAddr) -> ValkeyStore {
    open_url(&Server::url(addr), false)
}

fn name() -> RunName {
    common::names(1).remove(0)
}

/// A server that claims lengths it does not send: nothing is reserved for them, and the request fails.
#[tokio::test]
async fn claims_of_a_server_are_errors() {
    for claim in
        ["$4611686018427387904\r\n", "*4611686018427387904\r\n", "%4611686018427387904\r\n", ">4611686018427387904\r\n"]
    {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 4096];
                if stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                    let answer = [claim.as_bytes(), &[b'x'; 100_000]].concat();
                    let _ = stream.write_all(&answer).await;
                }
            }
        });
        let error = open(addr).get_run(&name(), Some(0..1000)).await.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Unreachable | ErrorKind::Garbage), "{claim:?}: {error}");
    }
}

#[tokio::test]
async fn a_server_conforms() {
    let server = Server::start(&[]);
    common::conformance(&open(server.addr)).await;
}

#[tokio::test]
async fn a_cluster_conforms() {
    let servers = [(); 2].map(|()| Server::start(&["--cluster-enabled", "yes"]));
    for (server, slots) in servers.iter().zip([(0, 8_191), (8_192, 16_383)]) {
        let mut connection = server.connect().await;
        let assign = redis::cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(slots.0).arg(slots.1).to_owned();
        assign.query_async::<()>(&mut connection).await.unwrap();
        let first = servers[0].addr;
        let meet = redis::cmd("CLUSTER").arg("MEET").arg("127.0.0.1").arg(first.port()).to_owned();
        meet.query_async::<()>(&mut connection).await.unwrap();
    }
    for server in &servers {
        let mut connection = server.connect().await;
        let whole = tokio::time::timeout(Duration::from_secs(60), async {
            let whole = |info: &str| info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2");
            while !whole(&redis::cmd("CLUSTER").arg("INFO").query_async::<String>(&mut connection).await.unwrap()) {
                tokio::time::sleep(Duration::from_millis(20)).await; // the nodes give no other sign
            }
        });
        whole.await.expect("two nodes become a cluster within a minute");
    }
    let store = open_url(&Server::url(servers[1].addr), true);
    common::conformance(&store).await;
    for server in &servers {
        let keys: u64 = redis::cmd("DBSIZE").query_async(&mut server.connect().await).await.unwrap();
        assert!(keys > 0, "each node has a part of the runs");
    }
}

#[tokio::test]
async fn keys_that_are_empty_or_of_another_type_are_replaced() {
    let server = Server::start(&[]);
    for plant in [["SET", ""], ["LPUSH", "bytes"], ["SADD", "bytes"]] {
        let connection = server.connect().await;
        common::no_runs_are_replaced(std::sync::Arc::new(open(server.addr)), async |name| {
            let command = redis::cmd(plant[0]).arg(name.as_str()).arg(plant[1]).to_owned();
            command.query_async::<()>(&mut connection.clone()).await.unwrap();
        })
        .await;
        redis::cmd("FLUSHALL").query_async::<()>(&mut connection.clone()).await.unwrap();
    }
}

#[tokio::test]
async fn runs_expire_unless_they_are_used() {
    let server = Server::start(&[]);
    let (store, name) = (open(server.addr), name());
    let mut connection = server.connect().await;
    let expire = redis::cmd("EXPIRE").arg(name.as_str()).arg(10).to_owned();
    let ttl = redis::cmd("TTL").arg(name.as_str()).to_owned();
    let bytes = Bytes::from_static(b"bytes");
    assert_eq!(store.put_run(&name, bytes.clone()).await.unwrap(), Put::Stored);
    for use_of_it in 0..4 {
        let left: u64 = ttl.query_async(&mut connection).await.unwrap();
        assert!(left > 10 && left <= TTL_S, "{left} s after use {use_of_it}");
        expire.query_async::<()>(&mut connection).await.unwrap();
        match use_of_it {
            0 => drop(store.get_run(&name, None).await.unwrap().unwrap()),
            1 => drop(store.get_run(&name, Some(0..2)).await.unwrap().unwrap()),
            _ => assert_eq!(store.put_run(&name, bytes.clone()).await.unwrap(), Put::Existed),
        }
    }
    redis::cmd("PEXPIRE").arg(name.as_str()).arg(0).query_async::<()>(&mut connection).await.unwrap();
    assert_eq!(store.get_run(&name, None).await.unwrap(), None);
    assert_eq!(store.present(&[name]).await.unwrap(), [false]);
}

#[tokio::test]
async fn many_names_are_one_round_trip() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.addr).await;
    let (store, names) = (open(proxy.addr), common::names(1_024));
    store.present(&names[..1]).await.unwrap(); // on a connection of its own; the next call takes another
    for _ in 0..3 {
        store.present(&names[..1]).await.unwrap();
    }
    // No answer passes until the whole request has come.
    proxy.set(Some((Way::Answer, Fault::Hang)));
    let bytes = names.iter().map(|name| name.as_str().len() as u64).sum();
    let (present, ()) = tokio::join!(store.present(&names), async {
        proxy.seen(Way::Request, bytes).await;
        proxy.set(None);
    });
    assert_eq!(present.unwrap(), [false; 1_024]);
}

#[tokio::test]
async fn a_cut_connection_is_made_again() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.addr).await;
    let (store, name) = (open(proxy.addr), name());
    store.put_run(&name, Bytes::from(vec![1; 100_000])).await.unwrap();
    for after in [0, 3, 50_000] {
        // Each connection of the store is cut once, and used once more.
        for _ in 0..4 {
            proxy.set(Some((Way::Answer, Fault::Cut { after })));
            let error = store.get_run(&name, None).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unreachable, "{error}");
            proxy.set(None);
        }
        for _ in 0..4 {
            assert_eq!(store.get_run(&name, None).await.unwrap().unwrap().len(), 100_000);
        }
    }
}

#[tokio::test]
async fn a_server_that_hangs_times_out_and_is_used_again() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.addr).await;
    let config = ValkeyConfig {
        url: Server::url(proxy.addr),
        cluster: false,
        ttl: Duration::from_secs(TTL_S),
        timeout: Duration::from_millis(200),
    };
    let (store, name) = (ValkeyStore::open(&config).unwrap(), name());
    proxy.set(Some((Way::Answer, Fault::Hang)));
    let error = store.get_run(&name, None).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::TimedOut, "{error}");
    proxy.set(None);
    for _ in 0..4 {
        store.put_run(&name, Bytes::from_static(b"x")).await.unwrap();
    }
}

/// Expect an error of a kind whose text names the endpoint, the reason and what to do, and no password.
async fn expect(store: &ValkeyStore, kind: ErrorKind, reason: &str, advice: &str) {
    let error = store.put_run(&name(), Bytes::from(vec![0; 2 << 20])).await.unwrap_err();
    assert_eq!(error.kind, kind, "{error}");
    for part in ["cannot write a run at redis", "127.0.0.1", reason, advice] {
        assert!(error.text.contains(part), "{part:?} is not in {:?}", error.text);
    }
    assert!(!error.text.contains("secret"), "{error}");
}

#[tokio::test]
async fn refused_credentials() {
    let server = Server::start(&["--requirepass", "secret-right"]);
    let addr = server.addr;
    expect(&open(addr), ErrorKind::Refused, "uthentication", "check the credentials").await;
    let wrong = open_url(&format!("redis://:secret-wrong@{addr}/"), false);
    expect(&wrong, ErrorKind::Refused, "", "check the credentials").await;
    let right = open_url(&format!("redis://:secret-right@{addr}/"), false);
    assert_eq!(right.put_run(&name(), Bytes::from_static(b"x")).await.unwrap(), Put::Stored);
    // A user who may read and not write.
    let admin = redis::Client::open(format!("redis://:secret-right@{addr}/")).unwrap();
    let acl = redis::cmd("ACL")
        .arg(&["SETUSER", "reader", "on", ">secret-reader", "~*", "+get", "+getrange", "+exists", "+ping", "+client"])
        .to_owned();
    let mut admin = admin.get_multiplexed_async_connection().await.unwrap();
    acl.query_async::<()>(&mut admin).await.unwrap();
    let reader = open_url(&format!("redis://reader:secret-reader@{addr}/"), false);
    expect(&reader, ErrorKind::Refused, "no permissions", "check the credentials").await;
}

#[tokio::test]
async fn a_full_server() {
    let server = Server::start(&["--maxmemory", "8mb", "--maxmemory-policy", "noeviction"]);
    let store = open(server.addr);
    let mut results = vec![];
    for name in common::names(9) {
        results.push(store.put_run(&name, Bytes::from(vec![0; 1 << 20])).await);
    }
    assert!(results[0].is_ok(), "{results:?}");
    let error = results.pop().unwrap().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Full, "{error}");
    assert!(error.text.contains("maxmemory") && error.text.contains("more room"), "{error}");
    assert_eq!(store.get_run(&name(), Some(0..9)).await.unwrap().unwrap().len(), 9, "reads still work");
}

#[tokio::test]
async fn a_busy_server() {
    let server = Server::start(&["--busy-reply-threshold", "1"]);
    let (store, mut connection, mut other) = (open(server.addr), server.connect().await, server.connect().await);
    let endless = tokio::spawn(async move {
        redis::cmd("EVAL").arg("while true do end").arg(0).query_async::<()>(&mut connection).await
    });
    // Until the script has run for a millisecond, requests still pass.
    let error = loop {
        if let Err(error) = store.get_run(&name(), None).await {
            break error;
        }
    };
    assert_eq!(error.kind, ErrorKind::Busy, "{error}");
    redis::cmd("SCRIPT").arg("KILL").query_async::<()>(&mut other).await.unwrap();
    let _ = endless.await;
}

#[tokio::test]
async fn nobody_listens_or_someone_else() {
    let nobody = SocketAddr::from(([127, 0, 0, 1], common::free_port()));
    expect(&open(nobody), ErrorKind::Unreachable, "refused", "check that the store runs").await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let store = open(listener.local_addr().unwrap());
    let other = async {
        let (mut client, _) = listener.accept().await.unwrap();
        client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        client
    };
    let name = name();
    let (error, _client) = tokio::join!(store.get_run(&name, None), other);
    let error = error.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Garbage, "{error}");
}

#[test]
fn urls_that_are_no_server() {
    for url in ["http://host/", "no url", "redis://host:port/"] {
        let (ttl, timeout) = (Duration::from_secs(1), Duration::from_secs(1));
        let error =
            ValkeyStore::open(&ValkeyConfig { url: url.into(), cluster: false, ttl, timeout }).err().expect(url);
        assert_eq!(error.kind, ErrorKind::Config, "{url}: {error}");
    }
}
