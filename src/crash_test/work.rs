//! The load: threads that write, publish, map, read, fork, park and drop at random until the daemon is gone.

use super::content::{Book, Chain, Id};
use super::plan::{DEPTH_MAX, LIVE_MAX, Plan};
use super::random::Random;
use super::session::{Hand, TIMEOUT, WrongPage, attach};
use kvtide_client::{Client, Completed, Error, Outcome, Request, SeqId, Ticket};
use kvtide_wire::entry::Level;
use kvtide_wire::status::Status;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Publishes of one thread on their way at once.
const PUBLISHES_MAX: usize = 6;
/// Blocks that a sequence grows by at most.
const GROWTH_MAX: u64 = 4;

/// What one thread, or all of them, saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// Pages that were not what their hash says.
    pub wrong: Vec<WrongPage>,
    /// Calls that failed, by status.
    pub failed: BTreeMap<String, u64>,
    /// Of those, the ones that a healthy daemon must never answer with.
    pub broken: Vec<String>,
}

impl Seen {
    /// Adds what another saw.
    pub fn add(&mut self, other: Seen) {
        self.wrong.extend(other.wrong);
        for (status, count) in other.failed {
            *self.failed.entry(status).or_default() += count;
        }
        self.broken.extend(other.broken);
    }

    /// Counts a failure. A daemon that lives may be out of room or late; it loses nothing, and believes its engines.
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

/// A load: what all its threads share.
pub struct Load<'a> {
    pub plan: &'a Plan,
    pub book: &'a Book,
    pub socket: &'a Path,
    /// When it began.
    pub began: Instant,
    /// New blocks written so far.
    pub written: AtomicU64,
    /// When it ends though the daemon has not.
    pub until: Instant,
}

/// A sequence of one thread.
struct Live {
    seq: SeqId,
    chain: Chain,
    /// What the block behind the chain was begun with.
    tail: Option<u128>,
    parked: bool,
}

/// One thread at work.
struct Worker<'a> {
    load: &'a Load<'a>,
    hand: Hand,
    random: Random,
    live: Vec<Live>,
    /// Publishes on their way, oldest first, and what they are about.
    publishing: VecDeque<(Ticket, Vec<Id>)>,
    seen: Seen,
}

impl Load<'_> {
    /// One engine: attaches, and runs a thread a channel until the daemon is gone.
    pub fn engine(&self, mut random: Random, threads: u16) -> Seen {
        let mut seen = Seen::default();
        let client = match attach(self.plan, self.socket) {
            Ok(client) => client,
            // Killed before it had answered.
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
        // What the daemon had answered before it died counts: it was reported.
        worker.take_answers();
        worker.seen.wrong.append(&mut worker.hand.wrong);
        worker.seen
    }

    /// Takes room for new blocks: as many as the time that has passed allows.
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
        self.seen.broken.push("the daemon was not killed, or calls did not end with it".into());
    }

    /// Takes the ends of publishes, and tells the book.
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

    /// A sequence over a new chain, or over one that may be cached.
    fn begin(&mut self) -> Result<(), Error> {
        if self.live.len() >= LIVE_MAX {
            return self.drop_one();
        }
        let known = if self.random.one_in(3) { None } else { self.load.book.chain(&mut self.random) };
        let chain = known.unwrap_or_default();
        let seq = self.hand.channel.seq_create()?;
        self.live.push(Live { seq, chain: Chain::default(), tail: None, parked: false });
        let mut cached = 0;
        // Now and then it computes what is cached, as an engine does that did not look.
        if !chain.ids.is_empty() && !self.random.one_in(8) {
            cached = self.hand.channel.map(seq, &chain.hashes, TIMEOUT)?;
        }
        self.extend(self.live.len() - 1, chain, cached)
    }

    fn grow(&mut self) -> Result<(), Error> {
        let Some(at) = self.awake() else { return Ok(()) };
        let chain = self.live[at].chain.clone();
        let cached = chain.ids.len();
        self.extend(at, chain, cached)
    }

    /// Lets a sequence hold `chain`, of which it has the first `cached` blocks, and new blocks behind; publishes what it wrote.
    fn extend(&mut self, at: usize, mut chain: Chain, cached: usize) -> Result<(), Error> {
        let wanted = (1 + self.random.below(GROWTH_MAX)).min((DEPTH_MAX - chain.ids.len()) as u64);
        let room = self.load.take(wanted) as usize;
        self.load.book.grow(&mut chain, room, &mut self.random);
        if chain.ids.len() == cached && self.live[at].tail.is_some() {
            return Ok(()); // nothing to write: its tail is begun already
        }
        let tail = self.random.one_in(3).then(|| u128::from(self.random.next()));
        self.hand.write(self.live[at].seq, &chain, cached, tail)?;
        (self.live[at].chain, self.live[at].tail) = (chain, tail);
        self.publish(at, cached)
    }

    /// Publishes a sequence's blocks from index `first` on.
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

    /// Asks for a level for a whole sequence, of which parts have one.
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
        self.hand.channel.seq_drop(live.seq)
    }

    /// After a refusal: whatever the sequence at fault holds, and what others could use, is given up.
    fn make_room(&mut self) {
        for live in std::mem::take(&mut self.live) {
            if let Err(error) = self.hand.channel.seq_drop(live.seq) {
                self.seen.fail(&error);
            }
        }
    }

    /// A sequence that is not parked.
    fn awake(&mut self) -> Option<usize> {
        let awake: Vec<usize> = (0..self.live.len()).filter(|at| !self.live[*at].parked).collect();
        self.random.pick(&awake)
    }
}
