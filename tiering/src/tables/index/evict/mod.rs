//! Eviction order of published cache entries.
//!
//! Unreferenced leaves are in [`Queues`], apart by [`Residency`]: the head of a queue is the least valuable of it. Their unreferenced ancestors are
//! in queues of their own, because they can give up blocks. There is a queue for each *class*: how often the entry was used, as far
//! as is remembered, and whether it was the last block of the prefix that used it. The cost-aware rule also separates bands of
//! depth. A queue is in the order of last use; within one use, the deepest block comes first. Each policy is a [`Rule`] that
//! compares the heads of the queues, so a change of policy moves no entry:
//!
//! - `ages`: entries older than the TTL
//! - `age_marks`: age of the entries in a queue, without a timestamp in each
//! - `queues`: the queues, and what each rule evicts first
//! - `reuse`: probability of reuse by class and age, learned from observed reuse
//! - `cost`: time saved by a hit, by depth of the entry
//! - `ghost`: a cache of keys only, which estimates the hit rate of a policy at a size
//! - `ghosts`: sampled ghosts of all policies and several sizes: the choice of `auto`, and the miss-ratio curve
//! - `frequency`: use counts, also of entries that are gone
//! - `order`: all of these for one space
//! - `advice`: what they tell an operator
//!
//! This module knows entries by id and hash only. It does not know blocks, tiers or time of day.

mod advice;
mod age_marks;
mod ages;
mod cost;
mod frequency;
mod ghost;
mod ghosts;
mod order;
mod queues;
mod reuse;

pub use advice::{Advice, Curve, SIZES, bytes_per_day};
pub(crate) use cost::BANDS;
pub(crate) use frequency::FrequencySketch;
pub(crate) use order::{Order, Priority, Residency, Standing, Use};
pub(crate) use queues::Used;

use crate::api::Eviction;

/// Number of classes of entries by use: six ranges of use counts, times whether the entry ended a prefix.
pub(crate) const CLASSES: usize = 12;

/// Mix all bits of a hash. Engines choose the hashes, which may not be uniform: both halves may be equal.
pub(super) fn mix(hash: u128) -> u64 {
    let folded =
        (hash as u64).wrapping_mul(0x9e37_79b1_85eb_ca87) ^ ((hash >> 64) as u64).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    (folded ^ folded >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// Return the class of an entry with this number of uses (at least one); `end`: it ended the prefix of its last use. In chat
/// traces the end of a prefix is rarely used again, because the next turn continues from within it. Each use makes another one
/// more likely.
fn class_of(uses: u8, end: bool) -> u8 {
    let uses = match uses {
        0 | 1 => 0,
        2 => 1,
        3 => 2,
        4 => 3,
        5 | 6 => 4,
        _ => 5,
    };
    uses * 2 + u8::from(end)
}

/// Return the smallest number of uses in a class.
fn uses_of(class: u8) -> u8 {
    [1, 2, 3, 4, 5, 7][usize::from(class / 2).min(5)]
}

/// Return whether entries of the class were used once only.
fn is_used_once(class: usize) -> bool {
    class < 2
}

/// Return the queue of entries of a class in a band of depth.
fn queue_of(class: u8, band: u8) -> u8 {
    class * BANDS as u8 + band
}

/// Return the class of a queue's entries; [`CLASSES`] and above are the queues of low and high priority, and of parents of stores.
fn class_of_queue(queue: u8) -> u8 {
    queue / BANDS as u8
}

/// An active policy, and the state that it needs besides the queues.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rule<'a> {
    /// Never [`Eviction::Auto`]; for `auto`, the policy that it follows.
    pub policy: Eviction,
    /// For [`Eviction::Arc`]: share of the cache for entries used once, in units of 1/[`SHARE`].
    pub used_once: u32,
    /// For [`Eviction::CostAware`]: expected hits, and microseconds saved by a hit, by band.
    pub values: &'a reuse::Values,
    pub saved_us: &'a [f64; BANDS],
}

/// The whole cache, in units of shares.
pub(crate) const SHARE: u32 = 1 << 16;
/// Share of the cache for entries used once in S3-FIFO: one tenth, as in its paper.
const SMALL: u32 = SHARE / 10;
