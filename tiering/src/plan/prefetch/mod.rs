//! Prefetch driven by attention: engines say what they read and what they expect to read, and the pages that the next steps of
//! `approx` sequences will read are in tier 0 before they are read.
//!
//! - `scores`: what engines say, checked and learnt from; contracts
//! - `track`: what is known of each such sequence and plane, and how many frames each may fill
//! - `choose`: which pages shall be in tier 0, a pure function of scores
//! - `quota`: how much may be moved until when: measured bandwidth, precision, lateness
//! - `rank`: from scores to promotions, demotions and reads from NVMe
//! - `send`: those as jobs and transfers, and what became of them
//!
//! Sequences that everything fits for are none of its business. It decides nothing that changes a result: the agent masks what it
//! did not find. It must not know engines, clocks or bytes.

mod choose;
mod quota;
mod rank;
mod scores;
mod send;
mod track;

pub(crate) use scores::Scores;
pub(crate) use track::Soft;

use crate::predict::{Config, Predictor};
use serde::{Deserialize, Serialize};

/// Of a space: what is learnt from attention, and room to rank one plane of one sequence.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Prefetch {
    predictor: Predictor,
    /// Page ids of a sequence's plane, by index.
    ids: Vec<u32>,
    scores: Vec<f32>,
    order: Vec<u32>,
    top: Vec<(u32, f32)>,
    /// Missing pages that shall come, by index, with their predicted logarithm of a share.
    wanted: Vec<(u32, f32)>,
    /// Frames that show pages of it, with the same.
    there: Vec<(u32, f32)>,
}

impl Prefetch {
    /// Allocates everything that it will use.
    pub fn new(planes: usize, pages: usize, seq_blocks_max: u32, config: Config) -> Prefetch {
        let n = seq_blocks_max as usize;
        Prefetch {
            predictor: Predictor::new(planes, pages, config),
            ids: Vec::with_capacity(n),
            scores: Vec::with_capacity(n),
            order: Vec::with_capacity(n),
            top: Vec::with_capacity(n.min(crate::actions::LIST_MAX)),
            wanted: Vec::with_capacity(n),
            there: Vec::with_capacity(n),
        }
    }

    /// The ranking changes; what was learnt stays.
    pub fn configure(&mut self, config: Config) {
        self.predictor.configure(config);
    }

    /// The page id will stand for something else.
    pub fn forget(&mut self, page: u32) {
        self.predictor.forget(page);
    }

    pub fn bytes(&self) -> usize {
        self.predictor.bytes()
            + (self.ids.capacity() + self.scores.capacity() + self.order.capacity()) * 4
            + (self.top.capacity() + self.wanted.capacity() + self.there.capacity()) * 8
    }
}
