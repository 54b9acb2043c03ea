//! End-to-end integrity sample: verifies that a page loaded into an engine equals the page that was stored.
//!
//! For a sample of pages, the agent reports a digest when it copies the page out of tier 0. The digest is kept for the host frame
//! until that frame is overwritten. Each later load of the frame is checked by the loading agent after its copy. This covers host
//! memory, both copies and both maps. Only this module decides which pages are in the sample.

use crate::session::Comparison;
use kvtide_tiering::api::{HostFrame, Job};
use kvtide_wire::job::Ask;
use serde::{Deserialize, Serialize};

/// Counters of the integrity sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SampleStats {
    /// Pages compared after a load.
    pub checked: u64,
    /// Loads that differed from the stored page.
    pub failed: u64,
    /// Pages compared before they were written to NVMe.
    pub written_checked: u64,
    /// Writes stopped because the page differed from the stored one.
    pub written_failed: u64,
}

impl SampleStats {
    /// Return the number of pages compared, and of those that differed.
    #[must_use]
    pub fn all(&self) -> (u64, u64) {
        (self.checked + self.written_checked, self.failed + self.written_failed)
    }
}

/// Digests by host frame.
#[derive(Debug)]
pub(super) struct IntegritySample {
    /// One page in `one_in` is in the sample; 0: none.
    one_in: u32,
    slabs: Vec<Digests>,
    stats: SampleStats,
}

/// Digests of one slab; empty if the space does not hold it.
#[derive(Debug, Default)]
struct Digests {
    digests: Box<[u32]>,
    /// One bit per frame: its digest is known.
    known: Box<[u64]>,
}

impl IntegritySample {
    /// Create an empty sample.
    pub fn new(one_in: u32) -> IntegritySample {
        IntegritySample { one_in, slabs: Vec::new(), stats: SampleStats::default() }
    }

    /// Add a slab.
    pub fn granted(&mut self, slab: u32, frames: u32) {
        let (slab, frames) = (slab as usize, frames as usize);
        if self.slabs.len() <= slab {
            self.slabs.resize_with(slab + 1, Digests::default);
        }
        if self.one_in > 0 {
            let (digests, known) = (vec![0; frames].into(), vec![0; frames.div_ceil(64)].into());
            self.slabs[slab] = Digests { digests, known };
        }
    }

    /// Remove a slab.
    pub fn returned(&mut self, slab: u32) {
        if let Some(digests) = self.slabs.get_mut(slab as usize) {
            *digests = Digests::default();
        }
    }

    /// Return the check that the agent does for a job. If the job overwrites a frame, the frame's digest is dropped.
    pub fn ask(&mut self, job: &Job) -> Ask {
        match *job {
            Job::CopyOut { block, plane, to, .. } | Job::Gather { block, plane, to, .. } => {
                self.forget(to);
                if self.contains(u64::from(block) << 16 | u64::from(plane)) { Ask::Digest } else { Ask::Nothing }
            }
            Job::CopyIn { from, .. } | Job::CopyInAs { from, .. } | Job::Scatter { from, .. } => {
                self.known(from).map_or(Ask::Nothing, Ask::Compare)
            }
            Job::Install { .. }
            | Job::Copy { .. }
            | Job::Drop { .. }
            | Job::Evict { .. }
            | Job::Cancel { .. }
            | Job::Move { .. } => Ask::Nothing,
        }
    }

    /// Return true if a page is in the sample. `page` is any number that identifies pages of one kind; the result for a page never
    /// changes.
    pub fn contains(&self, page: u64) -> bool {
        // Fibonacci hashing (Knuth, vol. 3, 6.4): planes and neighbours spread evenly.
        let hash = page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        self.one_in > 0 && hash.is_multiple_of(u64::from(self.one_in))
    }

    /// Handle the result of a job of the sample.
    pub fn handle(&mut self, comparison: Comparison) {
        match comparison {
            Comparison::Stored { at, digest } => self.learn(at, digest),
            Comparison::Same => self.stats.checked += 1,
            // The digest stays after a mismatch: the same bytes must not pass on the next load.
            Comparison::Different { .. } => {
                self.stats.checked += 1;
                self.stats.failed += 1;
            }
        }
    }

    /// Count pages compared before a write, and those that differed.
    pub fn count_written(&mut self, checked: u64, failed: u64) {
        self.stats.written_checked += checked;
        self.stats.written_failed += failed;
    }

    /// Return the counters.
    pub fn stats(&self) -> SampleStats {
        self.stats
    }

    /// Set the digest of the page in a frame.
    pub fn learn(&mut self, at: HostFrame, digest: u32) {
        let Some(slab) = self.slabs.get_mut(at.slab as usize) else { return };
        let frame = at.slot as usize;
        if let (Some(place), Some(word)) = (slab.digests.get_mut(frame), slab.known.get_mut(frame / 64)) {
            *place = digest;
            *word |= 1 << (frame % 64);
        }
    }

    /// Drop the digest of a frame that will be overwritten.
    pub fn forget(&mut self, at: HostFrame) {
        let word = self.slabs.get_mut(at.slab as usize).and_then(|slab| slab.known.get_mut(at.slot as usize / 64));
        if let Some(word) = word {
            *word &= !(1 << (at.slot % 64));
        }
    }

    /// Return the digest of the page in a frame, if known.
    pub fn known(&self, at: HostFrame) -> Option<u32> {
        let (slab, frame) = (self.slabs.get(at.slab as usize)?, at.slot as usize);
        let known = slab.known.get(frame / 64)? >> (frame % 64) & 1;
        (known == 1).then(|| slab.digests.get(frame).copied()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(slab: u32, slot: u32) -> HostFrame {
        HostFrame { slab, slot }
    }

    fn store(block: u32, to: HostFrame) -> Job {
        Job::CopyOut { block, plane: 3, frame: 0, to }
    }

    fn load(block: u32, from: HostFrame) -> Job {
        Job::CopyIn { block, plane: 3, frame: 0, from, victim: None }
    }

    #[test]
    fn a_digest_holds_from_the_stores_end_until_the_frame_is_written_again() {
        let mut sample = IntegritySample::new(1);
        sample.granted(2, 100);
        let frame = at(2, 77);
        assert_eq!(sample.ask(&store(1, frame)), Ask::Digest);
        assert_eq!(sample.ask(&load(1, frame)), Ask::Nothing, "the store is still in flight");
        sample.handle(Comparison::Stored { at: frame, digest: 5 });
        assert_eq!(sample.ask(&load(1, frame)), Ask::Compare(5));
        assert_eq!(sample.ask(&load(1, at(2, 76))), Ask::Nothing);
        sample.handle(Comparison::Same);
        assert_eq!(sample.ask(&load(1, frame)), Ask::Compare(5));
        sample.handle(Comparison::Different { at: frame, stored: 5, loaded: 6 });
        assert_eq!(sample.ask(&load(1, frame)), Ask::Compare(5), "the digest stays after a mismatch");
        assert_eq!(sample.stats, SampleStats { checked: 2, failed: 1, ..SampleStats::default() });
        sample.learn(frame, 7);
        assert_eq!(sample.ask(&load(1, frame)), Ask::Compare(7));
        assert_eq!(sample.ask(&store(9, frame)), Ask::Digest);
        assert_eq!(sample.known(frame), None);
    }

    #[test]
    fn frames_of_a_slab_that_is_gone_are_nobodys() {
        let mut sample = IntegritySample::new(1);
        sample.learn(at(0, 0), 1);
        sample.granted(0, 64);
        sample.learn(at(0, 64), 1);
        assert_eq!((sample.known(at(0, 0)), sample.known(at(0, 64))), (None, None));
        sample.learn(at(0, 63), 1);
        assert_eq!(sample.known(at(0, 63)), Some(1));
        sample.returned(0);
        sample.learn(at(0, 63), 1);
        assert_eq!(sample.known(at(0, 63)), None);
        sample.granted(0, 64);
        assert_eq!(sample.known(at(0, 63)), None, "the digest belongs to an earlier grant");
    }

    #[test]
    fn the_sample_is_as_large_as_asked() {
        let pages = |one_in| {
            let mut sample = IntegritySample::new(one_in);
            sample.granted(0, 1);
            (0..100_000).filter(|block| sample.ask(&store(*block, at(0, 0))) == Ask::Digest).count()
        };
        assert_eq!((pages(0), pages(1)), (0, 100_000));
        let sampled = pages(256);
        assert!((300..480).contains(&sampled), "{sampled} of 100,000 at one in 256");
    }
}
