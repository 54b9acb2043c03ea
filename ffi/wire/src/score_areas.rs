//! Attention scores of a session's lanes, as the daemon reads them: consecutive entries of one sequence, plane, step and kind are
//! joined.

use crate::score::{Missed, ScoreKind, ScoreReader, ScoreSlot, Scores};
use alloc::vec::Vec;
use core::ops::Deref;

/// Scores taken from one lane per round; faster writers lose scores, which is counted.
pub const SCORES_TURN: usize = 64;
/// Maximum pages of a joined entry; the rest is cut.
const PAGES_MAX: usize = 512;

/// Maximum entries that are joined, so that a writer as fast as the reader cannot prolong a round.
const JOINED_MAX: usize = 8;

/// Score area of one lane.
#[derive(Debug)]
struct Area<S> {
    reader: ScoreReader<S>,
    /// Read but not returned yet: it did not belong to the last result.
    held: Option<Scores>,
}

/// The score areas of a session's lanes.
#[derive(Debug)]
pub struct ScoreAreas<S> {
    lanes: Vec<Area<S>>,
    top: Vec<(u32, u16)>,
}

/// Scores of a sequence in a plane for one step, joined from all its entries. Its pages are in [`ScoreAreas::top`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Sequence.
    pub seq: u32,
    /// Plane.
    pub plane: u16,
    /// Step of the lane.
    pub step: u64,
    /// Kind of the scores.
    pub kind: ScoreKind,
    /// Bits of the logarithm of the share not covered by the listed pages.
    pub rest: u16,
}

impl<S: Deref<Target = [ScoreSlot]>> ScoreAreas<S> {
    /// Create the state; nothing was read yet.
    #[must_use]
    pub fn new(lanes: Vec<ScoreReader<S>>) -> ScoreAreas<S> {
        let lanes = lanes.into_iter().map(|reader| Area { reader, held: None }).collect();
        ScoreAreas { lanes, top: Vec::with_capacity(PAGES_MAX) }
    }

    /// Return the number of lanes.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Return true if scores can be read now.
    #[must_use]
    pub fn has_some(&self) -> bool {
        self.lanes.iter().any(|lane| lane.held.is_some() || lane.reader.has_next())
    }

    /// Return the next scores of a lane; one round takes [`SCORES_TURN`]. Consecutive entries of one sequence, plane, step and kind
    /// are joined.
    pub fn next(&mut self, lane: usize) -> Option<Joined> {
        self.top.clear();
        let area = self.lanes.get_mut(lane)?;
        let first = match area.held.take() {
            Some(held) => held,
            None => area.reader.read()?,
        };
        let mut last = first;
        add(&mut self.top, &first);
        for _ in 1..JOINED_MAX {
            let Some(more) = area.reader.read() else { break };
            if key(&more) != key(&first) {
                area.held = Some(more);
                break;
            }
            add(&mut self.top, &more);
            last = more;
        }
        Some(Joined { seq: first.seq, plane: first.plane, step: first.step, kind: first.kind, rest: last.rest.0 })
    }

    /// Return the pages of the last result of [`ScoreAreas::next`].
    #[must_use]
    pub fn top(&self) -> &[(u32, u16)] {
        &self.top
    }

    /// Return the counts of unreadable scores, over all lanes.
    #[must_use]
    pub fn missed(&self) -> Missed {
        self.lanes.iter().map(|lane| lane.reader.missed()).fold(Missed::default(), |a, b| Missed {
            lost: a.lost + b.lost,
            torn: a.torn + b.torn,
            malformed: a.malformed + b.malformed,
        })
    }
}

fn add(top: &mut Vec<(u32, u16)>, scores: &Scores) {
    let room = PAGES_MAX - top.len();
    top.extend(scores.top().iter().take(room).map(|named| (named.index, named.log_mass.0)));
}

fn key(scores: &Scores) -> (ScoreKind, u32, u16, u64) {
    (scores.kind, scores.seq, scores.plane, scores.step)
}
