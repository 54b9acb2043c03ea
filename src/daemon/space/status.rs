//! Status of a space, published by its core thread.

use super::integrity_sample::SampleStats;
use super::nvme::NvmeStats;
use crate::session::{JobTimes, RequestTimes, SessionStats};
use kvtide_tiering::evict::Advice;
use kvtide_tiering::{BudgetReport, Counters, Hits, Occupancy};
use serde::{Deserialize, Serialize};

/// Status of a space.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SpaceStatus {
    /// Number of the space.
    pub space: u32,
    /// Name given by its first engine.
    pub name: String,
    /// Its domain.
    pub domain: String,
    /// Live sessions.
    pub sessions: usize,
    /// Ended sessions with a process that has not exited or with quarantined frames.
    pub waiting_for_exit: usize,
    /// Slabs held.
    pub slabs: usize,
    /// Bytes of the slabs.
    pub slab_bytes: u64,
    /// Disk regions held.
    pub disk_slabs: usize,
    /// Transfers in flight between host memory and disks.
    pub transfers: usize,
    /// Occupancy of the tiers.
    pub occupancy: Occupancy,
    /// Counters of the core.
    pub core: Counters,
    /// Estimates of its ghost caches for other sizes and policies.
    pub eviction: Advice,
    /// Its NVMe write budget.
    pub budget: BudgetReport,
    /// Counters of its core thread.
    pub stats: ThreadStats,
    /// NVMe pages that failed verification.
    pub nvme: NvmeStats,
    /// Counters of the integrity sample.
    pub sample: SampleStats,
    /// What its prefix cache gave to engines.
    pub hits: Hits,
    /// Durations of requests.
    pub request_times: RequestTimes,
    /// Durations of jobs.
    pub job_times: JobTimes,
    /// The live sessions.
    pub attached: Vec<SessionStatus>,
}

/// Status of a live session.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionStatus {
    /// Its number.
    pub session: u32,
    /// Requests in flight.
    pub requests_in_flight: u64,
    /// Jobs in flight.
    pub jobs_in_flight: u64,
    /// What the prefix cache gave to it.
    pub hits: Hits,
    /// Its stats.
    #[serde(flatten)]
    pub stats: SessionStats,
}

/// Stats of a space's core thread.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadStats {
    /// Requests of engines.
    pub requests: u64,
    /// Jobs completed by engines.
    pub jobs: u64,
    /// Bytes of the successful ones.
    pub job_bytes: u64,
    /// Completed transfers between host memory and disks.
    pub transfers: u64,
    /// Completed log requests.
    pub log_requests: u64,
    /// Restored blocks of an earlier run.
    pub restored: u64,
    /// Restored blocks with lost ancestors.
    pub unreachable: u64,
}
