//! Status of a space, published by its core thread.

use super::integrity_sample::SampleStats;
use super::nvme::NvmeStats;
use super::serve::{Space, ThreadStats};
use crate::session::{JobTimes, RequestTimes, SessionStats};
use crate::status::Hits;
use kvtide_tiering::evict::Advice;
use kvtide_tiering::{BudgetReport, Counters, Occupancy};
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
    #[serde(rename = "lingering")]
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
    #[serde(rename = "endurance")]
    pub budget: BudgetReport,
    /// Counters of its core thread.
    #[serde(rename = "shell")]
    pub stats: ThreadStats,
    /// NVMe pages that failed verification.
    pub nvme: NvmeStats,
    /// Counters of the integrity sample.
    #[serde(rename = "canary")]
    pub sample: SampleStats,
    /// Hits of its engines.
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
    /// Its hits.
    pub hits: Hits,
    /// Its stats.
    #[serde(flatten)]
    pub stats: SessionStats,
}

impl Space {
    /// Publish the status if due.
    pub fn publish(&mut self) {
        if self.figures.is_due() {
            let status = self.status();
            self.figures.publish(status);
        }
    }

    /// Return the current status.
    fn status(&mut self) -> SpaceStatus {
        let attached = self.session_entries.peers().filter_map(|peer| {
            let session = peer.session.as_ref()?;
            Some(SessionStatus {
                session: peer.number,
                requests_in_flight: session.requests_in_flight() as u64,
                jobs_in_flight: session.jobs_in_flight() as u64,
                hits: Hits::default(),
                stats: session.stats,
            })
        });
        SpaceStatus {
            attached: attached.collect(),
            space: self.number,
            name: self.name.clone(),
            domain: self.domain.clone(),
            sessions: self.session_entries.live(),
            waiting_for_exit: self.session_entries.waiting_for_exit(),
            slabs: self.slabs.len(),
            slab_bytes: self.slabs.bytes(),
            disk_slabs: self.nvme.slabs(),
            transfers: self.nvme.in_flight(),
            occupancy: self.core.occupancy(),
            core: *self.core.counters(),
            eviction: self.core.eviction_advice(),
            budget: self.core.budget_report(),
            stats: self.stats,
            nvme: self.nvme.stats,
            sample: self.sample.stats,
            hits: Hits::default(),
            request_times: self.request_times,
            job_times: self.job_times,
        }
    }
}
