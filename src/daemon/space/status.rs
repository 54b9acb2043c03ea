//! Status of a space, published by its core thread.

use super::canary::CanaryTally;
use super::nvme::NvmeTally;
use super::serve::{Space, Tally};
use crate::session::{JobTimes, RequestTimes, SessionTally};
use kvtide_tiering::evict::Advice;
use kvtide_tiering::{Counters, Endurance, Occupancy};
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
    pub lingering: usize,
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
    pub endurance: Endurance,
    /// Counters of its core thread.
    pub shell: Tally,
    /// NVMe pages that failed verification.
    pub nvme: NvmeTally,
    /// Counters of the integrity sample.
    pub canary: CanaryTally,
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
    /// Its stats.
    #[serde(flatten)]
    pub tally: SessionTally,
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
        let attached = self.seats.guests().filter_map(|guest| {
            let session = guest.session.as_ref()?;
            Some(SessionStatus {
                session: guest.number,
                requests_in_flight: session.requests_in_flight() as u64,
                jobs_in_flight: session.jobs_in_flight() as u64,
                tally: session.tally,
            })
        });
        SpaceStatus {
            attached: attached.collect(),
            space: self.number,
            name: self.name.clone(),
            domain: self.domain.clone(),
            sessions: self.seats.live(),
            lingering: self.seats.lingering(),
            slabs: self.slabs.len(),
            slab_bytes: self.slabs.bytes(),
            disk_slabs: self.nvme.slabs(),
            transfers: self.nvme.in_flight(),
            occupancy: self.core.occupancy(),
            core: *self.core.counters(),
            eviction: self.core.eviction_advice(),
            endurance: self.core.endurance(),
            shell: self.tally,
            nvme: self.nvme.tally,
            canary: self.canary.tally,
            request_times: self.request_times,
            job_times: self.job_times,
        }
    }
}
