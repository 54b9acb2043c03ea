//! Before the first session: what an earlier run left of the space is told to the core. Whoever comes before that waits.

use super::letters::{Newcomer, Region};
use super::nvme::Restore;
use super::serve::Space;
use crate::host::NodeLetter;
use kvtide_tiering::api::Event;

/// How far the space has come.
#[derive(Debug)]
pub(super) enum Arrival {
    /// The node will tell what there is.
    Expected(Vec<Newcomer>),
    /// Sessions may attach.
    Over,
}

impl Arrival {
    /// Of a space with disks, or without.
    pub fn new(disks: bool) -> Arrival {
        if disks { Arrival::Expected(Vec::new()) } else { Arrival::Over }
    }

    /// Whether sessions may attach.
    pub fn is_over(&self) -> bool {
        matches!(self, Arrival::Over)
    }
}

impl Space {
    /// Seats a newcomer, once the space knows what it has. How many may wait is bounded: each was counted as a session.
    pub fn arrive(&mut self, now_us: u64, newcomer: Box<Newcomer>) {
        match &mut self.arrival {
            Arrival::Expected(waiting) => waiting.push(*newcomer),
            Arrival::Over => self.attach(now_us, *newcomer),
        }
    }

    /// Seats those who wait, or tells them why not.
    pub fn admit_all(&mut self, now_us: u64) {
        let Arrival::Expected(waiting) = &mut self.arrival else { return };
        for newcomer in std::mem::take(waiting) {
            self.attach(now_us, newcomer);
        }
    }

    /// Takes what an earlier run left, and seats who waits. In one go, with nothing else told in between: the core gives a slab back
    /// in which it knows of nothing. That takes a second for some hundred thousand blocks, and nobody is served here yet.
    pub fn adopt(&mut self, now_us: u64, regions: Vec<Region>) {
        if self.arrival.is_over() {
            return tracing::error!("space {}: the node brought what an earlier run left twice", self.number);
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
        (self.tally.restored, self.tally.unreachable) = (restore.len() as u64, restore.unreachable() as u64);
        if slabs > 0 {
            let (number, blocks, unreachable) = (self.number, restore.len(), restore.unreachable());
            tracing::info!(
                "space {number}: {blocks} blocks in {slabs} slabs on NVMe are there from an earlier run, {unreachable} of them \
                 without their ancestors, to be let go"
            );
        }
        self.admit_all(now_us);
        self.arrival = Arrival::Over;
    }

    /// The node granted a region.
    pub fn disk_granted(&mut self, now_us: u64, region: &Region) {
        self.regions_asked = self.regions_asked.saturating_sub(1);
        self.nvme.add(region);
        let (grant, generation) = (region.grant, region.generation);
        let (slab, slots, disk) = (grant.slab, grant.slots, grant.disk as u16);
        self.tell(now_us, Event::DiskGranted { slab, slots, disk, generation });
    }

    /// The node has no region to grant now.
    pub fn disk_refused(&mut self, now_us: u64) {
        self.regions_asked = self.regions_asked.saturating_sub(1);
        self.tell(now_us, Event::DiskRefused);
    }

    /// The disk of a slab is out of service: the core lets go of it, and the node has it back when nothing is under way there.
    pub fn disk_gone(&mut self, now_us: u64, slab: u32) {
        if self.nvme.lose(slab) {
            self.tell(now_us, Event::DiskGone { slab });
        }
    }

    /// Gives back the slabs of disks out of service to which nothing is under way any more.
    pub fn return_lost(&mut self) {
        while let Some(slab) = self.nvme.next_lost() {
            self.node.send(NodeLetter::ReturnDisk { space: self.number, slab });
        }
    }
}
