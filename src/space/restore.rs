//! Before the first session: what an earlier run left of the space is told to the core, some of it a round, so that the thread
//! answers letters meanwhile. Whoever comes before that is over waits.

use super::letters::{Newcomer, Region};
use super::nvme::Restore;
use super::serve::Space;
use crate::host::NodeLetter;
use kvtide_tiering::api::Event;

/// Blocks that are told in one round: some milliseconds of the core's time.
const TURN: usize = 4096;

/// How far the space has come.
#[derive(Debug)]
pub(super) enum Arrival {
    /// The node will tell what there is.
    Expected(Vec<Newcomer>),
    /// The core is being told.
    Restoring(Box<Restore>, Vec<Newcomer>),
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
            Arrival::Expected(waiting) | Arrival::Restoring(_, waiting) => waiting.push(*newcomer),
            Arrival::Over => self.attach(now_us, *newcomer),
        }
    }

    /// Seats those who wait, or tells them why not.
    pub fn admit_all(&mut self, now_us: u64) {
        let (Arrival::Expected(waiting) | Arrival::Restoring(_, waiting)) = &mut self.arrival else { return };
        for newcomer in std::mem::take(waiting) {
            self.attach(now_us, newcomer);
        }
    }

    /// Takes what an earlier run left.
    pub fn adopt(&mut self, now_us: u64, regions: Vec<Region>) {
        let Arrival::Expected(waiting) = &mut self.arrival else {
            return tracing::error!("space {}: the node brought what an earlier run left twice", self.number);
        };
        let waiting = std::mem::take(waiting);
        for region in &regions {
            self.nvme.add(region);
            let (grant, generation) = (region.grant, region.generation);
            let (slab, slots, disk) = (grant.slab, grant.slots, grant.disk as u16);
            self.tell(now_us, Event::DiskAdopted { slab, slots, disk, generation });
        }
        let (slabs, restore) = (regions.len(), Restore::new(regions));
        if slabs > 0 {
            let blocks = restore.len();
            tracing::info!(
                "space {}: {blocks} blocks in {slabs} slabs on NVMe are there from an earlier run",
                self.number
            );
        }
        self.arrival = Arrival::Restoring(Box::new(restore), waiting);
    }

    /// Tells the core some of what is there; after the last, whoever waits attaches. False if there was nothing to do.
    pub fn restore(&mut self, now_us: u64) -> bool {
        let Arrival::Restoring(restore, _) = &mut self.arrival else { return false };
        // Out of the space while it tells the core.
        let mut restore = std::mem::take(restore);
        for _ in 0..TURN {
            let Some((at, put)) = restore.next() else { break };
            let (shard, hash, parent, planes) = (put.shard, put.hash, put.parent, put.present);
            self.tell(now_us, Event::Restored { at, shard, hash, parent, planes });
        }
        self.tally.restored = restore.told() as u64;
        if restore.told() == restore.len() {
            self.tally.unreachable = restore.unreachable() as u64;
            if self.tally.unreachable > 0 {
                let unreachable = self.tally.unreachable;
                tracing::warn!(
                    "space {}: {unreachable} blocks on NVMe lack their ancestors and are let go",
                    self.number
                );
            }
            self.admit_all(now_us);
            self.arrival = Arrival::Over;
        } else if let Arrival::Restoring(home, _) = &mut self.arrival {
            *home = restore;
        }
        true
    }

    /// The node granted a region.
    pub fn disk_granted(&mut self, now_us: u64, region: &Region) {
        self.nvme.add(region);
        let (grant, generation) = (region.grant, region.generation);
        let (slab, slots, disk) = (grant.slab, grant.slots, grant.disk as u16);
        self.tell(now_us, Event::DiskGranted { slab, slots, disk, generation });
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
