//! Prefetch driven by attention: engines say what they read and what they expect to read, and the pages that the next steps of
//! `approx` sequences will read are in tier 0 before they are read.
//!
//! - `scores`: what engines say, checked and learnt from; contracts
//! - `track`: what is known of each such sequence and plane, and how many frames each may fill
//! - `look`: which pages are worth a look at all
//! - `choose`: which pages shall be in tier 0, a pure function of scores
//! - `quota`: how much may be moved until when: measured bandwidth, precision, lateness
//! - `rank`: from scores to promotions, demotions and reads from NVMe
//! - `send`: those as jobs and transfers, and what became of them
//!
//! Sequences that everything fits for are none of its business. It decides nothing that changes a result: the agent masks what it
//! did not find. It must not know engines, clocks or bytes.

mod choose;
mod look;
mod quota;
mod rank;
mod scores;
mod send;
mod track;

pub(crate) use quota::Link;
pub(crate) use scores::Scores;
pub(crate) use track::Soft;
pub(super) use track::burst_frames;

use crate::predict::{Config, Predictor};
use crate::sequences::CHUNK;
use choose::Rank;
use serde::{Deserialize, Serialize};

/// Of a space: what is learnt from attention, and room to rank one plane of one sequence.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Prefetch {
    predictor: Predictor,
    /// Chunks of lists of blocks, of all sequences.
    chunks: usize,
    /// By plane and chunk, a bit a position: its page is near what is kept.
    near: Vec<u32>,
    /// Bits of positions, of the sequence in hand.
    marks: Vec<u32>,
    /// Blocks of the sequence in hand, by index.
    blocks: Vec<u32>,
    /// Of its pages in the plane in hand, those that are looked at, by index: so many always, then those whose turn it is.
    at: Vec<u32>,
    often: usize,
    turn: Vec<u32>,
    /// Of those, one after the other: what is predicted; the frame that shows it or is about to, or none.
    scores: Vec<f32>,
    seats: Vec<u32>,
    order: Vec<Rank>,
    top: Vec<(u32, f32)>,
    /// Missing pages that shall come, by index, with their predicted logarithm of a share.
    wanted: Vec<(u32, f32)>,
    /// Frames that show pages of it, with the same.
    there: Vec<(u32, f32)>,
}

impl Prefetch {
    /// Allocates everything that it will use.
    pub fn new(planes: usize, blocks: usize, chunks: usize, seq_blocks_max: u32, config: Config) -> Prefetch {
        let n = seq_blocks_max as usize;
        Prefetch {
            predictor: Predictor::new(planes, blocks, n, config),
            chunks,
            near: vec![0; planes * chunks],
            marks: Vec::with_capacity(n.div_ceil(CHUNK as usize)),
            blocks: Vec::with_capacity(n),
            at: Vec::with_capacity(n),
            often: 0,
            turn: Vec::with_capacity(n),
            scores: Vec::with_capacity(n),
            seats: Vec::with_capacity(n),
            order: Vec::with_capacity(n),
            top: Vec::with_capacity(n.min(crate::actions::LIST_MAX)),
            wanted: Vec::with_capacity(n),
            there: Vec::with_capacity(n + 1),
        }
    }

    /// The ranking changes; what was learnt stays.
    pub fn configure(&mut self, config: Config) {
        self.predictor.configure(config);
    }

    /// The block's page in the plane will stand for something else.
    pub fn forget(&mut self, plane: u16, block: u32) {
        self.predictor.forget(plane, block);
    }

    pub fn bytes(&self) -> usize {
        self.predictor.bytes()
            + (self.near.capacity() + self.marks.capacity() + self.blocks.capacity()) * 4
            + (self.at.capacity() + self.turn.capacity() + self.scores.capacity() + self.seats.capacity()) * 4
            + (self.order.capacity() + self.top.capacity() + self.wanted.capacity() + self.there.capacity()) * 8
    }
}
