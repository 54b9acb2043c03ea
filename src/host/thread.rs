//! The host thread at work.

use super::pool::Pool;
use super::regions::Regions;
use super::{HostStatus, NodeLetter};
use crate::config::Config;
use crate::io::{Disk, DiskLetter, Memory};
use crate::mail::{Address, Mailbox, Waited};
use crate::space::{Granted, Letter};
use kvtide_tiering::log::Recovered;
use kvtide_tiering::node::{Grant, Node, NodeConfig};
use kvtide_wire::error::Error as WireError;
use kvtide_wire::hello::Slab;
use kvtide_wire::os::map::Access;
use kvtide_wire::os::memfd::Memfd;
use rustix::fs::{FallocateFlags, fallocate};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the thread waits at most while a log's mailbox is full.
const RETRY: Duration = Duration::from_millis(1);

/// What the host thread owns.
pub(super) struct Host {
    node: Node,
    regions: Regions,
    /// Where each disk takes letters.
    to_disks: Vec<Address<DiskLetter>>,
    pool: Pool,
    /// Slabs that disks know, by space and slab.
    mapped: BTreeMap<(u32, u32), Arc<Memory>>,
    spaces: BTreeMap<u32, Address<Letter>>,
    slabs_granted: u64,
    slabs_refused: u64,
}

impl Host {
    /// With nothing granted.
    pub fn new(config: &Config, pool: Pool, disks: &[Disk], recovered: Vec<Recovered>) -> Host {
        let node = Node::new(NodeConfig {
            capacity_bytes: config.host.capacity_bytes,
            slab_bytes: config.host.slab_bytes,
            quotas_bytes: config.domains.iter().map(|domain| domain.host_bytes).collect(),
        });
        let regions = Regions::new(config, disks, recovered);
        let to_disks = disks.iter().map(Disk::letters).collect();
        let (spaces, mapped) = (BTreeMap::new(), BTreeMap::new());
        Host { node, regions, to_disks, pool, mapped, spaces, slabs_granted: 0, slabs_refused: 0 }
    }

    /// Reads the next letter. False if it was the last.
    pub fn read(&mut self, letters: &Mailbox<NodeLetter>) -> bool {
        // A log's thread may be inside the device: what it has no room for is offered again.
        let due = (!self.regions.flush()).then(|| Instant::now() + RETRY);
        let go_on = match letters.wait_until(due) {
            Waited::Letter(letter) => self.heed(letter),
            Waited::Due => true,
            Waited::Gone => false,
        };
        for (space, letter) in self.regions.take_post() {
            self.tell(space, letter);
        }
        go_on
    }

    /// Does what a letter says. False if it was the last.
    fn heed(&mut self, letter: NodeLetter) -> bool {
        match letter {
            NodeLetter::Join { space, domain, classes, slab, to } => {
                if !self.node.join(space, domain, &classes) {
                    tracing::error!("space {space}: the node does not take it; it gets no host memory");
                }
                self.spaces.insert(space, to);
                if self.regions.exist() {
                    self.regions.join(space, domain, *slab);
                }
            }
            NodeLetter::Need { space, class } => self.need(space, class),
            NodeLetter::Return { space, slab, memfd } => {
                if let Some(memfd) = memfd {
                    empty(space, slab, &memfd);
                }
                self.take_back(space, slab);
                self.pool.refill(self.node.granted_bytes());
            }
            NodeLetter::NeedDisk { space, wanted } => self.regions.need(space, wanted),
            NodeLetter::ReturnDisk { space, slab } => self.regions.take_back(space, slab),
            NodeLetter::KeepDisk { space, slab } => self.regions.keep(space, slab),
            NodeLetter::Quotas { names, host, nvme, bytes_per_day } => {
                self.node.set_quotas(host);
                self.regions.set_quotas(names, nvme, bytes_per_day);
            }
            NodeLetter::Leave { space } => self.leave(space),
            NodeLetter::Disk(event) => self.regions.heed(event),
            // Whoever asked and does not wait any more has its answer dropped.
            NodeLetter::Status(reply) => drop(reply.try_send(self.status())),
            NodeLetter::End => return false,
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

    fn leave(&mut self, space: u32) {
        for slab in self.node.leave(space) {
            self.unmap(space, slab);
        }
        self.pool.refill(self.node.granted_bytes());
        self.regions.leave(space);
        self.spaces.remove(&space);
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
            disks: self.regions.status(),
            region_bytes: self.regions.region_bytes(),
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
