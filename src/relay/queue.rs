//! Work of a space's copiers: recalls first, because engines wait for them, then prefixes that somebody waits to be copied out, then runs to
//! copy to the store.
//!
//! A run waits while the store is not used or the budget is used up, and again if the store failed. Under a budget, runs of long
//! prefixes go first: their blocks cost the most to compute. A prefix goes front to back, because a run behind a hole is of no use.

use crate::run::BlockKey;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Runs that wait to be copied out; the next use of a prefix asks again for those that found no room.
const RUNS_MAX: usize = 4096;
/// Recalls that wait, and the hashes of all of them: 64 MiB.
const RECALLS_MAX: usize = 1024;
const HASHES_MAX: usize = 4 << 20;
/// Maximum time between two looks whether the first run may go: another space may have used the store meanwhile.
const LOOK: Duration = Duration::from_millis(500);

/// One piece of work.
#[derive(Debug)]
pub enum Job {
    /// Copy a run to the store.
    CopyOut(Outgoing),
    /// Bring a prefix in.
    BringIn(Recall),
    /// Copy a prefix out now.
    Share(Share),
}

/// A run to copy to the store.
#[derive(Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Its blocks.
    pub run: Vec<BlockKey>,
    /// Times that the store failed to take it while it took others.
    pub tries: u32,
    /// Runs that the store had taken when it failed to take this one.
    pub taken_before: u64,
    place: Place,
}

/// Place in the queue; the smallest is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// Blocks of the prefix, under a budget.
    blocks: Reverse<u32>,
    /// Number of the request to copy the prefix.
    request: u64,
    /// Index of the first block.
    first: u32,
}

/// A prefix to bring in.
#[derive(Debug)]
pub struct Recall {
    /// Hashes of its blocks, from the first on.
    pub hashes: Vec<u128>,
    /// The answer is of no use later. What was brought in until then stays.
    pub until: Instant,
    /// An engine waits for it: if its answer is not needed any more, it ends. Others give way to engines' recalls, and go on without an
    /// asker.
    pub of_engine: bool,
    /// Another machine is about to have the store have it: cached answers are of no use.
    pub fresh: bool,
    /// Receives how many blocks will be cached, and when, once the store has answered which it has.
    pub expected: Option<oneshot::Sender<Expected>>,
    /// Receives what came of it.
    pub done: oneshot::Sender<Outcome>,
}

/// What came of a recall or a share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Blocks of the prefix that are there now: in the daemon, or in the store if it was shared.
    pub blocks: usize,
    /// Those that a recall brought from the store.
    pub brought: usize,
    /// Why the others are not there.
    pub missing: Option<&'static str>,
}

impl Recall {
    /// Return whether its answer is of no use any more.
    pub fn is_over(&self) -> bool {
        self.until <= Instant::now() || (self.of_engine && self.done.is_closed())
    }
}

/// Expected result of a recall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Blocks of the prefix that will be cached.
    pub blocks: usize,
    /// Time until they are; `None` without a measurement.
    pub within: Option<Duration>,
}

/// A cached prefix to copy to the store now.
#[derive(Debug)]
pub struct Share {
    /// Hashes of its blocks, from the first on.
    pub hashes: Vec<u128>,
    /// The store has this many of them already.
    pub there: usize,
    /// The answer is of no use later.
    pub until: Instant,
    /// Receives what came of it.
    pub done: oneshot::Sender<Outcome>,
}

/// Last hash and number of blocks of a run.
pub type End = (u128, usize);

fn end_of(run: &[BlockKey]) -> End {
    (run.last().map_or(0, |last| last.hash), run.len())
}

#[derive(Debug, Default)]
struct Waiting {
    recalls: VecDeque<Recall>,
    /// Recalls that give way.
    patient: VecDeque<Recall>,
    shares: VecDeque<Share>,
    runs: BTreeMap<Place, Outgoing>,
    places: HashMap<End, Place>,
    requests: u64,
    over: bool,
}

impl Waiting {
    /// Add a run. Return the one that has no room, if any: the oldest one, or the one that would go last.
    fn add(&mut self, outgoing: Outgoing, drops_oldest: bool) -> Option<Vec<BlockKey>> {
        self.places.insert(end_of(&outgoing.run), outgoing.place);
        self.runs.insert(outgoing.place, outgoing);
        if self.runs.len() <= RUNS_MAX {
            return None;
        }
        let (_, dropped) = if drops_oldest { self.runs.pop_first() } else { self.runs.pop_last() }?;
        self.places.remove(&end_of(&dropped.run));
        Some(dropped.run)
    }

    fn take_first(&mut self) -> Option<Outgoing> {
        let (_, outgoing) = self.runs.pop_first()?;
        self.places.remove(&end_of(&outgoing.run));
        Some(outgoing)
    }
}

/// The work of one space.
#[derive(Debug, Default)]
pub struct Queue {
    /// Long prefixes go first, and a full queue drops the shortest.
    by_length: bool,
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Queue {
    /// Create a queue, `by_length` if long prefixes are to go first.
    pub fn new(by_length: bool) -> Queue {
        Queue { by_length, ..Queue::default() }
    }

    /// Add runs of a prefix of `blocks` blocks. `others` are its other runs: those that wait for a shorter prefix take the place of
    /// this one. `store_fails`: a full queue drops the oldest runs, whose blocks go first from the daemon's cache. Return the runs that
    /// have no room.
    pub fn copy_out(
        &self,
        blocks: u32,
        runs: Vec<Vec<BlockKey>>,
        others: &[End],
        store_fails: bool,
    ) -> Vec<Vec<BlockKey>> {
        let mut waiting = self.lock();
        if waiting.over {
            return runs;
        }
        let (blocks, request) = (Reverse(if self.by_length { blocks } else { 0 }), waiting.requests);
        waiting.requests += 1;
        let ends = runs.iter().map(|run| end_of(run));
        // A run may wait already, although it is new: the cache was listed again.
        let known: Vec<Place> =
            ends.chain(others.iter().copied()).filter_map(|end| waiting.places.get(&end).copied()).collect();
        for old in known {
            let place = Place { blocks, request, first: old.first };
            if self.by_length
                && place < old
                && let Some(outgoing) = waiting.runs.remove(&old)
            {
                waiting.add(Outgoing { place, ..outgoing }, false);
            }
        }
        let (mut dropped, has_none) = (Vec::new(), runs.is_empty());
        for run in runs {
            if !waiting.places.contains_key(&end_of(&run)) {
                let place = Place { blocks, request, first: run.first().map_or(0, |first| first.index) };
                dropped.extend(
                    waiting
                        .add(Outgoing { run, tries: 0, taken_before: u64::MAX, place }, store_fails && !self.by_length),
                );
            }
        }
        if !has_none {
            self.changed.notify_all();
        }
        dropped
    }

    /// Put a run back that the store did not take. Return the one that has no room.
    pub fn again(&self, outgoing: Outgoing) -> Option<Vec<BlockKey>> {
        let mut waiting = self.lock();
        if waiting.over || waiting.places.contains_key(&end_of(&outgoing.run)) {
            return None;
        }
        let dropped = waiting.add(outgoing, !self.by_length);
        self.changed.notify_one();
        dropped
    }

    /// Add a recall. Without room it is dropped, which its sender notices.
    pub fn bring_in(&self, recall: Recall) {
        let mut waiting = self.lock();
        let is_over = waiting.over;
        let list = if recall.of_engine { &mut waiting.recalls } else { &mut waiting.patient };
        let hashes: usize = list.iter().map(|recall| recall.hashes.len()).sum();
        if !is_over && list.len() < RECALLS_MAX && hashes + recall.hashes.len() <= HASHES_MAX {
            list.push_back(recall);
            self.changed.notify_one();
        }
    }

    /// Return whether an engine's recall waits.
    pub fn has_urgent(&self) -> bool {
        !self.lock().recalls.is_empty()
    }

    /// Add a prefix to copy out now. Without room it is dropped, which its sender notices.
    pub fn share(&self, share: Share) {
        let mut waiting = self.lock();
        let hashes: usize = waiting.shares.iter().map(|share| share.hashes.len()).sum();
        if !waiting.over && waiting.shares.len() < RECALLS_MAX && hashes + share.hashes.len() <= HASHES_MAX {
            waiting.shares.push_back(share);
            self.changed.notify_one();
        }
    }

    /// Wait for the next job. `None`: it is over. `may_go` says how long the first run has to wait.
    pub fn take(&self, may_go: impl Fn(&[BlockKey]) -> Result<(), Duration>) -> Option<Job> {
        let mut waiting = self.lock();
        loop {
            if waiting.over {
                return None;
            }
            if let Some(recall) = waiting.recalls.pop_front() {
                return Some(Job::BringIn(recall));
            }
            if let Some(recall) = waiting.patient.pop_front() {
                return Some(Job::BringIn(recall));
            }
            if let Some(share) = waiting.shares.pop_front() {
                return Some(Job::Share(share));
            }
            waiting = match waiting.runs.first_key_value().map(|(_, first)| may_go(&first.run)) {
                Some(Ok(())) => return waiting.take_first().map(Job::CopyOut),
                Some(Err(wait)) => {
                    self.changed.wait_timeout(waiting, wait.min(LOOK)).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// End all waits; drop what waits.
    pub fn end(&self) {
        let mut waiting = self.lock();
        *waiting = Waiting { over: true, ..Waiting::default() };
        self.changed.notify_all();
    }

    /// Return whether it is over.
    pub fn is_over(&self) -> bool {
        self.lock().over
    }

    /// Return the number of runs and recalls that wait.
    pub fn len(&self) -> (usize, usize) {
        let waiting = self.lock();
        (waiting.runs.len(), waiting.recalls.len() + waiting.patient.len())
    }

    /// No code panics while it holds the lock; if one did, the data would still be whole.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recall(hash: u128, done: oneshot::Sender<Outcome>) -> Recall {
        Recall { hashes: vec![hash], until: Instant::now(), of_engine: true, fresh: false, expected: None, done }
    }

    /// A run of one block.
    fn run(hash: u128, index: u32) -> Vec<BlockKey> {
        vec![BlockKey { hash, parent: 0, index }]
    }

    fn go(_: &[BlockKey]) -> Result<(), Duration> {
        Ok(())
    }

    fn hash(job: Option<Job>) -> u128 {
        let Some(Job::CopyOut(outgoing)) = job else { panic!("a run waits") };
        outgoing.run[0].hash
    }

    #[test]
    fn recalls_come_first_and_an_end_ends_all_waits() {
        let queue = std::sync::Arc::new(Queue::default());
        assert!(queue.copy_out(1, vec![run(1, 0)], &[], false).is_empty());
        let (shared, _) = oneshot::channel();
        queue.share(Share { hashes: vec![6], there: 0, until: Instant::now(), done: shared });
        let (done, mut asked) = oneshot::channel();
        queue.bring_in(recall(7, done));
        let Some(Job::BringIn(recalled)) = queue.take(go) else { panic!("a recall waits") };
        let came = Outcome { blocks: 1, ..Outcome::default() };
        recalled.done.send(came).unwrap();
        assert_eq!(asked.try_recv(), Ok(came));
        assert!(matches!(queue.take(go), Some(Job::Share(share)) if share.hashes == [6]));
        assert_eq!(hash(queue.take(go)), 1);
        let waits = {
            let queue = queue.clone();
            std::thread::spawn(move || queue.take(go).is_none())
        };
        let (done, mut asked) = oneshot::channel();
        queue.end();
        queue.bring_in(recall(8, done));
        assert!(waits.join().unwrap() && queue.copy_out(1, vec![run(1, 0)], &[], false).len() == 1);
        assert!(asked.try_recv().is_err(), "the sender of a recall notices that it was dropped");
    }

    #[test]
    fn what_waits_is_bounded() {
        let queue = Queue::default();
        let most = RUNS_MAX as u128;
        (0..most).for_each(|hash| assert!(queue.copy_out(1, vec![run(hash, 0)], &[], false).is_empty()));
        assert!(queue.copy_out(1, vec![run(0, 0)], &[], false).is_empty(), "it waits already");
        assert_eq!(queue.copy_out(1, vec![run(most, 0)], &[], false), [run(most, 0)], "the newest one");
        assert_eq!(
            queue.copy_out(1, vec![run(most, 0)], &[], true),
            [run(0, 0)],
            "the oldest one while the store fails"
        );
        assert_eq!(queue.len(), (RUNS_MAX, 0));
    }

    #[test]
    fn long_prefixes_go_first_under_a_budget_and_each_front_to_back() {
        let queue = Queue::new(true);
        queue.copy_out(2, vec![run(1, 0), run(2, 1)], &[], false);
        queue.copy_out(3, vec![run(21, 1), run(20, 0), run(22, 2)], &[], false);
        // It begins as the first one does: that run goes with it.
        queue.copy_out(4, vec![run(32, 2), run(33, 3)], &[(1, 1), (99, 1)], false);
        let order: Vec<u128> = (0..7).map(|_| hash(queue.take(go))).collect();
        assert_eq!(order, [1, 32, 33, 20, 21, 22, 2]);
        (0..RUNS_MAX as u128).for_each(|hash| drop(queue.copy_out(5, vec![run(hash, 0)], &[], true)));
        assert_eq!(
            queue.copy_out(9, vec![run(5000, 0)], &[], true),
            [run(RUNS_MAX as u128 - 1, 0)],
            "the shortest one"
        );
        assert_eq!(queue.copy_out(4, vec![run(5001, 0)], &[], true), [run(5001, 0)]);
    }

    #[test]
    fn a_run_waits_until_it_may_go_and_keeps_its_place_when_it_comes_back() {
        let queue = Queue::default();
        queue.copy_out(2, vec![run(1, 0), run(2, 1)], &[], false);
        let Some(Job::CopyOut(first)) = queue.take(go) else { panic!("a run waits") };
        queue.again(Outgoing { tries: 1, ..first });
        let refusals = std::cell::Cell::new(3);
        let may_go = |_: &[BlockKey]| match refusals.get() {
            0 => Ok(()),
            left => {
                refusals.set(left - 1);
                Err(Duration::from_millis(1))
            }
        };
        let Some(Job::CopyOut(first)) = queue.take(may_go) else { panic!("a run waits") };
        assert_eq!((first.run[0].hash, first.tries, refusals.get()), (1, 1, 0));
        assert_eq!(hash(queue.take(go)), 2);
        // A recall does not wait for runs.
        queue.again(first);
        let (done, _asked) = oneshot::channel();
        queue.bring_in(recall(7, done));
        assert!(matches!(queue.take(|_| Err(LOOK)), Some(Job::BringIn(_))));
    }
}
