//! How a space stands, as its core thread publishes it.

use super::canary::CanaryTally;
use super::nvme::NvmeTally;
use super::serve::{Space, Tally};
use crate::session::{JobTimes, RequestTimes, SessionTally};
use kvtide_tiering::evict::Advice;
use kvtide_tiering::{Counters, Endurance, Occupancy};
use serde::Serialize;

/// One space.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SpaceStatus {
    /// Number of the space.
    pub space: u32,
    /// Name that its first engine gave it.
    pub name: String,
    /// Its domain.
    pub domain: String,
    /// Live sessions.
    pub sessions: usize,
    /// Sessions that have left and whose frames are still in quarantine.
    pub lingering: usize,
    /// Slabs held.
    pub slabs: usize,
    /// Their bytes.
    pub slab_bytes: u64,
    /// Regions of disks held.
    pub disk_slabs: usize,
    /// Transfers between host memory and disks on their way.
    pub transfers: usize,
    /// How full it is.
    pub occupancy: Occupancy,
    /// What the core counts.
    pub core: Counters,
    /// What its ghost caches say of other sizes and policies.
    pub eviction: Advice,
    /// What it may write to NVMe.
    pub endurance: Endurance,
    /// What the shell around it counts.
    pub shell: Tally,
    /// Pages on NVMe that were not what was written.
    pub nvme: NvmeTally,
    /// What the canary counts.
    pub canary: CanaryTally,
    /// How long requests took.
    pub request_times: RequestTimes,
    /// How long jobs took.
    pub job_times: JobTimes,
    /// Each live session.
    pub attached: Vec<SessionStatus>,
}

/// One live session, as its core thread knows it.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct SessionStatus {
    /// Its number.
    pub session: u32,
    /// Requests in flight: the depth of its rings.
    pub requests_in_flight: u64,
    /// Jobs in flight.
    pub jobs_in_flight: u64,
    /// What it has done.
    #[serde(flatten)]
    pub tally: SessionTally,
}

impl Space {
    /// Publishes how it stands, if that is due.
    pub fn publish(&mut self) {
        if self.figures.is_due() {
            let status = self.status();
            self.figures.publish(status);
        }
    }

    /// How it stands.
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
