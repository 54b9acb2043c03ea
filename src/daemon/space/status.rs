//! Status of a space, published by its core thread.

use super::integrity_sample::SampleStats;
use super::nvme::NvmeStats;
use super::serve::{Space, ThreadStats};
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
        let core = &self.core;
        let attached = self.session_entries.peers().filter_map(|(session_id, peer)| {
            let session = peer.session.as_ref()?;
            let mut hits = core.hits(session_id).unwrap_or_default();
            hits.load_us += session.stats.load_us;
            Some(SessionStatus {
                session: peer.number,
                hits,
                requests_in_flight: session.requests_in_flight() as u64,
                jobs_in_flight: session.jobs_in_flight() as u64,
                stats: session.stats,
            })
        });
        let mut hits = core.counters().hits;
        // All shards load the same blocks, at the same time.
        hits.load_us += self.request_times.load.sum_us / u64::from(core.config().shards);
        SpaceStatus {
            hits,
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
            request_times: self.request_times,
            job_times: self.job_times,
        }
    }
}
