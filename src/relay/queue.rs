//! Work of a space's copiers: recalls first, because engines wait for them, then prefixes that somebody waits to be copied out.

use crate::run::BlockKey;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Runs that wait to be copied out. What comes later is not copied; the next use of its prefix asks again.
const RUNS_MAX: usize = 4096;
/// Recalls that wait, and the hashes of all of them: 64 MiB.
const RECALLS_MAX: usize = 1024;
const HASHES_MAX: usize = 4 << 20;

/// One piece of work.
#[derive(Debug)]
pub enum Job {
    /// Copy a run to the store.
    CopyOut(Vec<BlockKey>),
    /// Bring a prefix in.
    BringIn(Recall),
    /// Copy a prefix out now.
    Share(Share),
}

/// A prefix to bring in.
#[derive(Debug)]
pub struct Recall {
    /// Hashes of its blocks, from the first on.
    pub hashes: Vec<u128>,
    /// The answer is of no use later. What was brought in until then stays.
    pub until: Instant,
    /// Receives how many blocks will be cached, and when, once the store has said which it has.
    pub expected: Option<oneshot::Sender<Expected>>,
    /// Receives how many of its blocks are cached in the daemon afterwards.
    pub done: oneshot::Sender<usize>,
}

/// What a recall will bring.
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
    /// The answer is of no use later.
    pub until: Instant,
    /// Receives how many of its blocks the store has afterwards, from the first on.
    pub done: oneshot::Sender<usize>,
}

#[derive(Debug, Default)]
struct Waiting {
    recalls: VecDeque<Recall>,
    shares: VecDeque<Share>,
    runs: VecDeque<Vec<BlockKey>>,
    over: bool,
}

/// The work of one space.
#[derive(Debug, Default)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Queue {
    /// Add a run to copy out. Return it if there is no room.
    pub fn copy_out(&self, run: Vec<BlockKey>) -> Result<(), Vec<BlockKey>> {
        let mut waiting = self.lock();
        if waiting.over || waiting.runs.len() == RUNS_MAX {
            return Err(run);
        }
        waiting.runs.push_back(run);
        self.changed.notify_one();
        Ok(())
    }

    /// Add a recall. Without room it is dropped, which its sender notices.
    pub fn bring_in(&self, recall: Recall) {
        let mut waiting = self.lock();
        let hashes: usize = waiting.recalls.iter().map(|recall| recall.hashes.len()).sum();
        let fits = waiting.recalls.len() < RECALLS_MAX && hashes + recall.hashes.len() <= HASHES_MAX;
        if !waiting.over && fits {
            waiting.recalls.push_back(recall);
            self.changed.notify_one();
        }
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

    /// Wait for the next job. `None`: it is over.
    pub fn take(&self) -> Option<Job> {
        let mut waiting = self.lock();
        loop {
            if waiting.over {
                return None;
            }
            if let Some(recall) = waiting.recalls.pop_front() {
                return Some(Job::BringIn(recall));
            }
            if let Some(share) = waiting.shares.pop_front() {
                return Some(Job::Share(share));
            }
            if let Some(run) = waiting.runs.pop_front() {
                return Some(Job::CopyOut(run));
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
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
        (waiting.runs.len(), waiting.recalls.len())
    }

    /// No code panics while it holds the lock; if one did, the data would still be whole.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recall(hash: u128, done: oneshot::Sender<usize>) -> Recall {
        Recall { hashes: vec![hash], until: Instant::now(), expected: None, done }
    }

    #[test]
    fn recalls_come_first_and_an_end_ends_all_waits() {
        let queue = std::sync::Arc::new(Queue::default());
        let run = vec![BlockKey { hash: 1, parent: 0, index: 0 }];
        queue.copy_out(run.clone()).unwrap();
        let (shared, _) = oneshot::channel();
        queue.share(Share { hashes: vec![6], until: Instant::now(), done: shared });
        let (done, mut asked) = oneshot::channel();
        queue.bring_in(recall(7, done));
        let Some(Job::BringIn(recall)) = queue.take() else { panic!("a recall waits") };
        recall.done.send(1).unwrap();
        assert_eq!(asked.try_recv(), Ok(1));
        assert!(matches!(queue.take(), Some(Job::Share(share)) if share.hashes == [6]));
        assert!(matches!(queue.take(), Some(Job::CopyOut(taken)) if taken == run));
        let waits = {
            let queue = queue.clone();
            std::thread::spawn(move || queue.take().is_none())
        };
        let (done, mut asked) = oneshot::channel();
        queue.end();
        queue.bring_in(recall(8, done));
        assert!(waits.join().unwrap() && queue.copy_out(run).is_err());
        assert!(asked.try_recv().is_err(), "the sender of a recall notices that it was dropped");
    }

    #[test]
    fn what_waits_is_bounded() {
        let queue = Queue::default();
        let run = || vec![BlockKey { hash: 1, parent: 0, index: 0 }];
        (0..RUNS_MAX).for_each(|_| queue.copy_out(run()).unwrap());
        assert_eq!(queue.copy_out(run()), Err(run()));
        assert_eq!(queue.len(), (RUNS_MAX, 0));
    }
}
