//! The load: threads that write, publish, map, read, fork, park and drop at random until the daemon is killed.

use super::content::{Book, Chain, Id};
use super::plan::{DEPTH_MAX, LIVE_MAX, Plan};
use super::session::{Hand, TIMEOUT, WrongPage, attach};
use kvtide_client::{Client, Completed, Error, Outcome, Request, SeqId, Ticket};
use kvtide_types::random::Random;
use kvtide_wire::entry::Level;
use kvtide_wire::status::Status;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Maximum publishes of a thread in flight.
const PUBLISHES_MAX: usize = 6;
/// Maximum blocks added to a sequence at once.
const GROWTH_MAX: u64 = 4;

/// Results of one thread, or of all.
#[derive(Debug, Default)]
pub struct Seen {
    /// Pages with bytes that did not match their hash.
    pub wrong: Vec<WrongPage>,
    /// Failed calls by status.
    pub failed: BTreeMap<String, u64>,
    /// Failures that a healthy daemon must not cause.
    pub broken: Vec<String>,
}

impl Seen {
    /// Add the results of another thread.
    pub fn add(&mut self, other: Seen) {
        self.wrong.extend(other.wrong);
        for (status, count) in other.failed {
            *self.failed.entry(status).or_default() += count;
        }
        self.broken.extend(other.broken);
    }

    /// Count a failure. A live daemon may lack memory or exceed a deadline, but must not lose data or report a protocol violation.
    fn fail(&mut self, error: &Error) {
        let status = error.status();
        *self.failed.entry(format!("{status:?}")).or_default() += 1;
        let may_be = matches!(
            status,
            Status::Daemon
                | Status::NoSpace
                | Status::NotAdmitted
                | Status::Again
                | Status::Busy
                | Status::Limit
                | Status::TimedOut
        );
        if !may_be {
            self.broken.push(error.to_string());
        }
    }
}

/// State shared by all threads of a load.
pub struct Load<'a> {
    pub plan: &'a Plan,
    pub book: &'a Book,
    pub socket: &'a Path,
    /// Begin of the load.
    pub began: Instant,
    /// New blocks written so far.
    pub written: AtomicU64,
    /// End of the load if the daemon is not killed.
    pub until: Instant,
}

/// A sequence of a thread.
struct Live {
    seq: SeqId,
    chain: Chain,
    /// Hash of the partial block after the chain.
    tail: Option<u128>,
    parked: bool,
}

/// A running thread.
struct Worker<'a> {
    load: &'a Load<'a>,
    hand: Hand,
    random: Random,
    live: Vec<Live>,
    /// Publishes in flight, oldest first, with their contents.
    publishing: VecDeque<(Ticket, Vec<Id>)>,
    seen: Seen,
}

impl Load<'_> {
    /// Run one engine: attach, and run one thread per channel until the daemon is killed.
    pub fn engine(&self, mut random: Random, threads: u16) -> Seen {
        let mut seen = Seen::default();
        let client = match attach(self.plan, self.socket) {
            Ok(client) => client,
            // Killed before it replied.
            Err(error) => {
                seen.fail(&error);
                return seen;
            }
        };
        let seeds: Vec<Random> = (0..threads).map(|_| random.split()).collect();
        std::thread::scope(|scope| {
            let threads: Vec<_> = seeds
                .into_iter()
                .zip(0..)
                .map(|(random, index)| {
                    let client = &client;
                    scope.spawn(move || self.worker(client, index, random))
                })
                .collect();
            for thread in threads {
                match thread.join() {
                    Ok(one) => seen.add(one),
                    Err(_) => seen.broken.push("a thread of the load panicked".into()),
                }
            }
        });
        seen
    }

    fn worker(&self, client: &Client, index: u16, random: Random) -> Seen {
        let mut seen = Seen::default();
        let hand = match Hand::new(client, index) {
            Ok(hand) => hand,
            Err(error) => {
                seen.fail(&error);
                return seen;
            }
        };
        let (live, publishing) = (Vec::new(), VecDeque::new());
        let mut worker = Worker { load: self, hand, random, live, publishing, seen };
        worker.run();
        // Levels reported before the kill count.
        worker.take_answers();
        worker.seen.wrong.append(&mut worker.hand.wrong);
        worker.seen
    }

    /// Reserve new blocks, as many as the elapsed time allows.
    fn take(&self, wanted: u64) -> u64 {
        let allowed = Plan::blocks_by(self.began.elapsed());
        let taken = |written: u64| Some(written + wanted.min(allowed.saturating_sub(written)));
        let before = self.written.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).unwrap_or(allowed);
        wanted.min(allowed.saturating_sub(before))
    }
}

impl Worker<'_> {
    fn run(&mut self) {
        while Instant::now() < self.load.until {
            self.take_answers();
            let done = match self.random.below(16) {
                0..=4 => self.begin(),
                5..=8 => self.grow(),
                9 | 10 => self.read(),
                11 => self.fork(),
                12 => self.park(),
                13 => self.resume(),
                14 => self.publish_all(),
                _ => self.drop_one(),
            };
            if let Err(error) = done {
                self.seen.fail(&error);
                if error.status() == Status::Daemon {
                    return;
                }
                self.make_room();
            }
        }
        self.seen.broken.push("the daemon was not killed, or calls did not fail after the kill".into());
    }

    /// Process completed publishes and record their levels.
    fn take_answers(&mut self) {
        while let Some(completed) = self.hand.channel.poll_any() {
            self.answered(completed);
        }
    }

    fn answered(&mut self, completed: Completed) {
        let Some(at) = self.publishing.iter().position(|(ticket, _)| *ticket == completed.ticket) else { return };
        let Some((_, ids)) = self.publishing.remove(at) else { return };
        match completed.result {
            Ok(Outcome::Level(level)) => self.load.book.reported(&ids, level),
            Ok(other) => self.seen.broken.push(format!("a publish ended with {other:?}")),
            Err(error) => self.seen.fail(&error),
        }
    }

    /// Create a sequence over a new chain, or over one that may be cached.
    fn begin(&mut self) -> Result<(), Error> {
        if self.live.len() >= LIVE_MAX {
            return self.drop_one();
        }
        let known = if self.random.one_in(3) { None } else { self.load.book.chain(&mut self.random) };
        let chain = known.unwrap_or_default();
        let seq = self.hand.channel.create_seq()?;
        self.live.push(Live { seq, chain: Chain::default(), tail: None, parked: false });
        let mut cached = 0;
        // In some cases it computes cached blocks again, like an engine that did not look them up.
        if !chain.ids.is_empty() && !self.random.one_in(8) {
            cached = self.hand.channel.attach_prefix(seq, &chain.hashes, TIMEOUT)?;
        }
        self.extend(self.live.len() - 1, chain, cached)
    }

    fn grow(&mut self) -> Result<(), Error> {
        let Some(at) = self.awake() else { return Ok(()) };
        let chain = self.live[at].chain.clone();
        let cached = chain.ids.len();
        self.extend(at, chain, cached)
    }

    /// Extend a sequence to `chain`, of which it has the first `cached` blocks. Write and publish the new blocks.
    fn extend(&mut self, at: usize, mut chain: Chain, cached: usize) -> Result<(), Error> {
        let wanted = (1 + self.random.below(GROWTH_MAX)).min((DEPTH_MAX - chain.ids.len()) as u64);
        let room = self.load.take(wanted) as usize;
        self.load.book.grow(&mut chain, room, &mut self.random);
        if chain.ids.len() == cached && self.live[at].tail.is_some() {
            return Ok(()); // nothing to write: its partial block exists already
        }
        let tail = self.random.one_in(3).then(|| u128::from(self.random.next()));
        self.hand.write(self.live[at].seq, &chain, cached, tail)?;
        (self.live[at].chain, self.live[at].tail) = (chain, tail);
        self.publish(at, cached)
    }

    /// Publish a sequence's blocks from index `first` on.
    fn publish(&mut self, at: usize, first: usize) -> Result<(), Error> {
        if first >= self.live[at].chain.ids.len() {
            return Ok(());
        }
        if let Some((ticket, _)) = self.publishing.front().filter(|_| self.publishing.len() >= PUBLISHES_MAX) {
            let completed = self.hand.channel.wait(*ticket, TIMEOUT)?;
            self.answered(completed);
        }
        let Live { seq, chain, .. } = &self.live[at];
        let level = [Level::Published, Level::Stored, Level::Stored, Level::Durable][self.random.below(4) as usize];
        let parent = first.checked_sub(1).map_or(0, |above| chain.hashes[above]);
        let request =
            Request::Publish { seq: *seq, first: first as u32, parent, hashes: &chain.hashes[first..], level };
        let ticket = self.hand.channel.submit(request, TIMEOUT, 0)?;
        self.publishing.push_back((ticket, chain.ids[first..].to_vec()));
        Ok(())
    }

    /// Publish a whole sequence, parts of which are already published.
    fn publish_all(&mut self) -> Result<(), Error> {
        let Some(at) = self.awake() else { return Ok(()) };
        self.publish(at, 0)
    }

    fn read(&mut self) -> Result<(), Error> {
        let Some(at) = self.awake() else { return Ok(()) };
        let Live { seq, chain, tail, .. } = &self.live[at];
        self.hand.read(*seq, &chain.hashes, *tail, |_| true)
    }

    fn fork(&mut self) -> Result<(), Error> {
        let Some(at) = self.awake().filter(|_| self.live.len() < LIVE_MAX) else { return Ok(()) };
        let seq = self.hand.channel.fork(self.live[at].seq, TIMEOUT)?;
        let Live { chain, tail, .. } = &self.live[at];
        self.live.push(Live { seq, chain: chain.clone(), tail: *tail, parked: false });
        Ok(())
    }

    fn park(&mut self) -> Result<(), Error> {
        let Some(at) = self.awake() else { return Ok(()) };
        let due = Duration::from_micros(self.random.below(2) * 20_000);
        self.hand.channel.park(self.live[at].seq, due)?;
        self.live[at].parked = true;
        Ok(())
    }

    fn resume(&mut self) -> Result<(), Error> {
        let Some(live) = self.live.iter_mut().find(|live| live.parked) else { return Ok(()) };
        self.hand.channel.resume(live.seq, TIMEOUT)?;
        live.parked = false;
        self.hand.read(live.seq, &live.chain.hashes, live.tail, |_| true)
    }

    fn drop_one(&mut self) -> Result<(), Error> {
        if self.live.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.live.len() as u64) as usize;
        let live = self.live.swap_remove(at);
        self.hand.channel.drop_seq(live.seq)
    }

    /// Free memory after a failure: drop cached state that others could use.
    fn make_room(&mut self) {
        for live in std::mem::take(&mut self.live) {
            if let Err(error) = self.hand.channel.drop_seq(live.seq) {
                self.seen.fail(&error);
            }
        }
    }

    /// Return a sequence that is not parked.
    fn awake(&mut self) -> Option<usize> {
        let awake: Vec<usize> = (0..self.live.len()).filter(|at| !self.live[*at].parked).collect();
        self.random.pick(&awake)
    }
}
