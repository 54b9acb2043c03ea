//! What the ghosts of a space say, for whoever asks what more memory, another disk or another policy would buy.

use crate::api::Eviction;
use serde::{Deserialize, Serialize};

/// Microseconds of a day.
const DAY_US: f64 = 24.0 * 3600.0 * 1e6;
/// Requests come in bursts, and a write budget saves an hour at most: half more than the mean. In a replay of agents that take turns this
/// found .553 where the mean alone found .540 and no bound .585 (`src/replay/requests/tests.rs`).
const BURSTS: f64 = 1.5;

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
    /// The share of recent uses that found their content in the cache itself. With everything written, and no restart in between, it is
    /// that of the policy that is followed.
    pub found: Option<f64>,
    /// Uses so far.
    pub uses: u64,
    /// What each policy would hit with as many contents as there are.
    pub policies: [(Eviction, Option<f64>); 4],
    /// What the policy that is followed would hit with other sizes: a quarter, half, twice and four times all of it, then host memory
    /// alone and twice of it.
    pub curve: [Curve; SIZES],
}

impl Advice {
    /// Return the hit rate of the current policy at the current capacity, if every published block were written.
    #[must_use]
    pub fn hits(&self) -> Option<f64> {
        self.policies.iter().find(|(policy, _)| *policy == self.follow).and_then(|(_, hits)| *hits)
    }
}

/// Bytes a day for writing everything: each miss is computed, published and written. With a margin for bursts. `hits`: the share that is found
/// then; `uses` came within `within_us` microseconds.
#[must_use]
pub fn bytes_per_day(hits: f64, uses: u64, within_us: u64, content_bytes: u64) -> u64 {
    let contents = (1.0 - hits).max(0.0) * uses as f64;
    (BURSTS * contents * content_bytes as f64 * DAY_US / within_us.max(1) as f64).round() as u64
}
