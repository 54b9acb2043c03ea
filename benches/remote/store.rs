//! The store: the one of `--url`, or a private server of Redis or Valkey; and the store's crate alone, for comparison.

use super::error::Error;
use super::error::Error::Peer;
use bytes::Bytes;
use kvtide_bench::bench::failed;
use kvtide_bench::private_daemon::{remove_dir, temporary_dir};
use kvtide_relay::store::{ObjectStore, Store, ValkeyConfig, ValkeyStore};
use object_store::ObjectStoreExt;
use object_store::path::Path as ObjectPath;
use redis::aio::MultiplexedConnection;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Requests at a time, as many as a relay has copiers.
pub(super) const PARALLEL: usize = 4;
/// Bytes of an object of the crate alone.
pub(super) const OBJECT_BYTES: usize = 4 << 20;
/// Maximum time of a request.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum time of the private server's start.
const START: Duration = Duration::from_secs(10);
/// Attempts to start a private server: another program may take its port.
const ATTEMPTS: usize = 5;
/// Time after which a server deletes the objects that a benchmark left.
const TTL: Duration = Duration::from_secs(3600);
const SCHEMES: &str = "redis://, rediss://, s3://, gs://, az:// or file:///";

/// Where the blocks are kept.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) url: String,
    pub(super) options: Vec<(String, String)>,
}

impl Target {
    /// Check the command line's URL.
    pub(super) fn new(url: &str, options: &[(String, String)]) -> Result<Target, Error> {
        let known = ["redis://", "rediss://", "s3://", "gs://", "az://", "file:///"];
        if !known.iter().any(|scheme| url.starts_with(scheme)) {
            let why = format!("it is of no known kind; expected {SCHEMES}");
            return Err(Peer { tried: format!("use --url {url}"), why });
        }
        Ok(Target { url: url.into(), options: options.to_vec() })
    }

    pub(super) fn is_valkey(&self) -> bool {
        self.url.starts_with("redis")
    }

    /// Return the address of a server that a proxy can forward to.
    pub(super) fn plain_server(&self) -> Option<String> {
        let url = url::Url::parse(&self.url).ok().filter(|url| url.scheme() == "redis")?;
        Some(format!("{}:{}", url.host_str()?, url.port().unwrap_or(6379)))
    }

    /// Return the same store at another address of this machine.
    pub(super) fn through(&self, port: u16) -> Target {
        let mut target = self.clone();
        if let Ok(mut url) = url::Url::parse(&self.url)
            && url.set_host(Some("127.0.0.1")).is_ok()
            && url.set_port(Some(port)).is_ok()
        {
            target.url = url.into();
        }
        target
    }

    /// Open the store as a relay does.
    pub(super) fn open(&self) -> Result<Arc<dyn Store>, Error> {
        if self.is_valkey() {
            let config = ValkeyConfig { url: self.url.clone(), cluster: false, ttl: TTL, timeout: DEADLINE };
            return Ok(Arc::new(ValkeyStore::open(&config)?));
        }
        Ok(Arc::new(ObjectStore::open(&self.url, &self.options, DEADLINE)?))
    }
}

/// The store's crate alone: writes and reads of [`OBJECT_BYTES`], [`PARALLEL`] at a time.
#[derive(Clone)]
pub(super) enum Raw {
    Valkey(Vec<MultiplexedConnection>),
    Objects(Arc<dyn object_store::ObjectStore>, ObjectPath),
}

impl Raw {
    pub(super) async fn open(target: &Target) -> Result<Raw, Error> {
        let refused = |why: &dyn std::fmt::Display| Peer {
            tried: format!("open {} with the store's crate alone", target.url),
            why: format!("{why}; check the URL and that the store runs"),
        };
        if target.is_valkey() {
            let client = redis::Client::open(target.url.as_str()).map_err(|error| refused(&error))?;
            let mut connections = Vec::new();
            for _ in 0..PARALLEL {
                let config = redis::AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(DEADLINE))
                    .set_response_timeout(Some(DEADLINE));
                let connected = client.get_multiplexed_async_connection_with_config(&config).await;
                connections.push(connected.map_err(|error| refused(&error))?);
            }
            return Ok(Raw::Valkey(connections));
        }
        let url = url::Url::parse(&target.url).map_err(|error| refused(&error))?;
        let environment = std::env::vars().filter(|(key, _)| key.starts_with("AWS_") || key.starts_with("AZURE_"));
        let options = environment.map(|(key, value)| (key.to_lowercase(), value)).chain(target.options.clone());
        let (store, path) = object_store::parse_url_opts(&url, options).map_err(|error| refused(&error))?;
        Ok(Raw::Objects(store.into(), path))
    }

    async fn one(&mut self, way: Way, index: usize, bytes: Bytes) -> Result<usize, String> {
        let name = format!("kvtide-bench-{}-{index}", std::process::id());
        match self {
            Raw::Valkey(connections) => {
                let connection = &mut connections[index % PARALLEL];
                let text = |error: redis::RedisError| error.to_string();
                match way {
                    Way::Put => {
                        let mut set = redis::cmd("SET");
                        set.arg(name).arg(&bytes[..]).arg("EX").arg(TTL.as_secs());
                        set.query_async::<()>(connection).await.map_err(text)?;
                        Ok(bytes.len())
                    }
                    Way::Get => {
                        let got: Vec<u8> = redis::cmd("GET").arg(name).query_async(connection).await.map_err(text)?;
                        Ok(got.len())
                    }
                    Way::Delete => {
                        redis::cmd("DEL").arg(name).query_async::<()>(connection).await.map_err(text)?;
                        Ok(bytes.len())
                    }
                }
            }
            Raw::Objects(store, root) => {
                let (path, text) = (root.clone().join(name), |error: object_store::Error| error.to_string());
                match way {
                    Way::Put => store.put(&path, bytes.clone().into()).await.map(|_| bytes.len()).map_err(text),
                    Way::Get => {
                        let got = store.get(&path).await.map_err(text)?;
                        got.bytes().await.map(|got| got.len()).map_err(text)
                    }
                    Way::Delete => store.delete(&path).await.map(|()| bytes.len()).map_err(text),
                }
            }
        }
    }

    /// Do the same with all objects, and return the bytes a second.
    pub(super) async fn all(&self, way: Way, objects: usize, source: &Bytes) -> Result<f64, Error> {
        let began = Instant::now();
        let tasks: Vec<_> = (0..PARALLEL)
            .map(|task| {
                let (mut raw, bytes) = (self.clone(), source.clone());
                tokio::spawn(async move {
                    for index in (task..objects).step_by(PARALLEL) {
                        let done = tokio::time::timeout(DEADLINE, raw.one(way, index, bytes.clone())).await;
                        let moved = done.map_err(|_| format!("no answer in {DEADLINE:?}"))??;
                        if moved != bytes.len() {
                            return Err(format!("an object has {moved} bytes, expected {}", bytes.len()));
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        for task in tasks {
            let done = task.await.unwrap_or_else(|error| Err(error.to_string()));
            done.map_err(|why| Peer { tried: format!("{way:?} objects with the store's crate alone"), why })?;
        }
        Ok((objects * source.len()) as f64 / began.elapsed().as_secs_f64())
    }

    /// Write an object after a copy of its bytes, as a process that reads memory does.
    pub(super) async fn copy_and_put(&mut self, index: usize, source: &[u8]) -> Result<(), Error> {
        let copied = Bytes::from(source.to_vec());
        let put = self.one(Way::Put, index, copied).await.map(drop);
        put.map_err(|why| Peer { tried: "write an object with the store's crate alone".into(), why })
    }
}

/// Operation on objects.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    Put,
    Get,
    Delete,
}

/// A private server. It ends with the value.
pub(super) struct Server {
    child: Child,
    dir: PathBuf,
    pub(super) url: String,
}

impl Server {
    /// Start a server that keeps at most `bytes_max`.
    pub(super) fn start(bytes_max: u64) -> Result<Server, Error> {
        for _ in 1..ATTEMPTS {
            if let Ok(server) = Server::start_once(bytes_max) {
                return Ok(server);
            }
        }
        Server::start_once(bytes_max)
    }

    fn start_once(bytes_max: u64) -> Result<Server, Error> {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr());
        let port = port.map_err(|e| failed("find a free port", e))?.port();
        let dir = temporary_dir(None)?;
        let spawn = |program: &str| {
            let mut command = Command::new(program);
            command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
            command.arg("--port").arg(port.to_string()).arg("--dir").arg(&dir);
            command.arg("--maxmemory").arg(bytes_max.to_string()).args(["--maxmemory-policy", "allkeys-lru"]);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
        };
        let mut child = spawn("redis-server").or_else(|_| spawn("valkey-server")).map_err(|error| {
            remove_dir(&dir);
            let why = format!("{error}; install one of them, or give a store with --url");
            Peer { tried: "start redis-server or valkey-server from PATH".into(), why }
        })?;
        let stdout = child.stdout.take();
        let server = Server { child, dir, url: format!("redis://127.0.0.1:{port}/") };
        let (ready, is_ready) = mpsc::channel();
        // Reads on after the start, so that the server never waits for a reader. It ends with the server.
        std::thread::spawn(move || {
            for line in stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines().map_while(Result::ok)) {
                if line.contains("eady to accept connections") {
                    let _ = ready.send(());
                }
            }
        });
        match is_ready.recv_timeout(START) {
            Ok(()) => Ok(server),
            Err(_) => Err(Peer {
                tried: format!("start a private server on port {port}"),
                why: format!("it was not ready within {START:?}; start one by hand and give it with --url"),
            }),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        remove_dir(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_other_kinds_are_refused_in_words() {
        for url in ["http://host/", "bucket", "", "file://relative"] {
            let error = Target::new(url, &[]).expect_err(url).to_string();
            assert!(error.contains("--url") && error.contains("redis://"), "{error}");
        }
        let target = Target::new("redis://:secret@host/3", &[]).expect("a URL");
        assert_eq!(target.plain_server().as_deref(), Some("host:6379"));
        assert_eq!(target.through(7).url, "redis://:secret@127.0.0.1:7/3");
        assert_eq!(Target::new("s3://bucket/a", &[]).expect("a URL").plain_server(), None);
    }
}
