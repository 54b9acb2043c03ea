//! Estimates from a space's ghosts: the effect of more memory, another disk or another policy.

use super::ghosts::POLICIES;
use crate::api::Eviction;
use serde::{Deserialize, Serialize};

/// Microseconds in a day.
const DAY_US: f64 = 24.0 * 3600.0 * 1e6;
/// Margin for bursts: half more than the mean, because a write budget saves at most one hour. In a replay of agents that take
/// turns, the hit rate was 0.553 with this margin, 0.540 with the mean alone and 0.585 without a limit
/// (`benches/replay/requests/tests.rs`).
const BURSTS: f64 = 1.5;

/// Number of ghost sizes besides the size of the cache.
pub const SIZES: usize = 6;

/// Estimated hit rate of a cache of a given size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Curve {
    /// Capacity of the cache, in entries; 0: there is no such cache.
    pub entries: u64,
    /// Share of recent uses that would have hit; `None` while too few were seen.
    pub hits: Option<f64>,
}

/// Estimates from the ghosts of a space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Advice {
    /// The configured policy.
    pub configured: Eviction,
    /// The active policy; differs from `configured` for `auto`.
    pub follow: Eviction,
    /// Bytes of an entry, over all shards.
    pub entry_bytes: u64,
    /// Capacity of all tiers below tier 0, in entries.
    pub entries: u64,
    /// Capacity of host memory, in entries; 0 if host memory is the only tier.
    pub host: u64,
    /// Measured share of recent uses that hit the cache. It equals the estimate for the active policy if everything is written
    /// and nothing was restarted.
    pub found: Option<f64>,
    /// Uses so far.
    pub uses: u64,
    /// Estimated hit rate of each policy at the current capacity.
    pub policies: [(Eviction, Option<f64>); POLICIES.len()],
    /// Estimated hit rate of the active policy at other sizes: a quarter, half, twice and four times the current capacity, then
    /// host memory alone and twice host memory.
    pub curve: [Curve; SIZES],
}

impl Advice {
    /// Return the hit rate of the current policy at the current capacity, if every published block were written.
    #[must_use]
    pub fn hits(&self) -> Option<f64> {
        self.policies.iter().find(|(policy, _)| *policy == self.follow).and_then(|(_, hits)| *hits)
    }
}

/// Return the bytes a day needed to write everything, with a margin for bursts: each miss is computed, published and written.
/// `hits`: hit rate in that case. `uses`: number of uses within `within_us` microseconds.
#[must_use]
pub fn bytes_per_day(hits: f64, uses: u64, within_us: u64, entry_bytes: u64) -> u64 {
    let entries = (1.0 - hits).max(0.0) * uses as f64;
    (BURSTS * entries * entry_bytes as f64 * DAY_US / within_us.max(1) as f64).round() as u64
}
