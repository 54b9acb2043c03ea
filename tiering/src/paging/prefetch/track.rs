//! State of `approx` sequences, per plane, and the number of frames that each may fill.

use super::quota::{Level, Pace, Threshold, Trust};
use crate::api::{Contract, NONE, PlaneKind, SeqId};
use crate::blocks::Seq;
use crate::mutants::{self, Mutant};
use crate::paging::{Pager, Paging};
use crate::predict::Fresh;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Maximum number of `approx` sequences of a session that are tracked. Others are read like `exact` ones: slower, with the same
/// result.
const TRACKS_MAX: usize = 1024;

/// Maximum number of waiting promotions, reads and cancellations, each.
pub(crate) const QUEUE_MAX: usize = 1024;

/// Maximum number of loads with a tracked outcome; further loads are not judged.
pub(crate) const TRIALS_MAX: usize = 1 << 14;

/// One plane of a tracked sequence.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PlaneTrack {
    /// Step + 1 of the latest attention mass.
    pub mass: u64,
    /// Step + 1 of the latest look-ahead.
    pub ahead: u64,
    /// Query estimates that await the report of their attention.
    pub fresh: Fresh,
    /// True if the plane was ranked.
    pub ranked: bool,
    /// Predicted share of the last page that was worth a load.
    pub last_share: f32,
    /// Moving average of its logarithm.
    pub level: Level,
}

/// A tracked sequence.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SeqTrack {
    pub live: bool,
    /// Step, plane and time of its latest look-ahead.
    pub ahead_at: (u64, u16, u64),
    /// Step, plane and time of the latest mass of one plane, always the same one.
    pub mass_at: (u64, u16, u64),
}

/// A page to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Promotion {
    pub seq: SeqId,
    pub index: u32,
    pub plane: u16,
    /// Step before which it should arrive.
    pub step: u64,
}

/// A predicted load with an outcome that is not known yet.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Trial {
    pub what: Promotion,
    pub page: u32,
    pub frame: u32,
    /// It had not arrived when its step read the plane.
    pub late: bool,
}

/// Predictions of a session; empty until its first `approx` sequence.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Prediction {
    /// True if the pages that its sequences may read do not all fit, so that predictions matter.
    pub pressed: bool,
    pub seqs: Vec<SeqTrack>,
    /// Planes of tracks, track by track.
    pub planes: Vec<PlaneTrack>,
    /// Fair share of each track and class: frames per plane.
    pub fair_shares: Vec<u32>,
    pub trials: Vec<Trial>,
    pub queue: VecDeque<Promotion>,
    /// Pages to read from NVMe.
    pub reads: VecDeque<Promotion>,
    /// Pages being read from NVMe, to be loaded from host afterwards.
    pub coming: VecDeque<Promotion>,
    /// Jobs to cancel, by id.
    pub cancels: VecDeque<u32>,
    pub trust: Trust,
    /// Time from a plane's look-ahead to the next plane's.
    pub plane_pace: Pace,
    /// Time from a plane's mass to the same plane's next one.
    pub step_pace: Pace,
    /// Threshold of a frame, per class: pages worth less are released.
    pub thresholds: Vec<Threshold>,
    /// Average number of loads granted to a look-ahead: this number of frames is kept free.
    pub burst: f32,
    /// Number of frames to empty for the next look-ahead, per class.
    pub refill: Vec<u32>,
    /// Average number of loads requested by a look-ahead that the link cannot carry in time: they start a step earlier.
    pub short: f32,
}

impl Prediction {
    pub fn bytes(&self) -> usize {
        self.seqs.capacity() * size_of::<SeqTrack>()
            + self.planes.capacity() * size_of::<PlaneTrack>()
            + (self.fair_shares.capacity() + self.refill.capacity() + self.cancels.capacity()) * 4
            + self.trials.capacity() * size_of::<Trial>()
            + self.thresholds.capacity() * size_of::<Threshold>()
            + (self.queue.capacity() + self.reads.capacity() + self.coming.capacity()) * size_of::<Promotion>()
    }

    fn begin(&mut self, frames: usize, classes: usize) {
        if self.refill.is_empty() {
            self.trials = Vec::with_capacity(frames.min(TRIALS_MAX));
            self.refill = vec![0; classes];
            self.thresholds = vec![Threshold::default(); classes];
            self.queue = VecDeque::with_capacity(QUEUE_MAX);
            self.reads = VecDeque::with_capacity(QUEUE_MAX);
            self.coming = VecDeque::with_capacity(QUEUE_MAX);
            self.cancels = VecDeque::with_capacity(QUEUE_MAX);
        }
    }

    /// Forget the pending entries of a sequence.
    fn forget(&mut self, seq: SeqId) {
        self.queue.retain(|p| p.seq != seq);
        self.reads.retain(|p| p.seq != seq);
        self.coming.retain(|p| p.seq != seq);
        self.trials.retain(|b| b.what.seq != seq);
    }
}

/// Return whether predictions of attention choose the sequence's pages.
pub(crate) fn is_predicted(pager: &Pager, q: &Seq) -> bool {
    pager.prediction.pressed && q.track != NONE
}

/// Return the number of frames of a class that are kept free for look-aheads.
pub(crate) fn burst_frames(burst: f32, count: u32) -> u32 {
    (burst.ceil() as u32).min(count / 16)
}

impl Paging<'_> {
    /// Start to track a sequence that became `approx`. Without a free track it is read like an `exact` one.
    pub(crate) fn track(&mut self, s: u16, seq: SeqId) {
        if self.prefetch.is_none() {
            let l = self.cfg().limits;
            let (planes, blocks) = (self.geo().planes.len(), l.blocks_max as usize);
            let prefetch = super::Prefetch::new(planes, blocks, self.chunks().count(), l.seq_blocks_max);
            *self.prefetch = Some(Box::new(prefetch));
            self.keep_freed();
        }
        let (planes, classes) = (self.geo().planes.len(), self.geo().classes.len());
        self.pagers[s].prediction.begin(self.below.tier0(s).frames.len(), classes);
        let prediction = &mut self.pagers[s].prediction;
        let at = prediction.seqs.iter().position(|t| !t.live).unwrap_or(prediction.seqs.len());
        if at == TRACKS_MAX {
            self.counters.untracked += 1;
            return;
        }
        if at == prediction.seqs.len() {
            prediction.seqs.push(SeqTrack::default());
            prediction.planes.resize((at + 1) * planes, PlaneTrack::default());
            prediction.fair_shares.resize((at + 1) * classes, 0);
        }
        prediction.seqs[at] = SeqTrack { live: true, ..SeqTrack::default() };
        self.seq_mut(s, seq).track = at as u32;
        self.share_frames(s);
    }

    /// Stop tracking a sequence that is dropped, or is no longer `approx`.
    pub(crate) fn untrack(&mut self, s: u16, seq: SeqId) {
        let track = std::mem::replace(&mut self.seq_mut(s, seq).track, NONE);
        if track == NONE {
            return;
        }
        let planes = self.geo().planes.len();
        let prediction = &mut self.pagers[s].prediction;
        prediction.seqs[track as usize] = SeqTrack::default();
        prediction.planes[track as usize * planes..][..planes].fill(PlaneTrack::default());
        prediction.forget(seq);
        self.share_frames(s);
    }

    /// Divide the frames of each class among the planes of tracked sequences in proportion to their lengths, and determine whether
    /// not all pages fit. Pages of other sequences come first, up to half of a class.
    pub(crate) fn share_frames(&mut self, s: u16) {
        let (prediction, below) = (&mut self.pagers[s].prediction, &*self.below);
        let (classes, seqs) = (below.geo().classes.len(), &below.lists(s).seqs);
        let (mut tracked, mut others) = (0u64, 0u64);
        for q in seqs.iter().filter(|q| q.is_live() && !q.parked) {
            match q.track {
                NONE => others += u64::from(q.blocks()),
                _ => tracked += u64::from(q.blocks()),
            }
        }
        prediction.pressed = false;
        let any = prediction.seqs.iter().any(|t| t.live);
        for class in 0..classes {
            if !any {
                break;
            }
            let planes = u64::from(below.geo().classes[class].planes);
            let c = &below.tier0(s).classes[class];
            let count = u64::from(c.count);
            let unpressed = mutants::on(Mutant::PrefetchUnpressed);
            prediction.pressed |= (tracked + others) * planes > u64::from(c.count - c.scan) || unpressed;
            let free = burst_frames(prediction.burst, c.count);
            let room = count - (others * planes).min(count / 2) - u64::from(free);
            for q in seqs.iter().filter(|q| q.is_live() && !q.parked && q.track != NONE) {
                let share = room * u64::from(q.blocks()) / (tracked * planes).max(1);
                prediction.fair_shares[q.track as usize * classes + class] = share.min(u64::from(q.blocks())) as u32;
            }
        }
    }

    /// Return whether a sequence's step needs only the pages that are always kept, and predictions choose the rest.
    pub(crate) fn is_predicted(&self, s: u16, seq: SeqId) -> bool {
        is_predicted(&self.pagers[s], &self.lists(s).seqs[seq as usize])
    }

    /// Return the pages of a plane that are always kept: the first `.0`, and those from index `.1` on.
    pub(crate) fn always_kept(&self, q: &Seq, plane: u16) -> (u32, u32) {
        if self.geo().planes[usize::from(plane)].kind != PlaneKind::Full {
            return (0, 0);
        }
        let a = self.cfg().policy.attention;
        let sealed = (q.tokens / self.geo().page_tokens).min(u64::from(q.blocks())) as u32;
        let from = sealed.saturating_sub(u32::from(a.recent)).max(u32::from(a.sinks));
        (u32::from(a.sinks).min(q.blocks()), from.min(q.blocks()))
    }

    /// Return the pages of a plane that a step's walk loads: those before `.0`, and those from `.1` on.
    pub(crate) fn walked(&self, s: u16, q: &Seq, plane: u16) -> (u32, u32) {
        match is_predicted(&self.pagers[s], q) {
            true => self.always_kept(q, plane),
            false => (0, 0),
        }
    }

    /// Return the first page of a step's walk at or after `index`; predicted pages are not part of the walk.
    pub(crate) fn walk_from(&self, s: u16, q: &Seq, plane: u16, index: u32) -> u32 {
        let (sinks, from) = self.walked(s, q, plane);
        if index >= sinks { index.max(from) } else { index }
    }

    /// Return the fair share of a plane of the sequence, in pages, and how many pages its contract's budget allows.
    pub(crate) fn fair_share(&self, s: u16, q: &Seq, plane: u16) -> (usize, usize) {
        let class = usize::from(self.geo().class_of(plane));
        let share = self.pagers[s].prediction.fair_shares[q.track as usize * self.geo().classes.len() + class];
        let (sinks, from) = self.always_kept(q, plane);
        let share = share.clamp(sinks + q.blocks() - from, q.blocks()) as usize;
        let budget = match q.contract {
            Contract::Approx { permille } => (q.blocks() as usize * usize::from(permille)).div_ceil(1000),
            Contract::Exact => q.blocks() as usize,
        };
        (share, budget)
    }
}
