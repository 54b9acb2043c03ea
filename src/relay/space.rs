//! One space: a session for each shard, a thread that follows the feed, and copiers that move runs between daemon and store.

use crate::chains::{Chains, ends, keys_of};
use crate::config::{Config, When};
use crate::endpoint::{Endpoint, LoadError};
use crate::events::{Events, Follower};
use crate::name::{RunName, SharedKey, SpaceKeys};
use crate::presence::Presence;
use crate::queue::{Job, Queue, Recall};
use crate::run::{BlockKey, Run, run_blocks};
use bytes::Bytes;
use kvtide_client::{Channel, Client, Options, SpaceSpec};
use kvtide_types::{FeedEvent, Level, Status};
use kvtide_wire::geometry::classes;
use kvtide_wire::hello::SpaceOpened;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
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

/// Shared by all spaces of a relay.
#[derive(Clone)]
pub struct Shared {
    /// The configuration.
    pub config: Arc<Config>,
    /// The key of all relays that share.
    pub key: SharedKey,
    /// The store.
    pub endpoint: Arc<Endpoint>,
    /// Cached answers about runs in the store.
    pub presence: Arc<Presence>,
    /// Where requests to the store run.
    pub runtime: Handle,
    /// Counters of all spaces.
    pub counters: Arc<Counters>,
    /// KV events for routers, if they are on.
    pub events: Option<Arc<Events>>,
}

/// Counters since the start, over all spaces.
#[derive(Debug, Default)]
pub struct Counters {
    /// Blocks copied to the store, each with all its shards.
    pub blocks_out: AtomicU64,
    /// Blocks of runs that the store had already.
    pub blocks_there: AtomicU64,
    /// Blocks of runs that could not be copied to the store: gone meanwhile, or the store failed.
    pub blocks_not_out: AtomicU64,
    /// Blocks not copied because too many waited.
    pub blocks_dropped: AtomicU64,
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
}

impl Space {
    /// Attach to a space and serve it until it is dropped or until the daemon ends the sessions.
    ///
    /// # Errors
    /// The daemon refuses a session, or a thread cannot be started.
    pub fn start(shared: Shared, space: SpaceOpened) -> Result<Space, kvtide_client::Error> {
        let block_bytes = space.planes.iter().map(|plane| u64::from(plane.page_bytes)).sum();
        let run_blocks = run_blocks(block_bytes, shared.config.store.object_bytes()).min(RUN_BLOCKS_MAX);
        let domain = &shared.config.domain;
        let keys_of = |shard| SpaceKeys::new(&shared.key, &domain.name, &space.fingerprint, shard, domain.encrypt);
        let keys = (0..u32::from(space.shards)).map(keys_of).collect();
        let clients = (0..space.shards).map(|shard| attach(&shared.config, &space, shard, run_blocks));
        let clients = clients.collect::<Result<Vec<_>, _>>()?;
        let (queue, chains) = (Queue::default(), Mutex::default());
        let inner = Inner { shared, space, keys, clients, block_bytes, run_blocks, queue, chains };
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
                while let Some(job) = inner.queue.take() {
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

    /// Return the name of the space.
    pub fn name(&self) -> &str {
        &self.inner.space.name
    }

    /// Return the number of cached blocks by the feed, and of waiting runs and recalls.
    pub fn figures(&self) -> (usize, usize, usize) {
        let (runs, recalls) = self.inner.queue.len();
        (self.inner.chains().len(), runs, recalls)
    }

    /// Bring a prefix in.
    pub fn recall(&self, recall: Recall) {
        add(&self.inner.shared.counters.blocks_recalled, recall.hashes.len());
        self.inner.queue.bring_in(recall);
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

fn attach(config: &Config, space: &SpaceOpened, shard: u16, run_blocks: u32) -> Result<Client, kvtide_client::Error> {
    let SpaceOpened { fingerprint, page_tokens, shards, .. } = *space;
    let (name, planes) = (space.name.clone(), space.planes.clone());
    let frames = vec![0; classes(&planes).len()];
    let spec = SpaceSpec { name, fingerprint, page_tokens, planes, shards, shard };
    let token_file = config.daemon.token_file.clone();
    let options = Options::new(config.daemon.socket.clone(), spec, frames);
    let client = Client::attach(Options { token_file, relay: true, seqs_max: 1, channels: COPIERS + 1, ..options })?;
    client.allocate_blocks(u32::from(COPIERS) * run_blocks)?;
    Ok(client)
}

impl Inner {
    fn chains(&self) -> MutexGuard<'_, Chains> {
        self.chains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follow the feed, and queue runs to copy by the rules of the configuration.
    fn follow(&self, mut feed: Channel) {
        let follower = self.shared.events.as_ref().and_then(|events| events.follow(&self.space));
        // No number of an event: the first answer is a gap, even if an earlier one was lost on its way.
        let mut next = u64::MAX;
        while !self.queue.is_over() {
            let part = match feed.follow(next, LOOK) {
                Ok(part) => part,
                Err(error) => return tracing::debug!("space {}: the feed has ended: {error}", self.space.name),
            };
            next = part.next;
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
        let runs = self.chains().take_runs(last, self.run_blocks);
        for run in runs {
            if let Err(run) = self.queue.copy_out(run) {
                add(&self.shared.counters.blocks_dropped, run.len());
                self.chains().give_back(&run);
            }
        }
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
            Job::CopyOut(run) => {
                let counters = Arc::clone(&self.inner.shared.counters);
                match self.copy_out(&run) {
                    Ok(true) => add(&counters.blocks_out, run.len()),
                    Ok(false) => add(&counters.blocks_there, run.len()),
                    Err(why) => {
                        add(&counters.blocks_not_out, run.len());
                        self.inner.chains().give_back(&run);
                        tracing::debug!("space {}: a run was not copied out: {why}", self.inner.space.name);
                    }
                }
            }
            Job::BringIn(recall) => {
                let cached = self.bring_in(&recall.hashes);
                // Its asker may have stopped waiting.
                let _ = recall.done.send(cached);
            }
        }
    }

    /// Copy a run to the store. Return false if the store had it.
    fn copy_out(&mut self, run: &[BlockKey]) -> Result<bool, String> {
        let inner = Arc::clone(&self.inner);
        let (shared, names) = (&inner.shared, inner.names(run));
        let present = shared.runtime.block_on(shared.endpoint.present(&names)).map_err(|error| error.to_string())?;
        let missing = present.iter().zip(0..).filter(|(present, _)| !**present).map(|(_, shard)| shard);
        let missing: Vec<usize> = missing.collect();
        for &shard in &missing {
            let object = self.read(shard, run)?;
            let put = shared.endpoint.put(&names[shard], object);
            shared.runtime.block_on(put).map_err(|error| error.to_string())?;
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

    /// Bring the blocks of a prefix in, as many as the store has. Return how many are cached in the daemon afterwards.
    fn bring_in(&mut self, hashes: &[u128]) -> usize {
        let inner = Arc::clone(&self.inner);
        // As the feed tells: a lookup would count as an engine's.
        let mut cached = inner.chains().longest(hashes);
        let keys = keys_of(hashes);
        let runs = inner.shared.runtime.block_on(self.runs_in_store(&keys));
        let before = cached;
        let runs = runs.into_iter().filter(|run| run.last().is_some_and(|last| last.index as usize >= before));
        let mut waiting = runs.map(Arc::<[BlockKey]>::from);
        let mut loading = VecDeque::new();
        loop {
            while loading.len() < AHEAD
                && let Some(run) = waiting.next()
            {
                let shards = (0..inner.keys.len()).map(|shard| inner.load(shard, Arc::clone(&run)));
                loading.push_back((Arc::clone(&run), shards.collect::<Vec<_>>()));
            }
            if inner.queue.is_over() {
                return cached;
            }
            let Some((run, shards)) = loading.pop_front() else { return cached };
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
                return cached;
            }
            cached = cached.max(run[run.len() - 1].index as usize + 1);
            add(&inner.shared.counters.blocks_in, run.len());
        }
    }

    /// Return the runs of a prefix that the store has in all shards, up to the first hole. The last ones may be shorter than those
    /// of a relay that would write this prefix: another one wrote a shorter or a longer prefix.
    async fn runs_in_store(&self, keys: &[BlockKey]) -> Vec<Vec<BlockKey>> {
        let (inner, most) = (&self.inner, self.inner.run_blocks);
        let full = keys.len() as u32 / most;
        let of = |first: u32, len: u32| &keys[first as usize..(first + len) as usize];
        let names: Vec<Vec<RunName>> = (0..full).map(|i| inner.names(of(i * most, most))).collect();
        let found = inner.shared.presence.longest(&names).await.unwrap_or(0) as u32;
        let mut runs: Vec<Vec<BlockKey>> = (0..found).map(|i| of(i * most, most).to_vec()).collect();
        // Within the next full run, all aligned runs of powers of two are possible.
        let (first, end) = (found * most, (keys.len() as u32).min((found + 1) * most));
        let parts: Vec<(u32, u32)> = (0..most.trailing_zeros())
            .flat_map(|shift| (first..end).step_by(1 << shift).map(move |at| (at, 1 << shift)))
            .filter(|(at, len)| at + len <= end)
            .collect();
        let names: Vec<RunName> = parts.iter().flat_map(|&(at, len)| inner.names(of(at, len))).collect();
        if names.is_empty() {
            return runs;
        }
        let Ok(present) = inner.shared.endpoint.present(&names).await else { return runs };
        let whole = present.chunks(inner.keys.len()).map(|shards| shards.iter().all(|present| *present));
        let there: Vec<(u32, u32)> =
            parts.iter().copied().zip(whole).filter(|(_, whole)| *whole).map(|(part, _)| part).collect();
        let mut at = first;
        while let Some(&(_, len)) = there.iter().filter(|(from, _)| *from == at).max_by_key(|(_, len)| *len) {
            runs.push(of(at, len).to_vec());
            at += len;
        }
        runs
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
