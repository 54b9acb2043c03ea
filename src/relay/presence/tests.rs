//! Tests of presence against a plain set of names.

use super::*;
use crate::endpoint::EndpointConfig;
use crate::name::{SharedKey, SpaceKeys};
use crate::store::{Put, Store};
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::HashSet;
use std::ops::Range;

/// A store that knows names alone, and notes each question.
#[derive(Default)]
struct Set {
    names: Mutex<HashSet<RunName>>,
    cheap: bool,
    questions: Mutex<Vec<usize>>,
}

#[async_trait::async_trait]
impl Store for Set {
    fn endpoint(&self) -> &str {
        "set://"
    }
    fn asks_cheaply(&self) -> bool {
        self.cheap
    }
    async fn put_run(&self, _: &RunName, _: Bytes) -> Result<Put, StoreError> {
        unreachable!("presence does not write")
    }
    async fn get_run(&self, _: &RunName, _: Option<Range<u64>>) -> Result<Option<Bytes>, StoreError> {
        unreachable!("presence does not read")
    }
    async fn present(&self, names: &[RunName]) -> Result<Vec<bool>, StoreError> {
        self.questions.lock().unwrap().push(names.len());
        Ok(names.iter().map(|name| self.names.lock().unwrap().contains(name)).collect())
    }
    async fn delete(&self, _: &RunName) -> Result<(), StoreError> {
        unreachable!("presence does not delete")
    }
}

/// Names of `runs` runs with `shards` shards each.
fn runs(runs: usize, shards: u32) -> Vec<Vec<RunName>> {
    let keys: Vec<_> =
        (0..shards).map(|shard| SpaceKeys::new(&SharedKey::new([1; 32]), "d", &[2; 32], shard, false)).collect();
    (0..runs).map(|run| keys.iter().map(|keys| keys.run_name((0, 0), &[run as u128 + 1])).collect()).collect()
}

fn presence(cheap: bool, stored: &[Vec<RunName>], answers_max: usize) -> (Arc<Set>, Presence) {
    let names = stored.concat().into_iter().collect();
    let store = Arc::new(Set { names: Mutex::new(names), cheap, ..Set::default() });
    let endpoint = Arc::new(Endpoint::new(store.clone(), EndpointConfig::default()));
    (store, Presence::new(endpoint, PresenceConfig { answers_max, ..PresenceConfig::default() }))
}

fn questions(store: &Set) -> Vec<usize> {
    std::mem::take(&mut store.questions.lock().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_cheap_store_is_asked_once() {
    let runs = runs(100, 2);
    let (store, presence) = presence(true, &runs[..63], 1 << 20);
    assert_eq!(presence.longest(&runs).await.unwrap(), 63);
    assert_eq!(questions(&store), [200]);
    assert_eq!(presence.longest(&runs).await.unwrap(), 63);
    assert_eq!(questions(&store), [0; 0], "the answers are kept");
}

#[tokio::test(start_paused = true)]
async fn another_store_is_searched() {
    for stored in [0, 1, 7, 8, 500, 1_023, 1_024] {
        let runs = runs(1_024, 1);
        let (store, presence) = presence(false, &runs[..stored], 1 << 20);
        assert_eq!(presence.longest(&runs).await.unwrap(), stored);
        let questions = questions(&store);
        assert!(questions.len() <= 5 && questions.iter().all(|&names| names <= POINTS), "{stored}: {questions:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_counts_if_all_shards_have_it() {
    for cheap in [false, true] {
        let mut stored = runs(10, 4);
        stored[6].remove(2);
        let (_, presence) = presence(cheap, &stored, 1 << 20);
        assert_eq!(presence.longest(&runs(10, 4)).await.unwrap(), 6, "cheap {cheap}");
    }
}

#[tokio::test(start_paused = true)]
async fn answers_are_believed_for_a_while() {
    let (runs, config) = (runs(4, 1), PresenceConfig::default());
    let (store, presence) = presence(true, &runs[..2], 1 << 20);
    assert_eq!(presence.longest(&runs).await.unwrap(), 2);
    store.names.lock().unwrap().insert(runs[2][0].clone());
    assert_eq!(presence.longest(&runs).await.unwrap(), 2);
    tokio::time::advance(config.absent_ttl).await;
    questions(&store);
    assert_eq!(presence.longest(&runs).await.unwrap(), 3);
    assert_eq!(questions(&store), [2], "the two that were missing");
    store.names.lock().unwrap().clear();
    tokio::time::advance(config.absent_ttl).await;
    assert_eq!(presence.longest(&runs).await.unwrap(), 3);
    tokio::time::advance(config.present_ttl).await;
    assert_eq!(presence.longest(&runs).await.unwrap(), 0);
    // What a caller finds out counts as an answer.
    presence.note(&runs[0][0], true);
    assert_eq!(presence.longest(&runs[..1]).await.unwrap(), 1);
    presence.note(&runs[0][0], false);
    assert_eq!(presence.longest(&runs[..1]).await.unwrap(), 0);
}

#[test]
fn answers_are_bounded() {
    let now = Instant::now();
    let names = runs(1_000, 1).concat();
    let mut answers = Answers::new(100);
    for name in &names {
        answers.insert(name, true, now + Duration::from_secs(1));
        assert!(answers.young.len() + answers.old.len() <= 100);
        assert_eq!(answers.get(name, now), Some(true));
    }
    assert!(names[950..].iter().all(|name| answers.get(name, now) == Some(true)), "the last 50 at least");
}

proptest! {
    /// Against the plain set, with any holes: a cheap store gives the exact length; a search never passes a hole that it asked
    /// about, ends at a missing run, and is exact without holes. A cache of two answers changes nothing.
    #[test]
    fn the_longest_prefix(stored in proptest::collection::vec(any::<bool>(), 0..40), holes: bool, cheap: bool, small: bool) {
        let mut stored = stored;
        if !holes {
            stored.sort_by_key(|&there| !there);
        }
        let runs = runs(stored.len(), 2);
        let there: Vec<_> = runs.iter().zip(&stored).filter(|(_, there)| **there).map(|(run, _)| run.clone()).collect();
        let exact = stored.iter().take_while(|&&there| there).count();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let found = runtime.block_on(async {
            let (_, presence) = presence(cheap, &there, if small { 2 } else { 1 << 20 });
            presence.longest(&runs).await.unwrap()
        });
        if cheap || !holes {
            prop_assert_eq!(found, exact);
        }
        prop_assert!(found >= exact && (found == stored.len() || !stored[found]));
        prop_assert!(found == 0 || (stored[0] && stored[found - 1]));
    }
}
