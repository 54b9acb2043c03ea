//! Which runs of a prefix a store holds. An answer is a hint: a run may be gone when it is read, or be there although it was not.
//!
//! Valkey drops the runs that were not used for longest, and a use of a prefix uses its first runs as well: mostly the last runs of a prefix
//! are missing. A bucket drops the oldest runs: mostly the first ones are missing, so a search always asks for the first. Other holes are
//! possible. A load stops at the first hole it meets.

use crate::endpoint::Endpoint;
use crate::name::RunName;
use crate::store::StoreError;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Runs asked for in one round of the search in a store that does not answer many questions at once.
const POINTS: usize = 8;

/// How long answers are believed, and how many are kept.
#[derive(Clone, Copy, Debug)]
pub struct PresenceConfig {
    /// Time for which a run is believed to be there. Less than the time after which the store deletes an unused run.
    pub present_ttl: Duration,
    /// Time for which a run is believed to be missing: another machine's run is found at the latest after it.
    pub absent_ttl: Duration,
    /// Maximum of answers kept, about 64 bytes each; at least 2.
    pub answers_max: usize,
}

impl Default for PresenceConfig {
    fn default() -> Self {
        Self { present_ttl: Duration::from_secs(60), absent_ttl: Duration::from_secs(5), answers_max: 1 << 20 }
    }
}

/// Answers of one store about its runs.
pub struct Presence {
    endpoint: Arc<Endpoint>,
    config: PresenceConfig,
    answers: Mutex<Answers>,
}

impl Presence {
    /// Begin without answers.
    pub fn new(endpoint: Arc<Endpoint>, config: PresenceConfig) -> Self {
        Self { endpoint, config, answers: Mutex::new(Answers::new(config.answers_max)) }
    }

    /// Return how many of the first `runs` of a prefix the store holds without a hole, as far as it was asked. Each item has the
    /// names of one run, one per shard; the run counts if every shard has it.
    ///
    /// A store that answers cheaply is asked for all runs at once. Another is searched, as if there were no holes: about
    /// log8(runs) rounds of at most 8 runs.
    ///
    /// # Errors
    ///
    /// The store's error. What was answered before it is kept.
    pub async fn longest(&self, runs: &[Vec<RunName>]) -> Result<usize, StoreError> {
        // The first `low` runs are there, and run `high`, if there is one, is not.
        let (mut low, mut high) = (0, runs.len());
        let points = if self.endpoint.asks_cheaply() { usize::MAX } else { POINTS };
        while low < high {
            let asked = spread(low, high, points);
            let present = self.ask(&asked.iter().map(|&run| &runs[run][..]).collect::<Vec<_>>()).await?;
            let first_absent = present.iter().position(|&present| !present);
            if let Some(first) = first_absent {
                high = asked[first];
            }
            let last_present = first_absent.unwrap_or(asked.len()).checked_sub(1);
            low = last_present.map_or(low, |last| asked[last] + 1);
        }
        Ok(low)
    }

    /// Note that a run is there, because it was written or read, or that it is not, because a read did not find it.
    pub fn note(&self, name: &RunName, present: bool) {
        self.remember(&mut self.lock(), name, present);
    }

    /// Return for each run whether all its shards have it. The store is asked only for runs without a recent answer.
    async fn ask(&self, runs: &[&[RunName]]) -> Result<Vec<bool>, StoreError> {
        let unknown: Vec<RunName> = {
            let (answers, now) = (self.lock(), Instant::now());
            // A shard known to be missing answers for its run.
            let open = runs.iter().filter(|run| run.iter().all(|name| answers.get(name, now) != Some(false)));
            open.flat_map(|run| run.iter()).filter(|name| answers.get(name, now).is_none()).cloned().collect()
        };
        let mut fresh = HashMap::with_capacity(unknown.len());
        if !unknown.is_empty() {
            let present = self.endpoint.present(&unknown).await?;
            let mut answers = self.lock();
            for (name, present) in unknown.iter().zip(present) {
                self.remember(&mut answers, name, present);
                fresh.insert(name.id(), present);
            }
        }
        // An answer of now counts even if the cache has no room for it.
        let (answers, now) = (self.lock(), Instant::now());
        let known = |name: &RunName| fresh.get(&name.id()).copied().or_else(|| answers.get(name, now));
        Ok(runs.iter().map(|run| run.iter().all(|name| known(name) == Some(true))).collect())
    }

    fn remember(&self, answers: &mut Answers, name: &RunName, present: bool) {
        let ttl = if present { self.config.present_ttl } else { self.config.absent_ttl };
        answers.insert(name, present, Instant::now() + ttl);
    }

    /// No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Choose at most `points` of the runs `low .. high`, evenly, the first always among them: it decides whether all others matter.
fn spread(low: usize, high: usize, points: usize) -> Vec<usize> {
    let points = points.min(high - low);
    (0..points).map(|i| low + i * (high - low) / points).collect()
}

/// Answers in two generations: when the young one is full, it becomes the old one, and the old one is dropped.
struct Answers {
    young: HashMap<u128, Answer>,
    old: HashMap<u128, Answer>,
    generation_max: usize,
}

#[derive(Clone, Copy)]
struct Answer {
    present: bool,
    until: Instant,
}

impl Answers {
    fn new(answers_max: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), generation_max: (answers_max / 2).max(1) }
    }

    fn get(&self, name: &RunName, now: Instant) -> Option<bool> {
        let answer = self.young.get(&name.id()).or_else(|| self.old.get(&name.id()))?;
        (now < answer.until).then_some(answer.present)
    }

    fn insert(&mut self, name: &RunName, present: bool, until: Instant) {
        if self.young.len() >= self.generation_max && !self.young.contains_key(&name.id()) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(name.id(), Answer { present, until });
    }
}

#[cfg(test)]
mod tests;
