//! Attention over pages with the reading contract `exact`.
//!
//! Each page is one split of the reduction, fixed by token index. Each page that a query may see gives a [`Partial`] per query
//! head; [`merge`] combines them strictly in index order. The result therefore does not depend on the location of pages or the
//! order in which they become readable, which only decides when a partial is computed.
//!
//! Called by `model`; used by `kv` for the page layout. Does not depend on how a page is found.

mod merge;
mod page;
mod split;

pub use merge::{Partials, merge};
pub use page::{HeadPage, Heads, Page, write};
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

/// Return the number of pages for `tokens` tokens of one plane.
#[must_use]
pub const fn pages_of(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS)
}
