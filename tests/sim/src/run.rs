//! Many episodes: a run of a number of operations, and the hunt for a mutant.

use crate::base::mix;
use crate::coverage::Coverage;
use crate::episode::{self, Report};
use crate::failure::Failure;
use crate::mutant::Mutant;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Summary of a run.
#[derive(Debug, Default)]
pub struct Summary {
    /// Operations: requests and steps.
    pub ops: u64,
    /// Episodes.
    pub episodes: u64,
    /// Simulated events.
    pub events: u64,
    /// Counts of events.
    pub coverage: Coverage,
}

impl Summary {
    fn add(&mut self, report: &Report) {
        self.ops += report.ops;
        self.events += report.events;
        self.episodes += 1;
        self.coverage.add(&report.coverage);
    }
}

/// Return the seed of episode `index` of a run.
#[must_use]
pub fn episode_seed(seed: u64, index: u64) -> u64 {
    // Mixed twice, so that runs of neighbouring seeds share no episodes.
    mix(mix(0, seed), index) >> 16
}

/// Run episodes derived from `seed` on `threads` threads until they sum to `ops` operations, or until one fails.
///
/// # Errors
/// The failed episode, replayed for its last events.
pub fn run(seed: u64, ops: u64, threads: usize, progress: &(dyn Fn(&Summary) + Sync)) -> Result<Summary, Box<Failure>> {
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let summary = Mutex::new(Summary::default());
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seed = episode_seed(seed, next.fetch_add(1, Ordering::Relaxed));
                    match episode::run(seed, None, false) {
                        Ok(report) => {
                            let mut summary = summary.lock().expect("no holder panics");
                            summary.add(&report);
                            progress(&summary);
                            stop.fetch_or(summary.ops >= ops, Ordering::Relaxed);
                        }
                        Err(failed) => {
                            stop.store(true, Ordering::Relaxed);
                            failure.lock().expect("no holder panics").get_or_insert(failed);
                        }
                    }
                }
            });
        }
    });
    match failure.into_inner().expect("no holder panics") {
        Some(failed) => Err(explain(&failed)),
        None => Ok(summary.into_inner().expect("no holder panics")),
    }
}

/// Run every episode until they sum to `ops` operations, despite failures. Return the failures, in order of their episodes, and the
/// summary of the other episodes.
#[must_use]
pub fn survey(seed: u64, ops: u64) -> (Vec<Failure>, Summary) {
    let (mut failures, mut summary) = (Vec::new(), Summary::default());
    let mut done = 0;
    for index in 0.. {
        match episode::run(episode_seed(seed, index), None, false) {
            Ok(report) => {
                done += report.ops;
                summary.add(&report);
            }
            Err(failure) => {
                done += failure.ops;
                failures.push(*failure);
            }
        }
        if done >= ops {
            break;
        }
    }
    (failures, summary)
}

/// Replay a failed episode for its last events.
#[must_use]
pub fn explain(failed: &Failure) -> Box<Failure> {
    match episode::run(failed.seed, failed.mutant, true) {
        Err(again) => again,
        // Must not happen: the same seed took another course. The first report mentions it.
        Ok(_) => Box::new(Failure { detail: format!("{} (and its replay passed!)", failed.detail), ..failed.clone() }),
    }
}

/// Hunt a mutant for at most `ops` operations. Return the failure that revealed it and the operations until then. An episode that
/// also fails without the mutant reveals nothing.
#[must_use]
pub fn hunt(seed: u64, mutant: Mutant, ops: u64) -> (Option<Box<Failure>>, u64) {
    let mut done = 0;
    for index in 0.. {
        match episode::run(episode_seed(seed, index), Some(mutant), false) {
            Ok(report) => done += report.ops,
            Err(failure) if episode::run(failure.seed, None, false).is_ok() => {
                return (Some(failure.clone()), done + failure.ops);
            }
            Err(failure) => done += failure.ops,
        }
        if done >= ops {
            break;
        }
    }
    (None, done)
}
