//! Attention over pages by the reading contract `exact`.
//!
//! A split of the reduction is one page, fixed by token index. Each page that a query may see gives a [`Partial`] per query
//! head; [`merge`] combines them strictly in index order. So the result does not depend on where pages were, nor on the order
//! in which they became readable: that order only decides when a partial is computed.
//!
//! Called by `model`; used by `kv` for the page's layout. Knows nothing of how a page was found.

mod merge;
mod page;
mod split;

pub use merge::{Partials, merge};
pub use page::{HeadPage, Page};
pub use split::{Partial, split};

/// Query heads.
pub const Q_HEADS: usize = 6;
/// KV heads.
pub const KV_HEADS: usize = 2;
/// Query heads that share a KV head.
pub const GROUP: usize = Q_HEADS / KV_HEADS;
/// Channels of a head.
pub const HEAD_DIM: usize = 32;
/// Tokens of a page.
pub const PAGE_TOKENS: usize = 64;

/// Floats that are summed side by side in registers.
pub const TILE: usize = 16;

/// Pages that hold `tokens` tokens of one plane.
#[must_use]
pub const fn pages_of(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS)
}
