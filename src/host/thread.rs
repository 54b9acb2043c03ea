//! The host thread at work.

use super::needs::{Need, Needs};
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
use std::collections::{BTreeMap, BTreeSet};
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
    needs: Needs,
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
        let needs = Needs::default();
        Host { node, regions, to_disks, pool, mapped, spaces, needs, slabs_granted: 0, slabs_refused: 0 }
    }

    /// Reads the next letter. False if it was the last.
    pub fn read(&mut self, letters: &Mailbox<NodeLetter>) -> bool {
        // A log's thread may be inside the device: what it has no room for is offered again.
        let retry = (!self.regions.flush()).then(|| Instant::now() + RETRY);
        let go_on = match letters.wait_until(retry.into_iter().chain(self.needs.due()).min()) {
            Waited::Letter(letter) => self.heed(letter),
            Waited::Due => true,
            Waited::Gone => false,
        };
        if self.needs.due().is_some_and(|due| due <= Instant::now()) {
            self.settle();
        }
        for (space, letter) in self.regions.take_post() {
            if matches!(letter, Letter::DiskRefused) {
                self.needs.refuse(space);
                self.ask_others(space);
            }
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
            NodeLetter::Reclaimed { space } => {
                self.needs.heard(space);
                self.settle();
            }
            NodeLetter::Return { space, slab, memfd } => {
                if let Some(memfd) = memfd {
                    empty(space, slab, &memfd);
                }
                self.take_back(space, slab);
                self.pool.refill(self.node.granted_bytes());
                self.came_back();
            }
            NodeLetter::NeedDisk { space, wanted } => self.regions.need(space, wanted),
            NodeLetter::ReturnDisk { space, slab } => {
                self.regions.take_back(space, slab);
                self.came_back();
            }
            NodeLetter::KeepDisk { space, slab } => self.regions.keep(space, slab),
            NodeLetter::Quotas { names, host, nvme, bytes_per_day } => {
                self.node.set_quotas(host);
                self.regions.set_quotas(names, nvme, bytes_per_day);
                self.came_back();
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
        if self.grant(space, class) {
            return;
        }
        let asked = self.ask_others(space);
        match asked.is_empty() {
            true => self.refuse(space, class),
            false => self.needs.wait(space, class, asked, Instant::now()),
        }
    }

    /// Asks every other space for what is idle there, for the sake of `space`. Returns who was asked.
    fn ask_others(&mut self, space: u32) -> BTreeSet<u32> {
        let others: Vec<_> = self.spaces.iter().filter(|(other, _)| **other != space).collect();
        if others.is_empty() || !self.needs.ask(space, Instant::now()) {
            return BTreeSet::new();
        }
        // One whose thread has ended has nothing any more, and its end is on its way here.
        others.into_iter().filter(|(_, to)| to.send(Letter::Reclaim).is_ok()).map(|(other, _)| *other).collect()
    }

    /// Looks again at who waits.
    fn settle(&mut self) {
        let now = Instant::now();
        for need in self.needs.take() {
            let Need { space, class, .. } = need;
            if self.grant(space, class) {
                continue;
            }
            match need.is_over(now) {
                true => self.refuse(space, class),
                false => self.needs.keep(need),
            }
        }
    }

    /// Memory or NVMe space came back, or there may be more of it: who waits has it first, then who was refused may ask again.
    fn came_back(&mut self) {
        self.settle();
        for space in self.needs.take_refused() {
            self.tell(space, Letter::Freed);
        }
    }

    fn refuse(&mut self, space: u32, class: u8) {
        self.slabs_refused += 1;
        self.needs.refuse(space);
        self.tell(space, Letter::Refused { class });
    }

    /// Grants a slab if there is one. False if there is none; what else happens, the space is told.
    fn grant(&mut self, space: u32, class: u8) -> bool {
        let Some(grant) = self.node.grant(space, class) else { return false };
        match self.allocate(space, class, grant) {
            Ok(granted) => {
                self.slabs_granted += 1;
                self.tell(space, Letter::Granted(granted));
            }
            Err(error) => {
                tracing::error!("space {space}: a slab of {} bytes cannot be made: {error}", grant.bytes);
                self.take_back(space, grant.slab);
                self.refuse(space, class);
            }
        }
        true
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
        self.needs.gone(space);
        self.came_back();
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
