//! Valkey and Redis through the crate `redis`: one server, or a cluster.

use super::{ErrorKind, Put, Store, StoreError, select_cryptography, without_credentials};
use crate::name::RunName;
use bytes::Bytes;
use futures_util::future::try_join_all;
use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::{AsyncConnectionConfig, ErrorKind as RedisKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;

/// Connections to the store. Answers on one come in order, so a small one waits for large ones before it.
const CONNECTIONS: usize = 4;

/// Names in one round trip.
const NAMES_MAX: usize = 1024;

/// Where a server is and how it is used.
#[derive(Clone, Debug)]
pub struct ValkeyConfig {
    /// `redis://[user:password@]host:port/[database]`, or `rediss://` for TLS. Of a cluster, any node.
    pub url: String,
    /// True if it is a cluster.
    pub cluster: bool,
    /// Time after which a run that was neither written nor read is deleted; whole seconds, at least 1.
    pub ttl: Duration,
    /// Maximum time of a connect and of an answer.
    pub timeout: Duration,
}

/// A server or cluster of Valkey or Redis.
pub struct ValkeyStore {
    client: Client,
    ttl_s: u64,
    timeout: Duration,
    endpoint: String,
    places: [Place; CONNECTIONS],
    next: AtomicUsize,
}

/// Place of one connection. Connections are numbered from 1.
#[derive(Default)]
struct Place {
    /// The last connection made here, with its number.
    last: Mutex<(u64, Option<Connection>)>,
    /// The connection with this number, and those before it, are not used any more.
    abandoned: AtomicU64,
}

/// A request whose answer has not come. If it is dropped, because of a deadline or a faster second read, the next answer
/// on its connection is not known, or there will be none: the connection is abandoned. Requests that are on it end as they may.
struct Unanswered<'a> {
    place: &'a Place,
    connection: u64,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.place.abandoned.fetch_max(self.connection, Ordering::Relaxed);
    }
}

enum Client {
    Server(redis::Client),
    Cluster(redis::cluster::ClusterClient),
}

#[derive(Clone)]
enum Connection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl ValkeyStore {
    /// Describe a store. Connections are made when they are needed, so that a store which is away is no error here.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for a URL that cannot be used.
    pub fn open(config: &ValkeyConfig) -> Result<Self, StoreError> {
        let refuse = |endpoint: &str, reason: &dyn std::fmt::Display| {
            StoreError::new(ErrorKind::Config, "open the store", endpoint, reason)
        };
        let url = url::Url::parse(&config.url).map_err(|error| refuse("the configured URL", &error))?;
        let endpoint = without_credentials(&url);
        select_cryptography();
        let client = if config.cluster {
            let builder = ClusterClientBuilder::new([config.url.as_str()])
                .connection_timeout(config.timeout)
                .response_timeout(config.timeout)
                .retries(1); // follows a slot that moved
            Client::Cluster(builder.build().map_err(|error| refuse(&endpoint, &error))?)
        } else {
            Client::Server(redis::Client::open(config.url.as_str()).map_err(|error| refuse(&endpoint, &error))?)
        };
        Ok(Self {
            client,
            ttl_s: config.ttl.as_secs().max(1),
            timeout: config.timeout,
            endpoint,
            places: Default::default(),
            next: AtomicUsize::new(0),
        })
    }

    /// Send commands in one write and return their answers: `None` if the key has another type than a run. All keys of a pipeline are the
    /// same, or the store is no cluster.
    async fn send(&self, tried: &str, pipeline: &mut Pipeline) -> Result<Vec<Option<Value>>, StoreError> {
        pipeline.ignore_errors(); // each command has an answer of its own
        let place = &self.places[self.next.fetch_add(1, Ordering::Relaxed) % CONNECTIONS];
        let attempt = async {
            let (number, mut connection) = self.connected(place).await?;
            let unanswered = Unanswered { place, connection: number };
            let answers: Result<Vec<RedisResult<Value>>, RedisError> = match &mut connection {
                Connection::Server(server) => pipeline.query_async(server).await,
                Connection::Cluster(cluster) => pipeline.query_async(cluster).await,
            };
            if !answers.as_ref().is_err_and(closes) {
                std::mem::forget(unanswered);
            }
            answers?.into_iter().map(of_a_run).collect()
        };
        let (kind, reason) = match tokio::time::timeout(self.timeout, attempt).await {
            Ok(Ok(answers)) => return Ok(answers),
            Ok(Err(error)) => describe(error),
            Err(_) => (ErrorKind::TimedOut, format!("no answer in {:?}", self.timeout)),
        };
        Err(StoreError::new(kind, tried, &self.endpoint, reason))
    }

    /// Return the connection at a place, with its number. One caller at a time connects; a failed attempt leaves the place as it was.
    async fn connected(&self, place: &Place) -> Result<(u64, Connection), RedisError> {
        let mut last = place.last.lock().await;
        if let (number, Some(connection)) = &*last
            && *number > place.abandoned.load(Ordering::Relaxed)
        {
            return Ok((*number, connection.clone()));
        }
        let connection = match &self.client {
            Client::Server(client) => {
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(self.timeout))
                    .set_response_timeout(Some(self.timeout));
                let mut server = client.get_multiplexed_async_connection_with_config(&config).await?;
                // A server closes the connection if the first thing it gets without a password is large, without saying why.
                redis::cmd("PING").query_async::<()>(&mut server).await?;
                Connection::Server(server)
            }
            Client::Cluster(client) => Connection::Cluster(client.get_async_connection().await?),
        };
        *last = (last.0 + 1, Some(connection.clone()));
        Ok((last.0, connection))
    }

    async fn has(&self, names: &[RunName]) -> Result<Vec<bool>, StoreError> {
        let mut pipeline = Pipeline::new();
        for name in names {
            pipeline.cmd("STRLEN").arg(name.as_str());
        }
        let answers = self.send("ask for runs", &mut pipeline).await?;
        if answers.len() != names.len() {
            return Err(self.garbage("ask for runs"));
        }
        answers
            .into_iter()
            .map(|answer| match answer {
                Some(Value::Int(bytes)) => Ok(bytes > 0),
                None => Ok(false), // the next write replaces it
                Some(_) => Err(self.garbage("ask for runs")),
            })
            .collect()
    }

    fn garbage(&self, tried: &str) -> StoreError {
        StoreError::new(ErrorKind::Garbage, tried, &self.endpoint, "the answer is of another type than the command's")
    }
}

#[async_trait::async_trait]
impl Store for ValkeyStore {
    fn endpoint(&self) -> &str {
        &self.endpoint
    }

    fn asks_cheaply(&self) -> bool {
        true
    }

    async fn put_run(&self, name: &RunName, bytes: Bytes) -> Result<Put, StoreError> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd("SET").arg(name.as_str()).arg(&bytes[..]).arg("NX").arg("EX").arg(self.ttl_s);
        pipeline.cmd("EXPIRE").arg(name.as_str()).arg(self.ttl_s).ignore();
        pipeline.cmd("STRLEN").arg(name.as_str());
        match &self.send("write a run", &mut pipeline).await?[..] {
            [Some(Value::Okay), _] => return Ok(Put::Stored),
            [Some(Value::Nil), Some(Value::Int(1..))] => return Ok(Put::Existed),
            // What has the name is no run.
            [Some(Value::Nil), Some(Value::Int(_)) | None] => {}
            _ => return Err(self.garbage("write a run")),
        }
        let mut pipeline = Pipeline::new();
        pipeline.cmd("SET").arg(name.as_str()).arg(&bytes[..]).arg("EX").arg(self.ttl_s);
        match &self.send("write a run", &mut pipeline).await?[..] {
            [Some(Value::Okay)] => Ok(Put::Stored),
            _ => Err(self.garbage("write a run")),
        }
    }

    async fn get_run(&self, name: &RunName, range: Option<Range<u64>>) -> Result<Option<Bytes>, StoreError> {
        let mut pipeline = Pipeline::new();
        // Before the read: a run that another relay stores between the two is not taken for an empty one.
        pipeline.cmd("EXPIRE").arg(name.as_str()).arg(self.ttl_s);
        match range {
            None => pipeline.cmd("GET").arg(name.as_str()),
            Some(range) if range.is_empty() => return Ok(Some(Bytes::new())),
            Some(range) => pipeline.cmd("GETRANGE").arg(name.as_str()).arg(range.start).arg(range.end - 1),
        };
        let mut answers = self.send("read a run", &mut pipeline).await?;
        match (answers.pop(), answers.pop()) {
            (Some(None), _) => Ok(Some(Bytes::new())),
            (Some(Some(Value::Nil)), _) => Ok(None),
            // GETRANGE of a name that does not exist is empty.
            (Some(Some(Value::BulkString(bytes))), Some(Some(Value::Int(exists)))) => {
                Ok((exists > 0 || !bytes.is_empty()).then(|| bytes.into()))
            }
            _ => Err(self.garbage("read a run")),
        }
    }

    async fn present(&self, names: &[RunName]) -> Result<Vec<bool>, StoreError> {
        // The names of one call are on many nodes of a cluster, and a pipeline goes to one: the connections join what is sent at once.
        let names_max = if matches!(self.client, Client::Cluster(_)) { 1 } else { NAMES_MAX };
        Ok(try_join_all(names.chunks(names_max).map(|names| self.has(names))).await?.concat())
    }

    async fn delete(&self, name: &RunName) -> Result<(), StoreError> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd("UNLINK").arg(name.as_str());
        self.send("delete a run", &mut pipeline).await.map(drop)
    }
}

/// Return an answer, or `None` if the key has another type than a run.
fn of_a_run(answer: RedisResult<Value>) -> Result<Option<Value>, RedisError> {
    match answer {
        Err(error) if error.code() == Some("WRONGTYPE") => Ok(None),
        answer => answer.map(Some),
    }
}

/// Return whether the state of the connection is unknown after an error.
fn closes(error: &RedisError) -> bool {
    error.is_io_error() || error.is_unrecoverable_error() || error.kind() == RedisKind::Parse
}

/// Return kind and text of an error. Of a pipeline's errors, the first one counts.
fn describe(error: RedisError) -> (ErrorKind, String) {
    let kind = kind_of(error.kind(), error.code()).unwrap_or(match error.kind() {
        _ if error.is_timeout() => ErrorKind::TimedOut,
        _ if error.is_io_error() => ErrorKind::Unreachable,
        _ => ErrorKind::Other,
    });
    let text = error.to_string();
    match error.into_server_errors().as_deref() {
        Some([(_, first), ..]) => {
            let kind = kind_of(RedisKind::Server(ServerErrorKind::ResponseError), Some(first.code()));
            (kind.unwrap_or(ErrorKind::Other), first.to_string())
        }
        _ => (kind, text),
    }
}

fn kind_of(kind: RedisKind, code: Option<&str>) -> Option<ErrorKind> {
    Some(match (kind, code) {
        (RedisKind::AuthenticationFailed, _) | (_, Some("NOAUTH" | "WRONGPASS" | "NOPERM")) => ErrorKind::Refused,
        (_, Some("OOM")) => ErrorKind::Full,
        (_, Some("BUSY" | "LOADING" | "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "READONLY")) => ErrorKind::Busy,
        (RedisKind::Parse | RedisKind::UnexpectedReturnType | RedisKind::Client, _) => ErrorKind::Garbage,
        (RedisKind::InvalidClientConfig, _) => ErrorKind::Config,
        (RedisKind::ClusterConnectionNotFound, _) => ErrorKind::Unreachable,
        _ => return None,
    })
}
