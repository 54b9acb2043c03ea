//! Scheduled prefetch: pages that engines announce that they will need, with the time.
//!
//! A sequence that waits in an engine's queue has its prefix attached and is parked with a due time; so is an idle sequence that is
//! expected back. Their pages are loaded in the order of due times, each as late as the measured bandwidth allows. They are in tier
//! 0 when their sequence is due and take no room earlier. Advice (WILLNEED) is due when it is given.
//!
//! - here: the planned sequences, and the start time of each
//! - `bring`: NVMe → host and host → tier 0, after all moves for running steps
//! - `outcomes`: which pages were in tier 0 when a sequence was resumed
//!
//! It takes free frames, and frames of pages that no live step needs, but never those of a sequence that is due earlier. It must
//! not depend on predictions of attention.

mod bring;
mod outcomes;

use crate::api::{NONE, SeqId};
use crate::blocks::Seq;
use crate::mutants::{self, Mutant};
use crate::paging::Paging;
use serde::{Deserialize, Serialize};

/// Maximum number of parked sequences of a session that are planned: those due first. Others follow when these end.
const QUEUED_MAX: usize = 64;

/// Maximum number of pieces of advice. One more replaces the oldest, because advice is only a hint.
const ADVISED_MAX: usize = 64;

/// Time in microseconds before the due time at which all pages should be loaded: the last loads wait for running steps.
const MARGIN_US: u64 = 20_000;

/// Factor by which moves take longer than on unloaded links: running steps have priority.
const SLACK: f32 = 2.0;

/// Minimum work time of one sequence (while no link is measured, or no page is missing), and maximum, in microseconds.
const WORK_US: (u64, u64) = (1_000, 10_000_000);

/// Minimum interval in microseconds between measurements of a sequence. Before its work starts, it is measured again whenever half
/// of the remaining time has passed.
const LOOK_MIN_US: u64 = 50_000;

/// Time in microseconds after the due time at which a sequence is no longer expected.
const GRACE_US: u64 = 2_000_000;

/// Number of blocks of a sequence that a measurement samples.
const SAMPLES: u32 = 32;

/// A range of blocks to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ScheduledPrefetch {
    pub seq: SeqId,
    pub due_us: u64,
    /// Time at which its work starts.
    starts_us: u64,
    /// Time of its next measurement.
    look_us: u64,
    /// Earliest time of the next attempt after there was no room.
    again_us: u64,
    /// Bytes to load into tier 0, and the part of them that is only on NVMe.
    bytes: (u64, u64),
    /// Next page to load (block, plane). `read`: next block to read from NVMe. `end`: first block after the range.
    next: (u32, u16),
    read: u32,
    end: u32,
    /// From advice: no resume follows.
    advised: bool,
    done: bool,
}

/// Scheduled prefetches of a session, in the order of due times.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ScheduledPrefetches {
    list: Vec<ScheduledPrefetch>,
    /// Number of loads in flight.
    in_flight: u32,
}

impl ScheduledPrefetches {
    /// Allocate all memory that it will use.
    pub fn new() -> ScheduledPrefetches {
        ScheduledPrefetches { list: Vec::with_capacity(QUEUED_MAX + ADVISED_MAX), in_flight: 0 }
    }

    pub fn bytes(&self) -> usize {
        self.list.capacity() * size_of::<ScheduledPrefetch>()
    }

    /// Return the number of loads in flight.
    pub fn loads_in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Record the end of a load.
    pub fn load_ended(&mut self) {
        self.in_flight -= 1;
    }

    /// Remove all scheduled prefetches of a sequence that is dropped.
    pub fn forget(&mut self, seq: SeqId) {
        self.list.retain(|prefetch| prefetch.seq != seq);
    }

    fn insert(&mut self, scheduled: ScheduledPrefetch) {
        let kind = self.list.iter().filter(|prefetch| prefetch.advised == scheduled.advised).count();
        let (max, replaced) = match scheduled.advised {
            true => (ADVISED_MAX, self.list.iter().position(|prefetch| prefetch.advised)),
            false => (QUEUED_MAX, self.list.iter().rposition(|prefetch| !prefetch.advised)),
        };
        if kind == max {
            let Some(at) = replaced.filter(|&at| scheduled.advised || self.list[at].due_us > scheduled.due_us) else {
                return;
            };
            self.list.remove(at);
        }
        let last_first = mutants::on(Mutant::ScheduledOutOfOrder);
        let at = self.list.partition_point(|prefetch| (prefetch.due_us <= scheduled.due_us) != last_first);
        self.list.insert(at, scheduled);
    }
}

/// Return when work of `bytes`, of which `far` are only on NVMe, must start to end by `end_us`. Link rates are in bytes per
/// microsecond; 0: not measured.
pub(crate) fn start(end_us: u64, (bytes, far): (u64, u64), (link, reads): (f32, f32)) -> u64 {
    let takes = |bytes: u64, rate: f32| if rate > 0.0 { bytes as f32 / rate } else { 0.0 };
    let work = (SLACK * (takes(bytes, link) + takes(far, reads))) as u64;
    end_us.saturating_sub(work.clamp(WORK_US.0, WORK_US.1))
}

/// Return whether a sequence is parked, expected back, and not overdue for long.
pub(crate) fn is_expected(q: &Seq, now: u64) -> bool {
    q.is_live() && q.parked && q.due_us != 0 && q.due_us.saturating_add(GRACE_US) > now
}

impl Paging<'_> {
    /// Expect a parked sequence back in `in_us` microseconds; 0: at an unknown time.
    pub(crate) fn expect_back(&mut self, s: u16, seq: SeqId, in_us: u64) {
        self.forget_due(s, seq);
        if in_us == 0 {
            return;
        }
        let due_us = self.now().saturating_add(in_us).max(1);
        self.seq_mut(s, seq).due_us = due_us;
        self.pagers[s].dues += 1;
        self.queue(s, seq);
        self.schedule(s);
    }

    /// Remove the due time of a sequence.
    pub(crate) fn forget_due(&mut self, s: u16, seq: SeqId) {
        if std::mem::take(&mut self.seq_mut(s, seq).due_us) != 0 {
            let session = &mut self.pagers[s];
            session.dues -= 1;
            session.scheduled.list.retain(|prefetch| prefetch.advised || prefetch.seq != seq);
            self.queue_next(s);
            self.schedule(s);
        }
    }

    fn queue(&mut self, s: u16, seq: SeqId) {
        let q = self.lists(s).seqs[seq as usize];
        let scheduled = ScheduledPrefetch {
            seq,
            due_us: q.due_us,
            starts_us: 0,
            look_us: 0,
            again_us: 0,
            bytes: (0, 0),
            next: (0, 0),
            read: 0,
            end: q.blocks(),
            advised: false,
            done: false,
        };
        self.pagers[s].scheduled.insert(scheduled);
    }

    /// Fill free places in the list with the waiting sequences that are due first.
    fn queue_next(&mut self, s: u16) {
        let now = self.now();
        loop {
            let list = &self.pagers[s].scheduled.list;
            let queued = list.iter().filter(|prefetch| !prefetch.advised).count();
            if queued == QUEUED_MAX || queued >= self.pagers[s].dues as usize {
                return;
            }
            let listed = |seq: SeqId| list.iter().any(|prefetch| !prefetch.advised && prefetch.seq == seq);
            let waits = |(seq, q): &(SeqId, &Seq)| is_expected(q, now) && !listed(*seq);
            let Some((seq, _)) = (0..).zip(&self.lists(s).seqs).filter(waits).min_by_key(|(_, q)| q.due_us) else {
                return;
            };
            self.queue(s, seq);
        }
    }

    /// Request that a range be loaded when there is room.
    pub(crate) fn schedule_advised(&mut self, s: u16, seq: SeqId, first: u32, end: u32) {
        let scheduled = ScheduledPrefetch {
            seq,
            due_us: self.now(),
            starts_us: 0,
            look_us: u64::MAX,
            again_us: 0,
            bytes: (0, 0),
            next: (first, 0),
            read: first,
            end,
            advised: true,
            done: false,
        };
        self.pagers[s].scheduled.insert(scheduled);
        self.wake(s);
    }

    /// Measure and plan the session's scheduled prefetches again when their time has come.
    pub(crate) fn plan_scheduled(&mut self, s: u16) {
        if self.pagers[s].scheduled.list.is_empty() {
            return;
        }
        let now = self.now();
        let list = &mut self.pagers[s].scheduled.list;
        let before = list.len();
        list.retain(|prefetch| prefetch.advised || prefetch.due_us.saturating_add(GRACE_US) > now);
        if list.len() < before {
            self.queue_next(s);
        }
        self.schedule(s);
    }

    /// Compute when each sequence's work must start: the last one's as late as possible, and each earlier one's before that.
    fn schedule(&mut self, s: u16) {
        let now = self.now();
        for at in 0..self.pagers[s].scheduled.list.len() {
            let prefetch = self.pagers[s].scheduled.list[at];
            if !prefetch.done && prefetch.look_us <= now {
                self.pagers[s].scheduled.list[at].bytes = self.measure(s, prefetch.seq);
            }
        }
        let rates = (self.tier0(s).link.rate, self.disk.read_rate());
        let session = &mut self.pagers[s];
        let (mut end, mut timer, mut begins) = (u64::MAX, u64::MAX, false);
        for prefetch in session.scheduled.list.iter_mut().rev().filter(|prefetch| !prefetch.advised) {
            timer = timer.min(prefetch.due_us.saturating_add(GRACE_US));
            if prefetch.done {
                continue;
            }
            end = start(end.min(prefetch.due_us.saturating_sub(MARGIN_US)), prefetch.bytes, rates);
            prefetch.starts_us = if mutants::on(Mutant::ScheduledIgnoresDue) { now } else { end };
            if prefetch.starts_us <= now {
                (prefetch.look_us, begins) = (u64::MAX, true);
                timer = timer.min(if prefetch.again_us > now { prefetch.again_us } else { u64::MAX });
                continue;
            }
            if prefetch.look_us <= now {
                prefetch.look_us = now + ((prefetch.starts_us - now) / 2).max(LOOK_MIN_US);
            }
            timer = timer.min(prefetch.starts_us).min(prefetch.look_us);
        }
        if begins {
            self.wake(s);
        }
        if timer < u64::MAX {
            self.set_timer(timer);
        }
    }

    /// Return the bytes to load into tier 0 for a parked sequence, and the part of them only on NVMe, from a sample of its blocks.
    /// Pages in tier 0 now are included, because they may be evicted before the due time.
    fn measure(&self, s: u16, seq: SeqId) -> (u64, u64) {
        let blocks = self.lists(s).seqs[seq as usize].blocks();
        let samples = blocks.min(SAMPLES);
        let (mut all, mut far) = (0, 0);
        for at in 0..samples {
            let b = self.seq_block(s, seq, (u64::from(at) * u64::from(blocks) / u64::from(samples)) as u32);
            for page in self.pages_of(b) {
                let bytes = u64::from(self.geo().classes[usize::from(self.geo().class_of_page(page))].page_bytes);
                all += bytes;
                far += if self.only_on_disk(page) && self.page(page).frame == NONE { bytes } else { 0 };
            }
        }
        let scale = |bytes: u64| bytes * u64::from(blocks) / u64::from(samples.max(1));
        (scale(all), scale(far))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_begins_as_late_as_the_links_allow() {
        // 4 MB at 1,000 and 1 MB at 100 bytes per microsecond, times `SLACK`.
        assert_eq!(start(1_000_000, (4_000_000, 1_000_000), (1000.0, 100.0)), 1_000_000 - 28_000);
        assert_eq!(start(1_000_000, (4_000_000, 1_000_000), (0.0, 0.0)), 1_000_000 - WORK_US.0, "no link is measured");
        assert_eq!(start(500, (4_000_000, 0), (1.0, 1.0)), 0);
    }

    #[test]
    fn the_list_is_in_the_order_of_due_times_and_bounded() {
        let of = |seq, due_us, advised| ScheduledPrefetch {
            seq,
            due_us,
            starts_us: 0,
            look_us: 0,
            again_us: 0,
            bytes: (0, 0),
            next: (0, 0),
            read: 0,
            end: 1,
            advised,
            done: false,
        };
        let mut scheduled = ScheduledPrefetches::new();
        for n in 0..100u32 {
            scheduled.insert(of(n, u64::from(n * 37 % 100), false));
            scheduled.insert(of(1000 + n, u64::from(n), true));
        }
        let of_kind = |advised| scheduled.list.iter().filter(move |prefetch| prefetch.advised == advised);
        assert!(scheduled.list.is_sorted_by_key(|prefetch| prefetch.due_us));
        assert!(of_kind(false).map(|prefetch| prefetch.due_us).eq(0..QUEUED_MAX as u64), "the first due times");
        assert!(of_kind(true).map(|prefetch| prefetch.seq).eq(1100 - ADVISED_MAX as u32..1100), "the latest advice");
        assert!(scheduled.list.capacity() <= QUEUED_MAX + ADVISED_MAX);
    }
}
