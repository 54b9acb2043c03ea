//! One stream of KV events: a queue that the feed's thread never waits for, a task that publishes, the batches that can be replayed.
//!
//! | socket | frames |
//! | --- | --- |
//! | PUB | topic, sequence number (8 bytes, big-endian), batch |
//! | ROUTER, request | empty, first sequence number |
//! | ROUTER, answers | empty, topic, sequence number, batch; the last one: empty, empty, -1, empty |

use super::server::Subscribers;
use super::state::State;
use super::tokens::Tokens;
use super::wire::{Event, encode};
use super::{Counters, add, zmtp};
use bytes::Bytes;
use kvtide_types::FeedEvent;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;

/// Maximum events and noted blocks that wait to be published. A listing is one more.
const QUEUE_MAX: usize = 1 << 16;
/// Maximum events of a batch.
const BATCH_EVENTS_MAX: usize = 64;
/// Batches that can be replayed, as in vLLM.
const RING_BATCHES_MAX: usize = 10_000;
/// Bytes of batches that can be replayed.
const RING_BYTES_MAX: usize = 64 << 20;
/// Time after which an empty batch tells routers that have missed batches that they have.
const IDLE: Duration = Duration::from_secs(1);
/// Minimum time between two repetitions of everything because the ring was too short.
const REPEAT_MIN: Duration = Duration::from_secs(30);
/// The sequence number that ends a replay.
const END: [u8; 8] = [0xff; 8];

/// What waits to be published.
enum Item {
    Event(FeedEvent),
    /// All that is cached, in place of what was known.
    Listing(Vec<FeedEvent>),
    Noted(Vec<u128>),
    /// A router asks for more than the ring has.
    Repeat,
}

impl Item {
    /// Return its share of [`QUEUE_MAX`].
    fn weight(&self) -> usize {
        match self {
            Item::Noted(hashes) => hashes.len(),
            Item::Event(_) | Item::Listing(_) | Item::Repeat => 1,
        }
    }
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    weight: usize,
    /// Events were dropped: nothing counts until the next listing.
    lost: bool,
}

/// The batches that can be replayed.
#[derive(Default)]
struct Ring {
    batches: VecDeque<(u64, Bytes)>,
    bytes: usize,
    /// The last batch that begins with `AllBlocksCleared`.
    cleared: u64,
    repeated: Option<Instant>,
}

/// A stream, between the thread that follows the feed and the tasks.
pub struct Stream {
    /// Fingerprint of the space.
    pub fingerprint: [u8; 32],
    /// Tokens of a block.
    pub page_tokens: u32,
    topic: Bytes,
    counters: Arc<Counters>,
    queue: Mutex<Queue>,
    wake: Notify,
    ring: Mutex<Ring>,
    /// Cached blocks that are not announced.
    waiting: AtomicUsize,
    /// A thread follows the feed for it.
    taken: AtomicBool,
    /// Subscribers of its batches.
    pub subscribers: Subscribers,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stream {
    /// Return a stream of a space.
    pub fn new(fingerprint: [u8; 32], page_tokens: u32, topic: &str, counters: Arc<Counters>) -> Stream {
        let topic = Bytes::copy_from_slice(topic.as_bytes());
        let (queue, wake, ring, waiting, taken, subscribers) = Default::default();
        Stream { fingerprint, page_tokens, topic, counters, queue, wake, ring, waiting, taken, subscribers }
    }

    /// Return its counters.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Take the stream for a thread. Return false if another one has it.
    pub fn take(&self) -> bool {
        !self.taken.swap(true, Ordering::Relaxed)
    }

    /// Let another thread take it.
    pub fn give_back(&self) {
        self.taken.store(false, Ordering::Relaxed);
    }

    /// Publish what an event of the feed changes.
    pub fn event(&self, event: FeedEvent) {
        if !matches!(event, FeedEvent::Gap | FeedEvent::Used { .. }) {
            self.push(Item::Event(event));
        }
    }

    /// Blocks have got tokens.
    pub fn noted(&self, hashes: Vec<u128>) {
        self.push(Item::Noted(hashes));
    }

    /// Void what was published, and publish this.
    pub fn listing(&self, listed: Vec<FeedEvent>) {
        let mut queue = lock(&self.queue);
        *queue = Queue { items: [Item::Listing(listed)].into(), weight: 1, lost: false };
        self.wake.notify_one();
    }

    /// Return whether events were dropped, so that the stream needs a listing.
    pub fn is_lost(&self) -> bool {
        lock(&self.queue).lost
    }

    /// Return the cached blocks that are not announced.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    fn push(&self, item: Item) {
        let mut queue = lock(&self.queue);
        if queue.lost {
            return;
        }
        queue.weight += item.weight();
        if queue.weight > QUEUE_MAX {
            *queue = Queue { lost: true, ..Queue::default() };
            return add(&self.counters.overflows, 1);
        }
        queue.items.push_back(item);
        self.wake.notify_one();
    }

    fn pop(&self) -> Option<Item> {
        let mut queue = lock(&self.queue);
        let item = queue.items.pop_front()?;
        queue.weight -= item.weight();
        Some(item)
    }

    /// Return the messages that answer a request for the batches from a sequence number on. Have everything published again if the ring is
    /// too short for that.
    pub fn replay(&self, first: u64) -> impl Iterator<Item = Bytes> {
        let batches = self.since(first).into_iter();
        batches.map(|(number, batch)| zmtp::message(&[b"", &self.topic, &number.to_be_bytes(), &batch]))
    }

    fn since(&self, first: u64) -> Vec<(u64, Bytes)> {
        let mut ring = lock(&self.ring);
        let oldest = ring.batches.front().map_or(0, |(number, _)| *number);
        let recent = |at: Instant| at.elapsed() < REPEAT_MIN;
        if first < oldest && ring.cleared < oldest && !ring.repeated.is_some_and(recent) {
            ring.repeated = Some(Instant::now());
            self.push(Item::Repeat);
        }
        ring.batches.iter().filter(|(number, _)| *number >= first).cloned().collect()
    }

    fn keep(&self, number: u64, batch: Bytes, cleared: bool) {
        let mut ring = lock(&self.ring);
        if cleared {
            ring.cleared = number;
        }
        ring.bytes += batch.len();
        ring.batches.push_back((number, batch));
        while (ring.batches.len() > RING_BATCHES_MAX || ring.bytes > RING_BYTES_MAX)
            && let Some((_, batch)) = ring.batches.pop_front()
        {
            ring.bytes -= batch.len();
        }
    }
}

/// The task that publishes.
pub struct Publisher {
    stream: Arc<Stream>,
    tokens: Arc<Tokens>,
    state: State,
    next: u64,
    /// Events of the next batches.
    out: Vec<Event>,
}

impl Publisher {
    /// Return a publisher. Its first sequence number is the time in microseconds: Dynamo drops batches with numbers that it has seen,
    /// so that numbers from 0 on would make it deaf after a restart.
    pub fn new(stream: Arc<Stream>, tokens: Arc<Tokens>) -> Publisher {
        let state = State::new(stream.page_tokens);
        Publisher { stream, tokens, state, next: since_epoch().as_micros() as u64, out: Vec::new() }
    }

    /// Publish until the runtime ends.
    pub async fn run(mut self) {
        loop {
            while let Some(item) = self.stream.pop() {
                self.take(item).await;
            }
            self.flush(0).await;
            let (announced, waiting) = self.state.len();
            self.stream.waiting.store(waiting, Ordering::Relaxed);
            tracing::trace!("{announced} blocks are announced, {waiting} wait for tokens");
            if tokio::time::timeout(IDLE, self.stream.wake.notified()).await.is_err() {
                self.send(&[]).await;
            }
        }
    }

    async fn take(&mut self, item: Item) {
        let (stream, tokens) = (Arc::clone(&self.stream), Arc::clone(&self.tokens));
        let tokens = |hash| tokens.get(&stream.fingerprint, hash);
        match item {
            Item::Event(event) => self.state.apply(event, &tokens, &mut self.out),
            Item::Noted(hashes) => self.state.noted(&hashes, &tokens, &mut self.out),
            Item::Listing(listed) => {
                self.flush(0).await;
                self.state.clear(&mut self.out);
                for event in listed {
                    self.state.apply(event, &tokens, &mut self.out);
                    self.flush(BATCH_EVENTS_MAX).await;
                }
            }
            Item::Repeat => {
                self.flush(0).await;
                for root in self.state.repeat(&mut self.out) {
                    self.state.noted(&[root], &tokens, &mut self.out);
                    self.flush(BATCH_EVENTS_MAX).await;
                }
            }
        }
        self.flush(BATCH_EVENTS_MAX).await;
    }

    /// Send batches while more than `most` events wait.
    async fn flush(&mut self, most: usize) {
        if self.out.len() <= most {
            return;
        }
        let out = std::mem::take(&mut self.out);
        for events in out.chunks(BATCH_EVENTS_MAX) {
            self.send(events).await;
        }
        self.out = out;
        self.out.clear();
    }

    async fn send(&mut self, events: &[Event]) {
        let batch = match encode(since_epoch(), events) {
            Ok(batch) => Bytes::from(batch),
            Err(error) => return tracing::error!("KV events are not published: {error}"),
        };
        let number = self.next;
        self.next += 1;
        if !events.is_empty() {
            // Empty batches are not replayed: they would push the others out.
            self.stream.keep(number, batch.clone(), events[0] == Event::AllBlocksCleared);
            add(&self.stream.counters.events, events.len());
        }
        let message = zmtp::message(&[&self.stream.topic, &number.to_be_bytes(), &batch]);
        // A subscriber without room finds the gap and asks for a replay.
        add(&self.stream.counters.lost, self.stream.subscribers.publish(&self.stream.topic, &message));
        tokio::task::yield_now().await;
    }
}

/// Return the message that ends a replay.
pub fn end() -> Bytes {
    zmtp::message(&[b"", b"", &END, b""])
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
