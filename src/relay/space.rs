//! One space: a session for each shard, a thread that follows the feed, and copiers that move runs between daemon and store.

use crate::budget::Cost;
use crate::chains::{Chains, Taken, ends, keys_of};
use crate::config::{Config, When};
use crate::endpoint::{Endpoint, LoadError};
use crate::events::{self, Follower, NoStream};
use crate::name::{RunName, SharedKey, SpaceKeys};
use crate::pace::{Pace, Pause};
use crate::presence::Presence;
use crate::queue::{Expected, Job, Outcome, Outgoing, Queue, Recall, Share};
use crate::run::{BlockKey, Layout, Run, run_blocks, runs_of};
use crate::spending::Spending;
use crate::store::{ErrorKind, StoreError};
use crate::trace::RemoteSpan;
use bytes::Bytes;
use kvtide_client::{Channel, Client, Options, SpaceSpec};
use kvtide_trace::{Spans, TraceCounters};
use kvtide_types::{FeedEvent, Level, Status};
use kvtide_wire::geometry::classes;
use kvtide_wire::hello::{SpaceOpened, is_local};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::task::JoinHandle as Task;

/// Threads that copy; each has a channel of its own and room for one run of each shard.
const COPIERS: u16 = 4;
/// Runs that are read ahead of the one that is being stored.
const AHEAD: usize = 4;
/// Maximum blocks of a run: one request to the daemon reads or stores it.
const RUN_BLOCKS_MAX: u32 = 64;
/// Maximum time of a call to the daemon.
const CALL: Duration = Duration::from_secs(10);
/// Why a copier cannot reach the memory of its own blocks.
const NO_MEMORY: &str = "the session's memory is not this process's any more";
/// Time between two looks whether the space is over, while nothing happens.
const LOOK: Duration = Duration::from_millis(500);

/// Time between two questions for a stream of KV events that another thread has.
const STREAM_RETRY: Duration = Duration::from_secs(1);
/// Times that a run is tried again although the store took others: its object may be the cause.
const TRIES_MAX: u32 = 3;

/// Shared by all spaces of a relay.
#[derive(Clone)]
pub struct Shared {
    /// The configuration.
    pub config: Arc<Config>,
    /// The keys of all relays that share, by domain.
    pub keys: Arc<[SharedKey]>,
    /// The store.
    pub endpoint: Arc<Endpoint>,
    /// Cached answers about runs in the store.
    pub presence: Arc<Presence>,
    /// Where requests to the store run.
    pub runtime: Handle,
    /// Counters of all spaces.
    pub counters: Arc<Counters>,
    /// KV events for routers.
    pub events: Arc<events::Domains>,
    /// Budget of copies to the store.
    pub spending: Arc<Spending>,
    /// Spans of engines' questions, if the relay traces.
    pub spans: Option<Spans<RemoteSpan>>,
    /// Counters of spans.
    pub traces: TraceCounters,
}

/// Why blocks were not copied to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotOut {
    /// The daemon did not have them any more.
    Gone,
    /// The store failed, and more runs waited for it than fit, or it refused this one only.
    Store,
    /// The budget was used up, and more runs waited for it than fit.
    Budget,
    /// More runs waited than fit.
    Full,
}

impl NotOut {
    /// All reasons with their names in metrics, in the order of their discriminants.
    pub const ALL: [(NotOut, &str); 4] =
        [(NotOut::Gone, "gone"), (NotOut::Store, "store"), (NotOut::Budget, "budget"), (NotOut::Full, "queue_full")];
}

/// Why one run was not copied.
enum Failed {
    /// The daemon does not have it.
    Gone(String),
    /// The store.
    Store(StoreError),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Failed {
        Failed::Store(error)
    }
}

impl From<String> for Failed {
    fn from(why: String) -> Failed {
        Failed::Gone(why)
    }
}

/// Counters since the start, over all spaces.
#[derive(Debug, Default)]
pub struct Counters {
    /// Blocks copied to the store, each with all its shards.
    pub blocks_out: AtomicU64,
    /// Blocks of runs that the store had already.
    pub blocks_there: AtomicU64,
    /// Blocks not copied, by reason. The next use of their prefix asks for them again.
    pub blocks_not_out: [AtomicU64; NotOut::ALL.len()],
    /// Blocks of runs that the store failed to take and that wait for it again.
    pub blocks_again: AtomicU64,
    /// Blocks brought in.
    pub blocks_in: AtomicU64,
    /// Blocks asked for by recalls.
    pub blocks_recalled: AtomicU64,
    /// Times that the feed had a gap and the cache was listed again; the first listing of each space is one.
    pub gaps: AtomicU64,
}

fn add(counter: &AtomicU64, blocks: usize) {
    counter.fetch_add(blocks as u64, Ordering::Relaxed);
}

/// A space that is served, with its threads. Dropping it ends the threads and the sessions.
pub struct Space {
    inner: Arc<Inner>,
    threads: Vec<JoinHandle<()>>,
}

struct Inner {
    shared: Shared,
    /// Index of its domain.
    domain: usize,
    space: SpaceOpened,
    /// Keys of each shard.
    keys: Vec<SpaceKeys>,
    /// One session for each shard.
    clients: Vec<Client>,
    /// Bytes of a block of one shard.
    block_bytes: u64,
    /// Blocks of a full run.
    run_blocks: u32,
    queue: Queue,
    chains: Mutex<Chains>,
    pace: Pace,
    pause: Mutex<Pause>,
}

impl Space {
    /// Attach to a space of a domain and serve it until it is dropped or until the daemon ends the sessions.
    ///
    /// # Errors
    /// The daemon refuses a session, or a thread cannot be started.
    pub fn start(shared: Shared, domain: usize, space: SpaceOpened) -> Result<Space, kvtide_client::Error> {
        let block_bytes = space.planes.iter().map(|plane| u64::from(plane.page_bytes)).sum();
        let run_blocks = run_blocks(block_bytes, shared.config.store.object_bytes()).min(RUN_BLOCKS_MAX);
        let (of, key) = (&shared.config.domains[domain], &shared.keys[domain]);
        let keys_of = |shard| SpaceKeys::new(key, &of.name, &space.fingerprint, shard, of.encrypt);
        let keys = (0..u32::from(space.shards)).map(keys_of).collect();
        let clients = (0..space.shards).map(|shard| attach(&shared.config, domain, &space, shard, run_blocks));
        let clients = clients.collect::<Result<Vec<_>, _>>()?;
        let (queue, chains, pause) = (Queue::new(shared.spending.is_limited()), Mutex::default(), Mutex::default());
        let pace = Pace::default();
        let inner = Inner { shared, domain, space, keys, clients, block_bytes, run_blocks, queue, chains, pace, pause };
        let inner = Arc::new(inner);
        let mut space = Space { inner, threads: Vec::new() };
        let feed = space.inner.clients[0].channel(0)?;
        space.spawn("kvtide-feed", move |inner| inner.follow(feed));
        for copier in 0..COPIERS {
            let channels = space.inner.clients.iter().map(|client| client.channel(copier + 1));
            let channels = channels.collect::<Result<Vec<_>, _>>()?;
            let slots = (u32::from(copier) * run_blocks..).take(run_blocks as usize).collect();
            let mut copier = Copier { inner: Arc::clone(&space.inner), channels, slots };
            space.spawn("kvtide-copier", move |inner| {
                while let Some(job) = inner.queue.take(|run| inner.may_go(run)) {
                    copier.work(job);
                }
            });
        }
        Ok(space)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce(&Inner) + Send + 'static) {
        let inner = Arc::clone(&self.inner);
        let body = move || {
            // However the thread ends, the others must not wait for it.
            let _ends = Ends(Arc::clone(&inner));
            run(&inner);
        };
        match std::thread::Builder::new().name(name.into()).spawn(body) {
            Ok(thread) => self.threads.push(thread),
            Err(error) => {
                tracing::error!("space {}: cannot start a thread: {error}", self.inner.space.name);
                self.inner.queue.end();
            }
        }
    }

    /// Return the fingerprint of the space.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.inner.space.fingerprint
    }

    /// Return the index of its domain.
    pub fn domain(&self) -> usize {
        self.inner.domain
    }

    /// Return the name of the space.
    pub fn name(&self) -> &str {
        &self.inner.space.name
    }

    /// Return the tokens of a block.
    pub fn page_tokens(&self) -> u32 {
        self.inner.space.page_tokens
    }

    /// Return the number of cached blocks by the feed, and of waiting runs and recalls.
    pub fn figures(&self) -> impl FnOnce() -> (usize, usize, usize) + use<> {
        let inner = Arc::clone(&self.inner);
        move || {
            let (runs, recalls) = inner.queue.len();
            (inner.chains().len(), runs, recalls)
        }
    }

    /// Bring a prefix in.
    pub fn recall(&self, recall: Recall) {
        add(&self.inner.shared.counters.blocks_recalled, recall.hashes.len());
        self.inner.queue.bring_in(recall);
    }

    /// Copy a prefix out now.
    pub fn share(&self, share: Share) {
        self.inner.queue.share(share);
    }

    /// Return whether its threads have ended, because the daemon ended a session.
    pub fn is_over(&self) -> bool {
        self.inner.queue.is_over()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        self.inner.queue.end();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("space {}: a thread panicked", self.inner.space.name);
            }
        }
    }
}

struct Ends(Arc<Inner>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.queue.end();
    }
}

fn attach(
    config: &Config,
    domain: usize,
    space: &SpaceOpened,
    shard: u16,
    run_blocks: u32,
) -> Result<Client, kvtide_client::Error> {
    let SpaceOpened { fingerprint, page_tokens, shards, .. } = *space;
    let (name, planes) = (space.name.clone(), space.planes.clone());
    let frames = vec![0; classes(&planes).len()];
    let spec = SpaceSpec { name, fingerprint, page_tokens, planes, shards, shard };
    let token_file = config.domains[domain].token_file.clone();
    let options = Options::new(config.daemon.socket.clone(), spec, frames);
    let client = Client::attach(Options { token_file, relay: true, seqs_max: 1, channels: COPIERS + 1, ..options })?;
    client.allocate_blocks(u32::from(COPIERS) * run_blocks)?;
    Ok(client)
}

impl Inner {
    fn chains(&self) -> MutexGuard<'_, Chains> {
        self.chains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pause(&self) -> MutexGuard<'_, Pause> {
        self.pause.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Return how long the store is not used for copies, because it failed.
    fn away(&self) -> Option<Duration> {
        self.shared.endpoint.wait().or_else(|| self.pause().left())
    }

    /// Follow the feed, and queue runs to copy by the rules of the configuration.
    fn follow(&self, mut feed: Channel) {
        let mut follower = None;
        let mut ask_at = self.shared.events.of(self.domain).map(|_| Instant::now());
        // No number of an event: the first answer is a gap, even if an earlier one was lost on its way.
        let mut next = u64::MAX;
        let mut has_listed = false;
        while !self.queue.is_over() {
            if ask_at.is_some_and(|at| Instant::now() >= at)
                && let Some(events) = self.shared.events.of(self.domain)
            {
                let followed = events.follow(&self.space);
                // The thread that has the stream may be ending.
                ask_at = (followed.as_ref().err() == Some(&NoStream::Taken)).then(|| Instant::now() + STREAM_RETRY);
                follower = followed.ok();
                if follower.is_some()
                    && has_listed
                    && let Err(error) = self.list(&mut feed, follower.as_ref())
                {
                    return tracing::debug!("space {}: cannot list: {error}", self.space.name);
                }
            }
            let part = match feed.follow(next, LOOK) {
                Ok(part) => part,
                Err(error) => return tracing::debug!("space {}: the feed has ended: {error}", self.space.name),
            };
            next = part.next;
            has_listed = true;
            // Blocks stored by engines, with their parents, and prefixes that were used.
            let (mut stored, mut used) = (Vec::new(), Vec::new());
            for event in part.events {
                follower.iter().for_each(|follower| follower.event(event));
                match event {
                    FeedEvent::Gap => match self.list(&mut feed, follower.as_ref()) {
                        Ok(listed) => (stored, used) = (listed, Vec::new()),
                        Err(error) => return tracing::debug!("space {}: cannot list: {error}", self.space.name),
                    },
                    FeedEvent::Stored { hash, parent, relayed } => {
                        self.chains().insert(hash, parent, relayed);
                        if !relayed {
                            stored.push((hash, parent));
                        }
                    }
                    FeedEvent::Removed { hash } => self.chains().remove(hash),
                    FeedEvent::Used { hash, .. } => used.push(hash),
                    FeedEvent::Recorded { .. } => {}
                }
            }
            if follower.as_ref().is_some_and(Follower::is_lost)
                && let Err(error) = self.list(&mut feed, follower.as_ref())
            {
                return tracing::debug!("space {}: cannot list: {error}", self.space.name);
            }
            let wanted = match self.shared.config.copy_out.when {
                // A use has runs copied that could not be copied before.
                When::Stored => ends(&stored).into_iter().chain(used).collect(),
                When::SecondUse => used,
                When::Never => Vec::new(),
            };
            wanted.into_iter().for_each(|last| self.copy_out(last));
        }
    }

    /// List the cache again, in place of the earlier view.
    fn list(&self, feed: &mut Channel, follower: Option<&Follower>) -> Result<Vec<(u128, u128)>, kvtide_client::Error> {
        add(&self.shared.counters.gaps, 1);
        let (mut listed, mut all, mut cursor) = (Vec::new(), Vec::new(), 0);
        loop {
            let part = feed.list_blocks(cursor, CALL)?;
            listed.extend(part.events.iter().filter_map(|event| match *event {
                FeedEvent::Stored { hash, parent, .. } => Some((hash, parent)),
                _ => None,
            }));
            cursor = part.next;
            if follower.is_some() {
                all.extend(part.events);
            }
            if cursor == 0 {
                break;
            }
        }
        follower.into_iter().for_each(|follower| follower.listing(std::mem::take(&mut all)));
        let mut chains = self.chains();
        chains.clear();
        listed.iter().for_each(|&(hash, parent)| chains.insert(hash, parent, false));
        Ok(listed)
    }

    /// Have the runs of a prefix copied to the store.
    fn copy_out(&self, last: u128) {
        if is_local(last) {
            return;
        }
        let Taken { blocks, runs, others } = self.chains().take_runs(last, self.run_blocks);
        let fails = self.away().is_some();
        for run in self.queue.copy_out(blocks, runs, &others, fails) {
            let reason = match fails {
                true => NotOut::Store,
                false if self.shared.spending.is_short() => NotOut::Budget,
                false => NotOut::Full,
            };
            self.give_up(&run, reason);
        }
    }

    /// Count a run that is not copied. The next use of its prefix queues it again.
    fn give_up(&self, run: &[BlockKey], reason: NotOut) {
        add(&self.shared.counters.blocks_not_out[reason as usize], run.len());
        self.chains().give_back(run);
    }

    /// Return how long a run has to wait: for the store, or for the budget, which is charged if it may go.
    fn may_go(&self, run: &[BlockKey]) -> Result<(), Duration> {
        self.away().map_or(Ok(()), Err)?;
        self.shared.spending.take(self.cost(run.len() as u32, self.keys.len() as u64))
    }

    /// Return the cost of writing a run for some shards: each asks for presence and writes an object.
    fn cost(&self, count: u32, shards: u64) -> Cost {
        let encrypted = self.keys.first().is_some_and(SpaceKeys::encrypted);
        let bytes = Layout { count, block_bytes: self.block_bytes, encrypted }.total_bytes();
        Cost { bytes: shards * bytes, requests: 2 * shards }
    }

    /// A run was not copied: it waits for the store again, or is given up.
    fn not_copied(&self, mut outgoing: Outgoing, failed: Failed) {
        let reason = match failed {
            Failed::Gone(why) => {
                tracing::debug!("space {}: a run was not copied out: {why}", self.space.name);
                NotOut::Gone
            }
            Failed::Store(error) => {
                tracing::debug!("space {}: a run waits for the store: {error}", self.space.name);
                let mut pause = self.pause();
                pause.failed();
                // While the store takes no run, this one is not to blame.
                outgoing.tries += u32::from(pause.taken > outgoing.taken_before);
                outgoing.taken_before = pause.taken;
                drop(pause);
                if outgoing.tries <= TRIES_MAX {
                    add(&self.shared.counters.blocks_again, outgoing.run.len());
                    let dropped = self.queue.again(outgoing);
                    return dropped.into_iter().for_each(|run| self.give_up(&run, NotOut::Store));
                }
                NotOut::Store
            }
        };
        self.give_up(&outgoing.run, reason);
    }

    /// Return the names of a run, one for each shard.
    fn names(&self, run: &[BlockKey]) -> Vec<RunName> {
        let Some(first) = run.first() else { return Vec::new() };
        let hashes: Vec<u128> = run.iter().map(|block| block.hash).collect();
        self.keys.iter().map(|keys| keys.run_name((first.index, first.parent), &hashes)).collect()
    }

    /// Begin to load a shard's part of a run.
    fn load(self: &Arc<Self>, shard: usize, run: Arc<[BlockKey]>) -> Task<Result<Option<Vec<Bytes>>, LoadError>> {
        let inner = Arc::clone(self);
        self.shared.runtime.spawn(async move {
            let described = Run::new(&inner.keys[shard], &run, inner.block_bytes);
            inner.shared.endpoint.load(&described, run.len() as u32).await
        })
    }
}

/// One thread that copies runs.
struct Copier {
    inner: Arc<Inner>,
    /// One channel for each shard.
    channels: Vec<Channel>,
    /// Its blocks in the memory of each session: room for one run.
    slots: Vec<u32>,
}

impl Copier {
    fn work(&mut self, job: Job) {
        match job {
            Job::CopyOut(outgoing) => {
                if let Err(failed) = self.copy_and_count(&outgoing.run) {
                    self.inner.not_copied(outgoing, failed);
                }
            }
            // The askers of those may have stopped waiting.
            Job::BringIn(recall) => self.bring_in(recall),
            Job::Share(share) => self.share(share),
        }
    }

    /// Copy the next run of a prefix out, and put the rest back into the queue, so that recalls come between. Answer when all of it is
    /// copied, or when a run cannot be copied now.
    fn share(&mut self, mut share: Share) {
        let inner = Arc::clone(&self.inner);
        let count = share.hashes.len() as u32;
        let next = runs_of(0, count, inner.run_blocks).into_iter().find(|(first, _)| *first as usize >= share.there);
        let Some((first, len)) = next.filter(|_| share.until > Instant::now() && !share.done.is_closed()) else {
            let missing = (share.there < share.hashes.len()).then_some("late");
            let _ = share.done.send(Outcome { blocks: share.there, brought: 0, missing });
            return;
        };
        let run = &keys_of(&share.hashes)[first as usize..(first + len) as usize];
        // An engine waits for it, so it goes before the runs of the queue; but not beyond the budget.
        let copied = match inner.may_go(run) {
            Ok(()) => self.copy_and_count(run),
            Err(_) => Err(Failed::Gone("the store or the budget takes none now".into())),
        };
        match copied {
            Ok(()) => {
                share.there = (first + len) as usize;
                inner.queue.share(share);
            }
            Err(failed) => {
                let why = match failed {
                    Failed::Gone(why) => why,
                    Failed::Store(error) => error.to_string(),
                };
                tracing::debug!("space {}: a shared run was not copied out: {why}", inner.space.name);
                let missing = Some("not_copied");
                let _ = share.done.send(Outcome { blocks: share.there, brought: 0, missing });
            }
        }
    }

    /// Copy a run to the store, if it does not have it. The budget was charged for it.
    fn copy_and_count(&mut self, run: &[BlockKey]) -> Result<(), Failed> {
        let inner = Arc::clone(&self.inner);
        let mut unspent = inner.cost(run.len() as u32, inner.keys.len() as u64);
        let copied = self.copy_out(run, &mut unspent);
        inner.shared.spending.give_back(unspent);
        let counters = &inner.shared.counters;
        match copied? {
            true => {
                inner.pause().took_one();
                add(&counters.blocks_out, run.len());
            }
            false => add(&counters.blocks_there, run.len()),
        }
        Ok(())
    }

    /// Copy a run to the store. Return false if the store had it. What it costs is subtracted from `unspent`.
    fn copy_out(&mut self, run: &[BlockKey], unspent: &mut Cost) -> Result<bool, Failed> {
        let inner = Arc::clone(&self.inner);
        if !inner.chains().has_all(run) {
            return Err(Failed::Gone("the daemon has dropped a block of it".into()));
        }
        let (shared, names) = (&inner.shared, inner.names(run));
        let present = shared.runtime.block_on(shared.endpoint.present(&names));
        if present.as_ref().err().is_none_or(|error| error.kind != ErrorKind::NotSent) {
            unspent.requests -= names.len() as u64;
        }
        let present = present?;
        let missing = present.iter().zip(0..).filter(|(present, _)| !**present).map(|(_, shard)| shard);
        let missing: Vec<usize> = missing.collect();
        for &shard in &missing {
            let object = self.read(shard, run)?;
            let bytes = object.len() as u64;
            let put = shared.runtime.block_on(shared.endpoint.put(&names[shard], object));
            if put.as_ref().err().is_none_or(|error| error.kind != ErrorKind::NotSent) {
                // A write that failed may have happened.
                *unspent = Cost { bytes: unspent.bytes.saturating_sub(bytes), requests: unspent.requests - 1 };
            }
            put?;
        }
        names.iter().for_each(|name| shared.presence.note(name, true));
        Ok(!missing.is_empty())
    }

    /// Read a shard's part of the blocks of a run from the daemon, each as its pages one after another, and encode them.
    fn read(&mut self, shard: usize, run: &[BlockKey]) -> Result<Bytes, String> {
        let hashes: Vec<u128> = run.iter().map(|block| block.hash).collect();
        let slots = &self.slots[..run.len()];
        let copied = self.channels[shard].load_hashed(&hashes, slots, CALL);
        self.settle(shard, copied.as_ref().map_or_else(kvtide_client::Error::status, |copied| copied.status));
        let copied = copied.map_err(|error| error.to_string())?;
        let slots = &self.slots[..run.len()];
        if !copied.failed.is_empty() {
            let failed = copied.failed.len();
            return Err(format!("{failed} of {} blocks could not be read: {:?}", run.len(), copied.status));
        }
        let client = &self.inner.clients[shard];
        let object = Run::new(&self.inner.keys[shard], run, self.inner.block_bytes).encode_from(|place, out| {
            (0..self.inner.space.planes.len() as u16)
                .try_for_each(|plane| client.with_block(slots[place], plane, |page| out.extend_from_slice(page)))
        });
        object.ok_or_else(|| NO_MEMORY.into())
    }

    /// After a call that ended at its deadline, wait until none of its copies touches the blocks of this thread any more. If that does
    /// not happen, the space ends: a late copy would change the bytes of another block.
    fn settle(&mut self, shard: usize, status: Status) {
        if status == Status::TimedOut
            && let Err(error) = self.channels[shard].settle(CALL)
        {
            tracing::error!("space {}: a copy does not end: {error}; the relay attaches again", self.inner.space.name);
            self.inner.queue.end();
        }
    }

    /// Bring the blocks of a prefix in, as many as the store has and as come in in time, and answer.
    fn bring_in(&mut self, mut recall: Recall) {
        match self.bring_some_in(&mut recall) {
            Some(outcome) => _ = recall.done.send(outcome),
            None => self.inner.queue.bring_in(recall),
        }
    }

    /// Return what came of it; `None`: it gives way to an engine, and has to go on.
    fn bring_some_in(&mut self, recall: &mut Recall) -> Option<Outcome> {
        let (inner, expected) = (Arc::clone(&self.inner), recall.expected.take());
        let hashes = &recall.hashes;
        // As the feed tells: a lookup would count as an engine's.
        let mut cached = inner.chains().longest(hashes);
        let before = cached;
        let ended = |cached: usize, why| {
            Some(Outcome { blocks: cached, brought: cached - before, missing: (cached < hashes.len()).then_some(why) })
        };
        if recall.is_over() {
            return ended(cached, "late");
        }
        if hashes.iter().any(|hash| is_local(*hash)) {
            return ended(cached, "stays_on_its_machine");
        }
        let keys = keys_of(hashes);
        let (runs, is_known) = inner.shared.runtime.block_on(self.runs_in_store(&keys, recall.fresh));
        let absent = if is_known { "not_in_store" } else { "store_failed" };
        let runs = runs.into_iter().filter(|run| run.last().is_some_and(|last| last.index as usize >= before));
        let runs: Vec<Arc<[BlockKey]>> = runs.map(Arc::<[BlockKey]>::from).collect();
        let left: usize = runs.iter().map(|run| run.len()).sum();
        if let (Some(expected), Some(last)) = (expected, runs.last().and_then(|run| run.last())) {
            let within = inner.pace.of(left);
            let _ = expected.send(Expected { blocks: last.index as usize + 1, within });
        }
        let mut waiting = runs.into_iter();
        let mut loading = VecDeque::new();
        loop {
            while loading.len() < AHEAD
                && let Some(run) = waiting.next()
            {
                let shards = (0..inner.keys.len()).map(|shard| inner.load(shard, Arc::clone(&run)));
                loading.push_back((Arc::clone(&run), shards.collect::<Vec<_>>()));
            }
            if inner.queue.is_over() || recall.is_over() {
                return ended(cached, "late");
            }
            if !recall.of_engine && cached > before && inner.queue.has_urgent() {
                return None;
            }
            let began = Instant::now();
            let Some((run, shards)) = loading.pop_front() else { return ended(cached, absent) };
            let loaded = shards.into_iter().map(|task| inner.shared.runtime.block_on(task));
            // The endpoint logs and counts errors; here they are misses.
            let loaded: Vec<Option<Vec<Bytes>>> = loaded
                .zip(inner.names(&run))
                .map(|(loaded, name)| {
                    let loaded = loaded.ok()?;
                    // A store that could not be read may have the run: it is asked again once it is back.
                    if !matches!(loaded, Err(LoadError::Store(_))) {
                        inner.shared.presence.note(&name, matches!(loaded, Ok(Some(_))));
                    }
                    loaded.ok().flatten()
                })
                .collect();
            // Shard 0 last: the block is complete then, and the feed knows by that shard's session that a relay stored it.
            let stored = loaded
                .into_iter()
                .enumerate()
                .rev()
                .all(|(shard, blocks)| blocks.is_some_and(|blocks| self.store(shard, &run, &blocks)));
            if !stored {
                // Blocks behind a hole are of no use. The loads that are dropped end at their deadlines.
                return ended(cached, "not_brought");
            }
            cached = cached.max(run[run.len() - 1].index as usize + 1);
            add(&inner.shared.counters.blocks_in, run.len());
            inner.pace.measured(run.len(), began.elapsed());
        }
    }

    /// Return the runs of a prefix that the store has in all shards, up to the first hole. The last ones may be shorter than those
    /// of a relay that would write this prefix: another one wrote a shorter or a longer prefix. False: the store did not answer.
    async fn runs_in_store(&self, keys: &[BlockKey], fresh: bool) -> (Vec<Vec<BlockKey>>, bool) {
        let (inner, most) = (&self.inner, self.inner.run_blocks);
        let full = keys.len() as u32 / most;
        let of = |first: u32, len: u32| &keys[first as usize..(first + len) as usize];
        let names: Vec<Vec<RunName>> = (0..full).map(|i| inner.names(of(i * most, most))).collect();
        let found = match fresh {
            false => inner.shared.presence.longest(&names).await,
            true => {
                let all: Vec<RunName> = names.iter().flatten().cloned().collect();
                let present = inner.shared.endpoint.present(&all).await;
                let whole = |present: &Vec<bool>| {
                    let shards = present.chunks(inner.keys.len());
                    shards.take_while(|shards| shards.iter().all(|there| *there)).count()
                };
                present.as_ref().map(whole).map_err(Clone::clone)
            }
        };
        let is_known = found.is_ok();
        let found = found.unwrap_or(0) as u32;
        let mut runs: Vec<Vec<BlockKey>> = (0..found).map(|i| of(i * most, most).to_vec()).collect();
        // Within the next full run, all aligned runs of powers of two are possible.
        let (first, end) = (found * most, (keys.len() as u32).min((found + 1) * most));
        let parts: Vec<(u32, u32)> = (0..most.trailing_zeros())
            .flat_map(|shift| (first..end).step_by(1 << shift).map(move |at| (at, 1 << shift)))
            .filter(|(at, len)| at + len <= end)
            .collect();
        let names: Vec<RunName> = parts.iter().flat_map(|&(at, len)| inner.names(of(at, len))).collect();
        if names.is_empty() {
            return (runs, is_known);
        }
        let Ok(present) = inner.shared.endpoint.present(&names).await else { return (runs, false) };
        let whole = present.chunks(inner.keys.len()).map(|shards| shards.iter().all(|present| *present));
        let there: Vec<(u32, u32)> =
            parts.iter().copied().zip(whole).filter(|(_, whole)| *whole).map(|(part, _)| part).collect();
        let mut at = first;
        while let Some(&(_, len)) = there.iter().filter(|(from, _)| *from == at).max_by_key(|(_, len)| *len) {
            runs.push(of(at, len).to_vec());
            at += len;
        }
        (runs, is_known)
    }

    /// Store a shard's part of a run in the daemon.
    fn store(&mut self, shard: usize, run: &[BlockKey], blocks: &[Bytes]) -> bool {
        let client = &self.inner.clients[shard];
        for (slot, block) in self.slots.iter().zip(blocks) {
            let mut rest = &block[..];
            for plane in 0..self.inner.space.planes.len() as u16 {
                let written = client.with_block(*slot, plane, |page| {
                    let (now, later) = rest.split_at(page.len());
                    page.copy_from_slice(now);
                    rest = later;
                });
                if written.is_none() {
                    tracing::debug!("space {}: a run was not brought in: {NO_MEMORY}", self.inner.space.name);
                    return false;
                }
            }
        }
        let hashes: Vec<u128> = run.iter().map(|block| block.hash).collect();
        let (at, slots) = ((run[0].index, run[0].parent), &self.slots[..run.len()]);
        let stored = self.channels[shard].store(at, &hashes, slots, Level::Published, CALL);
        self.settle(shard, stored.as_ref().map_or_else(kvtide_client::Error::status, |copied| copied.status));
        match stored {
            Ok(copied) if copied.status == Status::Ok => true,
            Ok(copied) => {
                tracing::debug!("space {}: the daemon did not take a run: {:?}", self.inner.space.name, copied.status);
                false
            }
            Err(error) => {
                tracing::debug!("space {}: {error}", self.inner.space.name);
                false
            }
        }
    }
}
