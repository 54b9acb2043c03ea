//! Which published content is given up first.
//!
//! Contents that nobody refers to stand in [`Queues`], one a *class*: how often the content was used, as far as is remembered, and
//! whether it was the last block of the prefix that used it; the cost-aware rule tells depths apart as well. A queue is in the order of last use (of one use, the deepest block
//! first). Each policy is a [`Rule`] that looks at the heads of the queues, so a change of policy moves nothing:
//!
//! - `ages`: which contents are too old to stay
//! - `marks`: how old the contents of a queue are, without a stamp in each
//! - `queues`: the queues, and what each rule gives up first
//! - `reuse`: how likely a content of a class and an age is used again, learnt from what is
//! - `cost`: what a hit saves, by how deep the content stands
//! - `ghost`: a small cache of names alone, that says what a policy would hit with a size
//! - `ghosts`: sampled ghosts of all policies and several sizes: what `auto` follows, and the miss-ratio curve
//! - `touches`: how often contents were used that may be gone
//! - `order`: all of it for one space
//!
//! Knows contents by number and hash only: nothing of parents, blocks, tiers or time of day. What stands on a content goes before it,
//! which is the caller's to see to.

mod advice;
mod ages;
mod cost;
mod ghost;
mod ghosts;
mod marks;
mod order;
mod queues;
mod reuse;
mod touches;

pub use advice::{Advice, Curve, SIZES, bytes_per_day};
pub(crate) use cost::BANDS;
pub(crate) use order::{Care, Order, Use};
#[cfg(test)]
pub(crate) use queues::Queues;
pub(crate) use touches::Touches;

use crate::api::Eviction;

/// Classes of contents by use: six by number of uses, and whether the content ended a prefix.
pub(crate) const CLASSES: usize = 12;

/// The class of a content that was used so often (at least once), and ended the prefix of its last use or not. Of chat traces: the end
/// of a prefix is rarely used again, since the next turn goes on from within it; and each use makes the next one likelier.
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

/// At least so many uses has a content of that class.
fn uses_of(class: u8) -> u8 {
    [1, 2, 3, 4, 5, 7][usize::from(class / 2).min(5)]
}

/// Whether contents of the class were used once only.
fn is_once(class: usize) -> bool {
    class < 2
}

/// The queue of contents of a class that stand in a band of depth.
fn queue_of(class: u8, band: u8) -> u8 {
    class * BANDS as u8 + band
}

/// The class of a queue's contents; [`CLASSES`] and more: priority decides.
fn class_of_queue(queue: u8) -> u8 {
    queue / BANDS as u8
}

/// A policy at work: what it looks at beside the queues.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rule<'a> {
    /// Never [`Eviction::Auto`]: the one that it follows.
    pub policy: Eviction,
    /// Of [`Eviction::Arc`]: share of the cache that contents used once may take, of [`SHARE`].
    pub once: u32,
    /// Of [`Eviction::CostAware`]: hits to expect, and what each saves, by band.
    pub values: &'a reuse::Values,
    pub saved_us: &'a [f64; BANDS],
}

/// The whole, in shares.
pub(crate) const SHARE: u32 = 1 << 16;
/// Share of the cache that S3-FIFO lets contents take that were used once: a tenth, as its authors do.
const SMALL: u32 = SHARE / 10;
