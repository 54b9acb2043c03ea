//! Prefetch driven by attention: engines report the attention that steps had or are expected to have. The pages that the next steps
//! of `approx` sequences are predicted to read are loaded into tier 0 in advance.
//!
//! - `scores`: reports of engines, checked and learned from; contracts
//! - `track`: the state of each such sequence and plane, and its number of frames
//! - `look`: which pages are evaluated
//! - `choose`: which pages should be in tier 0, a pure function of scores
//! - `quota`: how much may be moved until when: measured bandwidth, precision, lateness
//! - `rank`: from scores to promotions, demotions and reads from NVMe
//! - `send`: these as jobs and transfers
//!
//! It ignores sequences for which all pages fit. It decides nothing that changes a result: the agent masks pages that are not
//! resident. It must not depend on engines, clocks or bytes.

mod choose;
mod look;
mod quota;
mod rank;
mod scores;
mod send;
mod track;

pub(crate) use scores::Scores;
pub(crate) use track::Prediction;
pub(super) use track::burst_frames;

use crate::blocks::CHUNK;
use crate::predict::Predictor;
use choose::Rank;
use serde::{Deserialize, Serialize};

/// Predictions of a space, and scratch memory to rank one plane of one sequence.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Prefetch {
    predictor: Predictor,
    /// Number of chunks of the block lists of all sequences.
    chunks: usize,
    /// By plane and chunk, one bit per position: its page is a candidate (its share is close to that of the kept ones).
    candidates: Vec<u32>,
    /// Bits of positions of the current sequence.
    marks: Vec<u32>,
    /// Blocks of the current sequence, by index.
    blocks: Vec<u32>,
    /// Indices of the evaluated pages of the current plane: first `often` pages evaluated always, then those due at this step.
    at: Vec<u32>,
    often: usize,
    turn: Vec<u32>,
    /// For each evaluated page: the prediction (`scores`), and the frame that shows it or is about to, or `NONE` (`shown_in`).
    scores: Vec<f32>,
    shown_in: Vec<u32>,
    order: Vec<Rank>,
    top: Vec<(u32, f32)>,
    /// Missing pages to load, by index, with their predicted logarithm of a share.
    wanted: Vec<(u32, f32)>,
    /// Frames that show pages of the plane, with the same.
    there: Vec<(u32, f32)>,
}

impl Prefetch {
    /// Allocate all memory that it will use.
    pub fn new(planes: usize, blocks: usize, chunks: usize, seq_blocks_max: u32) -> Prefetch {
        let n = seq_blocks_max as usize;
        Prefetch {
            predictor: Predictor::new(planes, blocks, n),
            chunks,
            candidates: vec![0; planes * chunks],
            marks: Vec::with_capacity(n.div_ceil(CHUNK as usize)),
            blocks: Vec::with_capacity(n),
            at: Vec::with_capacity(n),
            often: 0,
            turn: Vec::with_capacity(n),
            scores: Vec::with_capacity(n),
            shown_in: Vec::with_capacity(n),
            order: Vec::with_capacity(n),
            top: Vec::with_capacity(n.min(crate::actions::LIST_MAX)),
            wanted: Vec::with_capacity(n),
            there: Vec::with_capacity(n + 1),
        }
    }

    /// Forget the observations of a block's page in a plane, because the block id will be reused.
    pub fn forget(&mut self, plane: u16, block: u32) {
        self.predictor.forget(plane, block);
    }

    pub fn bytes(&self) -> usize {
        self.predictor.bytes()
            + (self.candidates.capacity() + self.marks.capacity() + self.blocks.capacity()) * 4
            + (self.at.capacity() + self.turn.capacity() + self.scores.capacity() + self.shown_in.capacity()) * 4
            + (self.order.capacity() + self.top.capacity() + self.wanted.capacity() + self.there.capacity()) * 8
    }
}
