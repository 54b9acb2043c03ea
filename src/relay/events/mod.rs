//! KV events for routers: which blocks a space has cached, as vLLM publishes it over ZeroMQ.
//!
//! | module | contents |
//! | --- | --- |
//! | `wire` | the format |
//! | `tokens` | tokens of blocks, which engines tell over HTTP |
//! | `state` | feed events and tokens in, KV events out |
//! | `publisher` | numbered batches, and those that can be replayed |
//! | `zmtp` | the protocol of ZeroMQ, without I/O |
//! | `server` | the sockets: access and bounds |
//!
//! Each domain has streams, tokens and sockets of its own. A space calls [`Events::follow`] and hands each feed event and listing to the [`Follower`]. Nothing here depends on stores or runs.

mod publisher;
mod server;
mod state;
mod tokens;
mod wire;
mod zmtp;

use crate::config::{Address, Config, Events as Settings, STREAMS_MAX};
use crate::error::Error;
use kvtide_types::FeedEvent;
use kvtide_wire::hello::SpaceOpened;
use publisher::{Publisher, Stream};
use server::{Access, Listening, Server};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokens::Tokens;
use tokio::runtime::Handle;
use zmtp::Role;

/// Permission bits of Unix sockets, unless others are configured.
const MODE: u32 = 0o660;

/// Counters since the start, over all streams of all domains.
#[derive(Debug, Default)]
pub struct Counters {
    /// Events published.
    pub events: AtomicU64,
    /// Batches sent again because a router asked for them.
    pub replayed: AtomicU64,
    /// Times that the queue was full, so that everything was published again.
    pub overflows: AtomicU64,
    /// Batches that a subscriber did not get because its queue was full.
    pub lost: AtomicU64,
    /// Connections that were refused or ended by the relay.
    pub refused: AtomicU64,
    /// Bytes of the files of tokens that were invalid at the start.
    pub tokens_dropped_bytes: AtomicU64,
}

fn add(counter: &AtomicU64, number: usize) {
    counter.fetch_add(number as u64, Ordering::Relaxed);
}

/// The streams of a domain, and its tokens.
pub struct Events {
    settings: Settings,
    access: Arc<Access>,
    runtime: Handle,
    tokens: Arc<Tokens>,
    streams: Mutex<Vec<Arc<Stream>>>,
    /// Counters.
    pub counters: Arc<Counters>,
}

impl Events {
    /// Check what a start needs besides the file of tokens.
    ///
    /// # Errors
    /// The token of the routers cannot be used.
    pub fn check(settings: &Settings) -> Result<(), Error> {
        Access::new(settings).map(drop)
    }

    /// Read the token of the routers, and open the file of tokens.
    ///
    /// # Errors
    /// One of them cannot be used.
    pub fn open(settings: &Settings, runtime: Handle, counters: Arc<Counters>) -> Result<Events, Error> {
        let access = Arc::new(Access::new(settings)?);
        let (tokens, dropped) = Tokens::open(&settings.tokens_dir, settings.tokens_mib << 20)?;
        if dropped > 0 {
            tracing::warn!("{dropped} bytes of {} were invalid and are dropped", settings.tokens_dir.display());
        }
        counters.tokens_dropped_bytes.fetch_add(dropped, Ordering::Relaxed);
        let (settings, tokens) = (settings.clone(), Arc::new(tokens));
        Ok(Events { settings, access, runtime, tokens, streams: Mutex::default(), counters })
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Arc<Stream>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begin to follow a space. A space that opens again gets the stream that it had.
    ///
    /// # Errors
    /// It gets no stream, now or at all.
    pub fn follow(&self, space: &SpaceOpened) -> Result<Follower, NoStream> {
        let mut streams = self.streams();
        let same =
            |stream: &&Arc<Stream>| (stream.fingerprint, stream.page_tokens) == (space.fingerprint, space.page_tokens);
        if let Some(stream) = streams.iter().find(same) {
            return if stream.take() { Ok(Follower(Arc::clone(stream))) } else { Err(NoStream::Taken) };
        }
        let index = streams.len() as u16;
        if index == STREAMS_MAX {
            tracing::warn!("space {}: no KV events: {STREAMS_MAX} other spaces had a stream", space.name);
            return Err(NoStream::Refused);
        }
        let topic = self.settings.topic.replace("{space}", &space.name);
        let stream = Arc::new(Stream::new(space.fingerprint, space.page_tokens, &topic, Arc::clone(&self.counters)));
        let publish = self.settings.publish.of_space(index);
        let replay = self.settings.replay.of_space(index);
        if let Err(error) = self.runtime.block_on(self.start(&stream, &publish, &replay)) {
            tracing::error!("space {}: no KV events: cannot bind {publish} and {replay}: {error}", space.name);
            return Err(NoStream::Refused);
        }
        tracing::info!("space {}: KV events at {publish}, replays at {replay}", space.name);
        stream.take();
        streams.push(Arc::clone(&stream));
        Ok(Follower(stream))
    }

    async fn start(&self, stream: &Arc<Stream>, publish: &Address, replay: &Address) -> io::Result<()> {
        let mode = self.settings.mode.map_or(MODE, |mode| mode.0);
        // Both, before one serves.
        let (publishing, replaying) = (Listening::bind(publish, mode).await?, Listening::bind(replay, mode).await?);
        let server = |address, role| Server::new(address, role, stream, &self.access);
        self.runtime.spawn(server(publish, Role::Publish).run(publishing));
        self.runtime.spawn(server(replay, Role::Replay).run(replaying));
        self.runtime.spawn(Publisher::new(Arc::clone(stream), Arc::clone(&self.tokens)).run());
        Ok(())
    }

    /// Keep the tokens of blocks, and announce those that are cached.
    ///
    /// # Errors
    /// The number of tokens does not fit the blocks, or the file cannot be written.
    pub fn note(&self, space: &[u8; 32], hashes: Vec<u128>, tokens: &[u32], adapter: Option<&str>) -> io::Result<()> {
        let streams: Vec<_> = self.streams().iter().filter(|stream| stream.fingerprint == *space).cloned().collect();
        let each = tokens.len() / hashes.len().max(1);
        if let Some(stream) = streams.iter().find(|stream| stream.page_tokens as usize != each) {
            let why = format!("{each} tokens for each hash, expected {}", stream.page_tokens);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let kept = self.tokens.note(space, &hashes, tokens, adapter);
        streams.iter().for_each(|stream| stream.noted(hashes.clone()));
        kept
    }

    /// Return the blocks that have tokens, and the cached blocks that are not announced.
    pub fn figures(&self) -> (usize, usize) {
        (self.tokens.len(), self.streams().iter().map(|stream| stream.waiting()).sum())
    }
}

/// KV events of all domains.
pub struct Domains {
    all: Vec<Option<Arc<Events>>>,
    /// Counters.
    pub counters: Arc<Counters>,
}

impl Domains {
    /// Open what the configuration has, by domain.
    ///
    /// # Errors
    /// See [`Events::open`].
    pub fn open(config: &Config, runtime: &Handle) -> Result<Domains, Error> {
        let counters = Arc::new(Counters::default());
        let open = |settings: &Settings| Events::open(settings, runtime.clone(), Arc::clone(&counters)).map(Arc::new);
        let all = config.domains.iter().map(|domain| domain.events.as_ref().map(open).transpose());
        Ok(Domains { all: all.collect::<Result<_, _>>()?, counters })
    }

    /// Return those of the domain with this index, if they are on.
    pub fn of(&self, domain: usize) -> Option<&Arc<Events>> {
        self.all.get(domain)?.as_ref()
    }

    /// Return the indices of the domains that have events.
    pub fn on(&self) -> impl Iterator<Item = usize> {
        self.all.iter().enumerate().filter_map(|(domain, events)| events.as_ref().map(|_| domain))
    }

    /// Return the sums of [`Events::figures`].
    pub fn figures(&self) -> (usize, usize) {
        let each = self.all.iter().flatten().map(|events| events.figures());
        each.fold((0, 0), |(noted, waiting), (more, wait)| (noted + more, waiting + wait))
    }
}

/// Why a space gets no stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoStream {
    /// Another thread has it until it ends: that of the space before it opened again, or of a space of this model with other planes or
    /// shards.
    Taken,
    /// Too many spaces have one, or a port is taken; logged.
    Refused,
}

/// The thread that follows the feed of a space, as its stream knows it. None of its functions waits.
pub struct Follower(Arc<Stream>);

impl Follower {
    /// Publish what an event of the feed changes.
    pub fn event(&self, event: FeedEvent) {
        self.0.event(event);
    }

    /// Void what was published, and publish this listing.
    pub fn listing(&self, listed: Vec<FeedEvent>) {
        self.0.listing(listed);
    }

    /// Return whether events were dropped, so that a listing is needed.
    pub fn is_lost(&self) -> bool {
        self.0.is_lost()
    }
}

/// Withdraws what was published: what becomes of these blocks is not announced any more.
impl Drop for Follower {
    fn drop(&mut self) {
        self.0.listing(Vec::new());
        self.0.give_back();
    }
}
