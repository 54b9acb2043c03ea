//! The host thread at work.

use super::pool::Pool;
use super::{HostStatus, NodeLetter};
use crate::config::Config;
use crate::io::{Disk, DiskEvent, DiskLetter, Memory};
use crate::mail::{Address, Mailbox};
use crate::space::{Granted, Letter};
use kvtide_tiering::node::{DiskConfig, Disks, DisksConfig, Grant, NoDisk, Node, NodeConfig};
use kvtide_wire::error::Error as WireError;
use kvtide_wire::hello::Slab;
use kvtide_wire::os::map::Access;
use kvtide_wire::os::memfd::Memfd;
use rustix::fs::{FallocateFlags, fallocate};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// What the host thread owns.
pub(super) struct Host {
    node: Node,
    disks: Disks,
    /// Where each disk takes letters.
    to_disks: Vec<Address<DiskLetter>>,
    pool: Pool,
    /// Slabs that disks know, by space and slab.
    mapped: BTreeMap<(u32, u32), Arc<Memory>>,
    spaces: BTreeMap<u32, Address<Letter>>,
    /// Spaces that wait until a region was written, in the order in which they asked; each asks once at a time.
    waiting: VecDeque<u32>,
    slabs_granted: u64,
    slabs_refused: u64,
}

impl Host {
    /// With nothing granted.
    pub fn new(config: &Config, pool: Pool, disks: &[Disk]) -> Host {
        let node = Node::new(NodeConfig {
            capacity_bytes: config.host.capacity_bytes,
            slab_bytes: config.host.slab_bytes,
            quotas_bytes: config.domains.iter().map(|domain| domain.host_bytes).collect(),
        });
        let weights = config.nvme.iter().flat_map(|nvme| nvme.disks.iter().map(|disk| disk.weight));
        let nvme = Disks::new(DisksConfig {
            region_bytes: disks.first().map_or(0, Disk::region_bytes),
            disks: disks
                .iter()
                .zip(weights)
                .map(|(disk, weight)| DiskConfig { regions: disk.regions(), weight })
                .collect(),
            quotas_bytes: config.domains.iter().map(|domain| domain.nvme_bytes).collect(),
        });
        let to_disks = disks.iter().map(Disk::letters).collect();
        let (spaces, mapped, waiting) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        Host { node, disks: nvme, to_disks, pool, mapped, spaces, waiting, slabs_granted: 0, slabs_refused: 0 }
    }

    /// Reads the next letter. False if it was the last.
    pub fn read(&mut self, letters: &Mailbox<NodeLetter>) -> bool {
        match letters.wait() {
            Some(NodeLetter::Join { space, domain, strides, slot_bytes, to }) => {
                if !self.node.join(space, domain, &strides) {
                    tracing::error!("space {space}: the node does not take it; it gets no host memory");
                }
                if !self.to_disks.is_empty()
                    && let Err(error) = self.disks.join(space, domain, slot_bytes)
                {
                    tracing::error!("space {space} gets no NVMe space: {error}");
                }
                self.spaces.insert(space, to);
            }
            Some(NodeLetter::Need { space, class }) => self.need(space, class),
            Some(NodeLetter::Return { space, slab, memfd }) => {
                if let Some(memfd) = memfd {
                    empty(space, slab, &memfd);
                }
                self.take_back(space, slab);
                self.pool.refill(self.node.granted_bytes());
            }
            Some(NodeLetter::NeedDisk { space }) => {
                self.waiting.push_back(space);
                self.grant_disks();
            }
            Some(NodeLetter::ReturnDisk { space, slab }) => {
                if self.disks.take_back(space, slab).is_none() {
                    tracing::error!("space {space}: slab {slab} on NVMe was given back and is not its own");
                }
                self.grant_disks();
            }
            Some(NodeLetter::Quotas { host, nvme }) => {
                self.node.set_quotas(host);
                // Nothing is kept, so nothing goes.
                self.disks.set_quotas(nvme);
                self.grant_disks();
            }
            Some(NodeLetter::Leave { space }) => self.leave(space),
            Some(NodeLetter::Disk(event)) => self.heed(event),
            // Whoever asked and does not wait any more has its answer dropped.
            Some(NodeLetter::Status(reply)) => drop(reply.try_send(self.status())),
            Some(NodeLetter::End) | None => return false,
        }
        true
    }

    fn need(&mut self, space: u32, class: u8) {
        let answer = match self.node.grant(space, class) {
            None => {
                self.slabs_refused += 1;
                Letter::Refused { class }
            }
            Some(grant) => match self.allocate(space, class, grant) {
                Ok(granted) => {
                    self.slabs_granted += 1;
                    Letter::Granted(granted)
                }
                Err(error) => {
                    tracing::error!("space {space}: a slab of {} bytes cannot be made: {error}", grant.bytes);
                    self.take_back(space, grant.slab);
                    Letter::Refused { class }
                }
            },
        };
        self.tell(space, answer);
    }

    fn allocate(&mut self, space: u32, class: u8, grant: Grant) -> Result<Granted, WireError> {
        let memfd = self.pool.take(&format!("kvtide-host-{space}-{}", grant.slab), grant.bytes)?;
        let Grant { slab, frames, stride, bytes } = grant;
        let memory = if self.to_disks.is_empty() { None } else { self.map(space, slab, &memfd)? };
        Ok(Granted { slab: Slab { slab, class: class.into(), frames, stride, bytes }, memfd, memory })
    }

    /// Maps a slab for the disks and tells them of it, before any transfer can name it.
    fn map(&mut self, space: u32, slab: u32, memfd: &Memfd) -> Result<Option<Arc<Memory>>, WireError> {
        let memory = Memory::new(memfd.map(Access::ReadWrite)?).map(Arc::new);
        if let Some(memory) = &memory {
            self.tell_disks(|| DiskLetter::Register(Arc::clone(memory)));
            self.mapped.insert((space, slab), Arc::clone(memory));
        }
        Ok(memory)
    }

    /// Nothing will name a slab's memory any more.
    fn unmap(&mut self, space: u32, slab: u32) {
        if let Some(memory) = self.mapped.remove(&(space, slab)) {
            self.tell_disks(|| DiskLetter::Forget(Arc::clone(&memory)));
        }
    }

    fn tell_disks(&self, letter: impl Fn() -> DiskLetter) {
        for (disk, to) in self.to_disks.iter().enumerate() {
            if to.send(letter()).is_err() {
                tracing::error!("disk {disk}: its thread has ended");
            }
        }
    }

    /// Answers who waits for NVMe space, as far as there is an answer now.
    fn grant_disks(&mut self) {
        for _ in 0..self.waiting.len() {
            let Some(space) = self.waiting.pop_front() else { return };
            match self.disks.grant(space, None) {
                Ok((grant, _)) => self.tell(space, Letter::DiskGranted(grant)),
                Err(NoDisk::NotReady) => self.waiting.push_back(space),
                Err(NoDisk::Full | NoDisk::Unknown) => self.tell(space, Letter::DiskRefused),
            }
        }
    }

    fn heed(&mut self, event: DiskEvent) {
        match event {
            DiskEvent::Ready { disk, regions } => {
                self.disks.ready(disk.into(), regions);
            }
            DiskEvent::Failed { disk, errno } => {
                tracing::error!("disk {disk} gets nothing new any more (error {errno})");
                self.disks.fail(disk.into());
            }
            DiskEvent::Stopped { disk, .. } => {
                self.disks.fail(disk.into());
            }
            DiskEvent::Granted { .. } => {}
            // The disk has said so itself; its transfers end when it answers again.
            DiskEvent::Stalled { .. } => {}
        }
        self.grant_disks();
    }

    fn leave(&mut self, space: u32) {
        for slab in self.node.leave(space) {
            self.unmap(space, slab);
        }
        self.pool.refill(self.node.granted_bytes());
        let lost = self.disks.leave(space);
        if lost > 0 {
            tracing::error!(
                "space {space} ended without giving back {lost} regions on NVMe: nobody gets them any more"
            );
        }
        self.waiting.retain(|waiting| *waiting != space);
        self.spaces.remove(&space);
        self.grant_disks();
    }

    fn take_back(&mut self, space: u32, slab: u32) {
        self.unmap(space, slab);
        if !self.node.take_back(space, slab) {
            tracing::error!("space {space}: slab {slab} was given back and is not its own");
        }
    }

    fn tell(&self, space: u32, letter: Letter) {
        if let Some(to) = self.spaces.get(&space)
            && to.send(letter).is_err()
        {
            tracing::debug!("space {space} has ended before its answer came");
        }
    }

    fn status(&self) -> HostStatus {
        HostStatus {
            capacity_bytes: self.node.capacity_bytes(),
            granted_bytes: self.node.granted_bytes(),
            pooled_bytes: self.pool.bytes(),
            slabs: self.node.slabs(),
            slabs_granted: self.slabs_granted,
            slabs_refused: self.slabs_refused,
            disks: self.disks.status().collect(),
            region_bytes: self.disks.region_bytes(),
        }
    }
}

/// Frees a slab's memory though engines may still map it: what they touch from now on is charged to them.
fn empty(space: u32, slab: u32, memfd: &Memfd) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if let Err(errno) = fallocate(memfd, flags, 0, memfd.bytes()) {
        tracing::error!("space {space}: slab {slab} keeps its memory while an engine maps it: {errno}");
    }
}
