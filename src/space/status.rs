//! How a space stands, for whoever asks by letter.

use super::serve::{Space, Tally};
use kvtide_tiering::{Counters, Occupancy};
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
    /// What the shell around it counts.
    pub shell: Tally,
}

impl Space {
    /// How it stands.
    pub fn status(&mut self) -> SpaceStatus {
        SpaceStatus {
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
            shell: self.tally,
        }
    }
}
