//! What the ghosts of a space say, for whoever asks what more memory, another disk or another policy would buy.

use crate::api::Eviction;
use serde::{Deserialize, Serialize};

/// Sizes that there are ghosts of beside that of the cache.
pub const SIZES: usize = 6;

/// The share of uses that would have found their content with a cache of a size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Contents that the cache holds; 0: there is no such cache.
    pub contents: u64,
    /// Recent uses that found their content, of all; `None` while too few were seen.
    pub hits: Option<f64>,
}

/// What the ghosts of a space say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// The policy that is configured.
    pub configured: Eviction,
    /// The one that is followed now.
    pub follow: Eviction,
    /// Bytes of a content, of all shards.
    pub content_bytes: u64,
    /// Contents that all tiers below tier 0 hold.
    pub contents: u64,
    /// Contents that host memory holds; 0 if that is all of it.
    pub host: u64,
    /// What each policy would hit with as many contents as there are.
    pub policies: [(Eviction, Option<f64>); 4],
    /// What the policy that is followed would hit with other sizes: a quarter, half, twice and four times all of it, then host memory
    /// alone and twice of it.
    pub curve: [Curve; SIZES],
}
