//! Recovery before the first session: the core gets the blocks that an earlier run left. Attach requests wait until then.

use super::messages::{AttachRequest, Region};
use super::nvme::Restore;
use super::serve::Space;
use crate::host::NodeMessage;
use kvtide_tiering::api::Event;

/// State of the recovery.
#[derive(Debug)]
pub(super) enum RestoreState {
    /// Waiting for the node's list of regions; these attach requests wait.
    Expected(Vec<AttachRequest>),
    /// Complete: sessions may attach.
    Over,
}

impl RestoreState {
    /// Create the state; only a space with disks waits.
    pub fn new(disks: bool) -> RestoreState {
        if disks { RestoreState::Expected(Vec::new()) } else { RestoreState::Over }
    }

    /// Return true if sessions may attach.
    pub fn is_over(&self) -> bool {
        matches!(self, RestoreState::Over)
    }
}

impl Space {
    /// Handle an attach request, or queue it until recovery is complete. The queue is bounded, since each request counts as a
    /// session.
    pub fn attach_or_queue(&mut self, now_us: u64, request: Box<AttachRequest>) {
        match &mut self.restore_state {
            RestoreState::Expected(waiting) => waiting.push(*request),
            RestoreState::Over => self.attach(now_us, *request),
        }
    }

    /// Attach or refuse the waiting sessions.
    pub fn admit_all(&mut self, now_us: u64) {
        let RestoreState::Expected(waiting) = &mut self.restore_state else { return };
        for request in std::mem::take(waiting) {
            self.attach(now_us, request);
        }
    }

    /// Restore the blocks of an earlier run, then handle the waiting attach requests. The core gets all blocks before any other
    /// event, because it returns slabs without known blocks. This takes about a second for some hundred thousand blocks; no session
    /// is served yet.
    pub fn adopt(&mut self, now_us: u64, regions: Vec<Region>) {
        if self.restore_state.is_over() {
            return tracing::error!("space {}: the node sent the regions of an earlier run twice", self.number);
        }
        let slabs = regions.len();
        for region in &regions {
            self.nvme.add(region);
            let (grant, generation) = (region.grant, region.generation);
            let (slab, slots, disk) = (grant.slab, grant.slots, grant.disk as u16);
            self.tell(now_us, Event::DiskAdopted { slab, slots, disk, generation });
        }
        let mut restore = Restore::new(regions);
        while let Some((at, put)) = restore.next() {
            let (shard, hash, parent, planes) = (put.shard, put.hash, put.parent, put.present);
            self.tell(now_us, Event::Restored { at, shard, hash, parent, planes });
        }
        (self.stats.restored, self.stats.unreachable) = (restore.len() as u64, restore.unreachable() as u64);
        if slabs > 0 {
            let (number, blocks, unreachable) = (self.number, restore.len(), restore.unreachable());
            tracing::info!(
                "space {number}: recovered {blocks} blocks in {slabs} NVMe slabs of an earlier run; {unreachable} of them lost \
                 their ancestors and are dropped"
            );
        }
        self.admit_all(now_us);
        self.restore_state = RestoreState::Over;
    }

    /// Handle a granted region.
    pub fn disk_granted(&mut self, now_us: u64, region: &Region) {
        self.regions_asked = self.regions_asked.saturating_sub(1);
        self.nvme.add(region);
        let (grant, generation) = (region.grant, region.generation);
        let (slab, slots, disk) = (grant.slab, grant.slots, grant.disk as u16);
        self.tell(now_us, Event::DiskGranted { slab, slots, disk, generation });
    }

    /// Handle a refused request for a region.
    pub fn disk_refused(&mut self, now_us: u64) {
        self.regions_asked = self.regions_asked.saturating_sub(1);
        self.tell(now_us, Event::DiskRefused);
    }

    /// Handle a slab on a disk that is out of service: the core drops it, and the node gets it back when no transfer is in flight
    /// there.
    pub fn disk_gone(&mut self, now_us: u64, slab: u32) {
        if self.nvme.lose(slab) {
            self.tell(now_us, Event::DiskGone { slab });
        }
    }

    /// Return slabs of disks out of service that have no transfers in flight.
    pub fn return_lost(&mut self) {
        while let Some(slab) = self.nvme.next_lost() {
            self.node.send(NodeMessage::ReturnDisk { space: self.number, slab });
        }
    }
}
