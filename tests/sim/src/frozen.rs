//! Hashes of the simulator's runs. A change that must not alter behaviour leaves them unchanged.

use crate::base::mix;
use crate::episode;
use crate::run::episode_seed;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Episodes per hash: few enough to find the one that differs by hand.
pub const GROUP: u64 = 10;

/// Return the hashes of the first `groups` times [`GROUP`] episodes of a run, in order: over all events, or over the place and kind of
/// a failure.
#[must_use]
pub fn hashes(seed: u64, groups: u64, threads: usize) -> Vec<u64> {
    let next = AtomicU64::new(0);
    let hashes = Mutex::new(vec![0; usize::try_from(groups).unwrap_or(0)]);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let group = next.fetch_add(1, Ordering::Relaxed);
                    if group >= groups {
                        break;
                    }
                    let episodes = group * GROUP..(group + 1) * GROUP;
                    let hash = episodes.fold(0, |hash, index| mix(hash, one(episode_seed(seed, index))));
                    hashes.lock().expect("no holder panics")[group as usize] = hash;
                }
            });
        }
    });
    hashes.into_inner().expect("no holder panics")
}

/// Return the hash of one episode.
fn one(seed: u64) -> u64 {
    let words = match episode::run(seed, None, false) {
        Ok(report) => [report.hash, report.ops, report.events],
        Err(failure) => [failure.caught as u64, failure.ops, failure.at_us],
    };
    words.into_iter().fold(seed, mix)
}
