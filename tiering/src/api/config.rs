//! Configuration of a space: its planes, limits and policies.

use super::{Admission, Eviction, Plane};
use serde::{Deserialize, Serialize};

/// Properties of a space that are fixed for its lifetime. Planes with equal `page_bytes` form a size class. Classes are numbered in
/// the order in which their first plane appears.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceConfig {
    /// Tokens per page.
    pub page_tokens: u32,
    /// Planes of one shard, in the order in which a step visits them. All shards have the same planes.
    pub planes: Vec<Plane>,
    /// Number of shards: tensor-, pipeline- or context-parallel ranks. A lookup finds a block only when every shard has published
    /// its part.
    pub shards: u16,
    /// Limits. A request above a limit fails with [`Status::Limit`].
    pub limits: Limits,
    /// Policy.
    pub policy: Policy,
}

/// Limits of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Maximum number of sessions attached at the same time.
    pub sessions_max: u16,
    /// Maximum number of blocks of the space, sealed or not, in any tier.
    pub blocks_max: u32,
    /// Maximum number of sequences per session.
    pub seqs_max: u32,
    /// Maximum number of blocks per sequence.
    pub seq_blocks_max: u32,
    /// Maximum number of lanes per session.
    pub lanes_max: u16,
    /// Maximum number of jobs in flight per session: the depth of its job ring.
    pub jobs_max: u32,
    /// Maximum number of requests in flight per session: channels × depth.
    pub requests_max: u32,
    /// Maximum bytes of host frames that the space holds over all classes.
    pub host_bytes_max: u64,
    /// Maximum bytes of NVMe slots that the space holds; 0: no NVMe tier.
    pub nvme_bytes_max: u64,
    /// Maximum number of transfers between host and NVMe in flight.
    pub ios_max: u32,
    /// Maximum number of cached blocks, including those only on NVMe.
    pub entries_max: u32,
    /// Maximum number of requests to the index logs in flight: records, erasures, flushes.
    pub log_requests_max: u32,
}

/// Which pages of `approx` sequences are kept in tier 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attention {
    /// Number of first pages of a sequence that tier 0 always keeps; at least 1.
    pub sinks: u16,
    /// Number of last sealed pages of a sequence that tier 0 always keeps; at least 2.
    pub recent: u16,
    /// Percent of the measured host-to-tier-0 bandwidth that predicted loads may use, 1 to 100.
    pub bandwidth_percent: u8,
}

impl Default for Attention {
    fn default() -> Self {
        Attention { sinks: 1, recent: 2, bandwidth_percent: 90 }
    }
}

/// Further rules for how long unreferenced published blocks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Retention {
    /// Maximum age in microseconds since the last use; an older block is evicted after at most another tenth of it. 0: no maximum.
    pub ttl_us: u64,
    /// While blocks of high-priority sequences are at most this percentage of all blocks, they are evicted after all others.
    pub high_share_percent: u8,
    /// Tokens per second that the engine computes at the beginning of a sequence, over all shards. 0: unknown; every hit then has
    /// equal value.
    pub recompute_tokens_per_s: u32,
    /// Position in tokens at which attention over the preceding tokens takes as long as all other computation for a token. 0:
    /// attention takes no time.
    pub attention_doubles_at: u32,
    /// A sequence with at most this number of remaining tokens is nearly finished: its blocks will soon be free. 0: no sequence
    /// counts as nearly finished.
    pub ending_tokens: u32,
}

impl Retention {
    /// No maximum age, half of the capacity for high priority, and the computing speed of a model with 8B parameters on one GPU.
    ///
    /// Such a model (32 layers of 4,096 query channels) needs 2 × 7.5 × 10^9 operations per token for its weights. Attention needs
    /// 4 × 32 × 4,096 more for each preceding token (Chowdhery et al., PaLM, appendix B: 12 per training token, a third of it
    /// forward). Both are equal at 28,600 tokens. A GPU of 990 × 10^12 dense bf16 operations per second (H100 SXM data sheet) at
    /// half of its peak computes 33,000 tokens per second.
    pub const DEFAULT: Retention = Retention {
        ttl_us: 0,
        high_share_percent: 50,
        recompute_tokens_per_s: 30_000,
        attention_doubles_at: 30_000,
        ending_tokens: 32,
    };

    /// Return the time to compute `tokens` tokens that stand behind `position` others, in microseconds; 0 if the rate is unknown.
    #[must_use]
    pub fn recompute_us(&self, position: u64, tokens: u64) -> u64 {
        if self.recompute_tokens_per_s == 0 {
            return 0;
        }
        let attention = match self.attention_doubles_at {
            0 => 0.0,
            doubles_at => position as f64 / f64::from(doubles_at),
        };
        (tokens as f64 * 1e6 / f64::from(self.recompute_tokens_per_s) * (1.0 + attention)) as u64
    }
}

impl Default for Retention {
    fn default() -> Retention {
        Retention::DEFAULT
    }
}

/// Policy of a space: settings that never change a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Write-back of a tier-0 class starts when less than this percentage of its frames is free or clean.
    pub clean_low_percent: u8,
    /// Write-back of a tier-0 class stops at this percentage.
    pub clean_high_percent: u8,
    /// Percentage of host frames in use above which unreferenced published blocks are evicted from host memory, in the order of
    /// `eviction`: to NVMe, or dropped if there is none.
    pub host_high_percent: u8,
    /// Percentage of host frames in use at which that eviction stops.
    pub host_low_percent: u8,
    /// Write-back to NVMe starts when less than this percentage of a class's host frames is free or has a copy on NVMe.
    pub host_clean_low_percent: u8,
    /// Percentage at which that write-back stops.
    pub host_clean_high_percent: u8,
    /// Host frames per class that stream the pages of a scan larger than tier 0 and host together. The other frames keep a fixed
    /// part of the scan.
    pub host_scan_frames: u32,
    /// Percentage of NVMe slots in use above which unreferenced published blocks are dropped, in the order of `eviction`.
    pub nvme_high_percent: u8,
    /// Percentage of NVMe slots in use at which dropping stops.
    pub nvme_low_percent: u8,
    /// Which published blocks are written to NVMe.
    pub nvme_admission: Admission,
    /// Bytes that may be written to NVMe per day; 0: unlimited.
    pub nvme_bytes_per_day: u64,
    /// Order in which unreferenced published blocks are evicted.
    pub eviction: Eviction,
    /// Further rules for how long they are kept.
    pub retention: Retention,
    /// Tier-0 frames per class that stream the pages of a cyclic scan. The other frames keep a fixed part of the scan resident.
    pub scan_frames: u32,
    /// Attention-driven prefetch for `approx` sequences.
    pub attention: Attention,
    /// Deadline in microseconds of requests that specify none.
    pub request_timeout_us: u64,
    /// Maximum duration of a lease, in microseconds.
    pub lease_us_max: u64,
    /// Maximum percentage of the capacity of host and NVMe that leases may pin. A session that is alone on its shard has no limit.
    pub lease_percent: u8,
}

impl Policy {
    /// Return the policy that tests and benchmarks begin with: LRU, no write budget, no limit of leases.
    #[must_use]
    pub fn plain() -> Policy {
        Policy {
            clean_low_percent: 25,
            clean_high_percent: 50,
            host_high_percent: 95,
            host_low_percent: 80,
            host_clean_low_percent: 10,
            host_clean_high_percent: 20,
            host_scan_frames: 8,
            nvme_high_percent: 95,
            nvme_low_percent: 90,
            nvme_admission: Admission::All,
            nvme_bytes_per_day: 0,
            eviction: Eviction::Lru,
            retention: Retention::default(),
            scan_frames: 2,
            attention: Attention::default(),
            request_timeout_us: 1000,
            lease_us_max: u64::MAX,
            lease_percent: 100,
        }
    }
}
