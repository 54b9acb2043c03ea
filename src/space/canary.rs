//! The canary's memory: of a sample of pages, the digest that each had in tier 0 when it was stored, by the host frame that it
//! is in now.
//!
//! A digest is known from a store's end until the frame is written again. A load of a frame with a known digest is compared
//! by its agent where the bytes landed, so that whatever happened to them in between (host memory, both copies, both maps) is
//! seen before an engine reads them. Which pages are in the sample is decided here alone.

use crate::session::Verdict;
use crate::translate::Ask;
use kvtide_tiering::api::{HostFrame, Job};
use serde::Serialize;

/// What the canary has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct CanaryTally {
    /// Pages hashed after a load and compared with what was stored.
    pub checked: u64,
    /// Of those, the ones that were not what was stored.
    pub failed: u64,
    /// Pages compared, before they were written to NVMe, with what was stored.
    pub written_checked: u64,
    /// Of those, the ones that were not what was stored.
    pub written_failed: u64,
}

impl CanaryTally {
    /// Pages about to be written were compared, and so many of them were not what was stored.
    pub fn count_written(&mut self, checked: u64, failed: u64) {
        self.written_checked += checked;
        self.written_failed += failed;
    }
}

/// Digests by host frame.
#[derive(Debug)]
pub(super) struct Canary {
    /// One page of so many is in the sample; 0: none.
    one_in: u32,
    slabs: Vec<Digests>,
    pub tally: CanaryTally,
}

/// Of one slab; empty if the space does not hold it.
#[derive(Debug, Default)]
struct Digests {
    digests: Box<[u32]>,
    /// A bit a frame: its digest is known.
    known: Box<[u64]>,
}

impl Canary {
    /// Knows nothing yet.
    pub fn new(one_in: u32) -> Canary {
        Canary { one_in, slabs: Vec::new(), tally: CanaryTally::default() }
    }

    /// The space was granted a slab.
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

    /// It gave the slab back.
    pub fn returned(&mut self, slab: u32) {
        if let Some(digests) = self.slabs.get_mut(slab as usize) {
            *digests = Digests::default();
        }
    }

    /// What the agent that gets a job is asked. Forgets what is known of a frame that the job overwrites.
    pub fn ask(&mut self, job: &Job) -> Ask {
        match *job {
            Job::Store { block, plane, to, .. } | Job::Gather { block, plane, to, .. } => {
                self.forget(to);
                if self.samples(u64::from(block) << 16 | u64::from(plane)) { Ask::Digest } else { Ask::Nothing }
            }
            Job::Load { from, .. } | Job::LoadCopy { from, .. } | Job::Scatter { from, .. } => {
                self.known(from).map_or(Ask::Nothing, Ask::Compare)
            }
            Job::Map { .. }
            | Job::Copy { .. }
            | Job::Drop { .. }
            | Job::Evict { .. }
            | Job::Cancel { .. }
            | Job::Move { .. } => Ask::Nothing,
        }
    }

    /// Whether a page is in the sample; `page` tells pages of one kind apart. Pages stay in it or out of it.
    pub fn samples(&self, page: u64) -> bool {
        // Fibonacci hashing (Knuth, vol. 3, 6.4): planes and neighbours spread evenly.
        let hash = page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        self.one_in > 0 && hash.is_multiple_of(u64::from(self.one_in))
    }

    /// A job of the sample has ended.
    pub fn heed(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Stored { at, digest } => self.learn(at, digest),
            Verdict::Same => self.tally.checked += 1,
            // The digest stays: until the frame is written again, its bytes pass for nothing.
            Verdict::Different { .. } => {
                self.tally.checked += 1;
                self.tally.failed += 1;
            }
        }
    }

    /// The frame holds a page of this digest.
    pub fn learn(&mut self, at: HostFrame, digest: u32) {
        let Some(slab) = self.slabs.get_mut(at.slab as usize) else { return };
        let frame = at.slot as usize;
        if let (Some(place), Some(word)) = (slab.digests.get_mut(frame), slab.known.get_mut(frame / 64)) {
            *place = digest;
            *word |= 1 << (frame % 64);
        }
    }

    /// The frame is about to be written.
    pub fn forget(&mut self, at: HostFrame) {
        let word = self.slabs.get_mut(at.slab as usize).and_then(|slab| slab.known.get_mut(at.slot as usize / 64));
        if let Some(word) = word {
            *word &= !(1 << (at.slot % 64));
        }
    }

    /// The digest of the page in a frame, if it is known.
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
        Job::Store { block, plane: 3, frame: 0, to }
    }

    fn load(block: u32, from: HostFrame) -> Job {
        Job::Load { block, plane: 3, frame: 0, from, victim: None }
    }

    #[test]
    fn a_digest_holds_from_the_stores_end_until_the_frame_is_written_again() {
        let mut canary = Canary::new(1);
        canary.granted(2, 100);
        let frame = at(2, 77);
        assert_eq!(canary.ask(&store(1, frame)), Ask::Digest);
        assert_eq!(canary.ask(&load(1, frame)), Ask::Nothing, "the store has not ended");
        canary.heed(Verdict::Stored { at: frame, digest: 5 });
        assert_eq!(canary.ask(&load(1, frame)), Ask::Compare(5));
        assert_eq!(canary.ask(&load(1, at(2, 76))), Ask::Nothing);
        canary.heed(Verdict::Same);
        assert_eq!(canary.ask(&load(1, frame)), Ask::Compare(5));
        canary.heed(Verdict::Different { at: frame, stored: 5, loaded: 6 });
        assert_eq!(canary.ask(&load(1, frame)), Ask::Compare(5), "the same bytes do not pass the next time");
        assert_eq!(canary.tally, CanaryTally { checked: 2, failed: 1, ..CanaryTally::default() });
        canary.learn(frame, 7);
        assert_eq!(canary.ask(&load(1, frame)), Ask::Compare(7));
        assert_eq!(canary.ask(&store(9, frame)), Ask::Digest);
        assert_eq!(canary.known(frame), None);
    }

    #[test]
    fn frames_of_a_slab_that_is_gone_are_nobodys() {
        let mut canary = Canary::new(1);
        canary.learn(at(0, 0), 1);
        canary.granted(0, 64);
        canary.learn(at(0, 64), 1);
        assert_eq!((canary.known(at(0, 0)), canary.known(at(0, 64))), (None, None));
        canary.learn(at(0, 63), 1);
        assert_eq!(canary.known(at(0, 63)), Some(1));
        canary.returned(0);
        canary.learn(at(0, 63), 1);
        assert_eq!(canary.known(at(0, 63)), None);
        canary.granted(0, 64);
        assert_eq!(canary.known(at(0, 63)), None, "another grant's memory");
    }

    #[test]
    fn the_sample_is_as_large_as_asked() {
        let pages = |one_in| {
            let mut canary = Canary::new(one_in);
            canary.granted(0, 1);
            (0..100_000).filter(|block| canary.ask(&store(*block, at(0, 0))) == Ask::Digest).count()
        };
        assert_eq!((pages(0), pages(1)), (0, 100_000));
        let sampled = pages(256);
        assert!((300..480).contains(&sampled), "{sampled} of 100,000 at one in 256");
    }
}
