//! Blocks dropped in the last hour because of `bytes_per_day`, or because stores exceeded the disks' write rate.

use super::endurance::Bounds;
use crate::space::SpaceStatus;
use kvtide_nvme::DiskStatus;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Period that the figures cover.
const WINDOW: Duration = Duration::from_secs(3600);
/// Resolution of that period.
const STEP: Duration = Duration::from_secs(60);
/// Losses up to this percentage of the requested bytes count as bursts and do not degrade the daemon.
const SHORT_PERCENT: u64 = 1;

/// Totals of one space, or of all spaces, within the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spent {
    /// Uses of cached or published blocks.
    pub uses: u64,
    /// Bytes written to NVMe.
    pub written_bytes: u64,
    /// Blocks dropped unwritten because of `bytes_per_day`.
    pub over_budget_blocks: u64,
    /// Their bytes.
    pub over_budget_bytes: u64,
    /// Blocks dropped before they were written to NVMe.
    pub unwritten_blocks: u64,
    /// Their bytes.
    pub unwritten_bytes: u64,
}

/// State of the write budget.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WriteBudget {
    /// Bytes a day over all disks in service; `None` if one of them has no limit.
    pub bytes_per_day: Option<u64>,
    /// Seconds that the figures cover: an hour, or less after the start or a change of `bytes_per_day`.
    pub window_s: f64,
    /// Total of all spaces.
    pub all: Spent,
    /// Total of each space.
    pub spaces: BTreeMap<u32, Spent>,
}

impl WriteBudget {
    /// Return true if the bytes dropped over budget exceed [`SHORT_PERCENT`].
    pub fn is_short(&self) -> bool {
        let Spent { written_bytes, over_budget_bytes, .. } = self.all;
        self.bytes_per_day.is_some() && over_budget_bytes * 100 > (written_bytes + over_budget_bytes) * SHORT_PERCENT
    }

    /// Return true if stores exceeded the disks' write rate: the bytes dropped unwritten exceed [`SHORT_PERCENT`].
    pub fn is_outrun(&self) -> bool {
        let Spent { written_bytes, unwritten_bytes, .. } = self.all;
        unwritten_bytes * 100 > (written_bytes + unwritten_bytes) * SHORT_PERCENT
    }
}

/// Totals of the last hour, in steps.
#[derive(Debug)]
pub(super) struct Recent {
    /// Begin of the figures.
    since: Instant,
    bytes_per_day: Option<u64>,
    /// Counters of each space at the last reading.
    last: BTreeMap<u32, Spent>,
    steps: VecDeque<(Instant, BTreeMap<u32, Spent>)>,
}

impl Recent {
    pub fn new(now: Instant) -> Recent {
        Recent { since: now, bytes_per_day: None, last: BTreeMap::new(), steps: VecDeque::new() }
    }

    /// Read the counters of all spaces and return the totals of the window. A space that does not answer is counted when it does.
    pub fn look(
        &mut self,
        now: Instant,
        spaces: &[SpaceStatus],
        disks: &[DiskStatus],
        bounds: impl Fn(u16) -> Bounds,
    ) -> WriteBudget {
        let serving = disks.iter().filter(|disk| disk.out_of_service.is_none() && disk.regions > 0);
        let bounds: Vec<Option<u64>> = serving.map(|disk| bounds(disk.number).bytes_per_day).collect();
        let bytes_per_day = match bounds.is_empty() {
            true => None,
            false => bounds.into_iter().sum(),
        };
        let counted = spaces.iter().map(|space| (space.space, counted(space)));
        self.take(now, counted, bytes_per_day)
    }

    fn take(
        &mut self,
        now: Instant,
        counted: impl Iterator<Item = (u32, Spent)>,
        bytes_per_day: Option<u64>,
    ) -> WriteBudget {
        let more = counted.map(|(space, so_far)| (space, so_far.since(self.last.insert(space, so_far))));
        let more: Vec<(u32, Spent)> = more.collect();
        if self.bytes_per_day != bytes_per_day {
            // Losses under another budget do not count for this one.
            self.steps.clear();
            (self.bytes_per_day, self.since) = (bytes_per_day, now);
        } else {
            if self.steps.back().is_none_or(|(begun, _)| now.duration_since(*begun) >= STEP) {
                self.steps.push_back((now, BTreeMap::new()));
            }
            if let Some((_, step)) = self.steps.back_mut() {
                more.into_iter().for_each(|(space, spent)| step.entry(space).or_default().add(spent));
            }
        }
        while self.steps.front().is_some_and(|(begun, _)| now.duration_since(*begun) >= WINDOW) {
            self.steps.pop_front();
        }
        let mut budget = WriteBudget {
            bytes_per_day,
            window_s: now.duration_since(self.since).min(WINDOW).as_secs_f64(),
            ..WriteBudget::default()
        };
        for (&space, &spent) in self.steps.iter().flat_map(|(_, step)| step) {
            budget.all.add(spent);
            budget.spaces.entry(space).or_default().add(spent);
        }
        budget
    }

    /// Drop the counters of spaces that have ended; their totals stay in the window.
    pub fn forget(&mut self, lives: impl Fn(u32) -> bool) {
        self.last.retain(|space, _| lives(*space));
    }
}

fn counted(space: &SpaceStatus) -> Spent {
    let core = &space.core;
    Spent {
        uses: space.eviction.uses,
        written_bytes: core.nvme_bytes_admitted + core.nvme_bytes_forced,
        over_budget_blocks: core.over_budget_drops,
        over_budget_bytes: core.over_budget_drop_bytes,
        unwritten_blocks: core.unwritten_drops,
        unwritten_bytes: core.unwritten_drop_bytes,
    }
}

impl Spent {
    fn since(self, before: Option<Spent>) -> Spent {
        let before = before.unwrap_or_default();
        Spent {
            uses: self.uses.saturating_sub(before.uses),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
            over_budget_blocks: self.over_budget_blocks.saturating_sub(before.over_budget_blocks),
            over_budget_bytes: self.over_budget_bytes.saturating_sub(before.over_budget_bytes),
            unwritten_blocks: self.unwritten_blocks.saturating_sub(before.unwritten_blocks),
            unwritten_bytes: self.unwritten_bytes.saturating_sub(before.unwritten_bytes),
        }
    }

    fn add(&mut self, more: Spent) {
        self.uses += more.uses;
        self.written_bytes += more.written_bytes;
        self.over_budget_blocks += more.over_budget_blocks;
        self.over_budget_bytes += more.over_budget_bytes;
        self.unwritten_blocks += more.unwritten_blocks;
        self.unwritten_bytes += more.unwritten_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spent(written_bytes: u64, over_budget_blocks: u64) -> Spent {
        Spent {
            uses: over_budget_blocks,
            written_bytes,
            over_budget_blocks,
            over_budget_bytes: over_budget_blocks * 10,
            ..Spent::default()
        }
    }

    #[test]
    fn losses_count_for_an_hour_and_those_of_spaces_that_ended_too() {
        let begun = Instant::now();
        let at = |minutes: u64| begun + Duration::from_secs(60 * minutes);
        let mut recent = Recent::new(begun);
        let day = Some(24);
        recent.take(begun, std::iter::empty(), day);
        recent.take(at(1), [(1, spent(50, 3)), (2, spent(0, 1))].into_iter(), day);
        let now = recent.take(at(30), [(1, spent(60, 5))].into_iter(), day);
        assert_eq!((now.all, now.spaces[&1], now.spaces[&2]), (spent(60, 6), spent(60, 5), spent(0, 1)));
        assert!(now.is_short() && (now.window_s, now.bytes_per_day) == (1800.0, day), "{now:?}");
        recent.forget(|space| space != 2);
        assert_eq!(recent.take(at(59), std::iter::empty(), day).all, spent(60, 6));
        let later = recent.take(at(61), [(1, spent(61, 5))].into_iter(), day);
        assert_eq!((later.all, later.window_s), (spent(11, 2), 3600.0));
        let gone = recent.take(at(122), [(1, spent(161, 5))].into_iter(), day);
        assert_eq!((gone.all, gone.is_short()), (spent(100, 0), false));
    }

    #[test]
    fn another_budget_begins_without_losses() {
        let begun = Instant::now();
        let mut recent = Recent::new(begun);
        recent.take(begun, std::iter::empty(), Some(24));
        assert!(recent.take(begun, [(1, spent(0, 7))].into_iter(), Some(24)).is_short());
        let raised = recent.take(begun, [(1, spent(0, 9))].into_iter(), Some(48));
        assert_eq!((raised.all, raised.is_short()), (Spent::default(), false));
        assert_eq!(recent.take(begun, [(1, spent(0, 10))].into_iter(), Some(48)).all, spent(0, 1));
        let none = recent.take(begun, [(1, spent(0, 90))].into_iter(), None);
        assert!(!none.is_short());
    }

    #[test]
    fn a_few_blocks_of_many_do_not_degrade() {
        let of = |all| WriteBudget { bytes_per_day: Some(1), all, ..WriteBudget::default() };
        assert!(!of(Spent::default()).is_short());
        assert!(!of(spent(990, 1)).is_short());
        assert!(of(spent(989, 1)).is_short());
        let lost = |unwritten_bytes| WriteBudget {
            all: Spent { written_bytes: 990, unwritten_bytes, ..Spent::default() },
            ..WriteBudget::default()
        };
        assert!(!lost(10).is_outrun() && lost(11).is_outrun());
    }
}
