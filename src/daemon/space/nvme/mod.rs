//! The NVMe tier of one space. The core's actions become boxes for the disks' threads, and answers become events. [`transfers`]
//! copy pages, [`log_requests`] record what slots hold, [`table`] keeps the data that reads are verified with, [`restore`] recovers blocks
//! of an earlier run.
//!
//! Boxes, their lists and the tables are allocated with the space and its slabs: neither a transfer nor a log request allocates. A
//! box in flight keeps its memory alive, even if the space ends.

mod log_requests;
mod restore;
mod table;
mod transfers;

pub(super) use log_requests::{LogEnded, Wanted};
pub(super) use restore::Restore;
pub(super) use transfers::Ended;

use super::messages::{Left, Region};
use crate::error::Error;
use kvtide_format::SlotLayout;
use kvtide_nvme::{Disk, DiskMessage, LogMessage, SlotKey, Transfer};
use kvtide_rt::mail::{Mailbox, RetryQueue, mailbox};
use kvtide_tiering::Core;
use kvtide_tiering::api::{DiskSlot, IoClass, IoKind, SpaceConfig, Status};
use log_requests::LogRequests;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use table::DiskSlab;
use transfers::{Completions, Sampled, Sent};

/// The NVMe tier of one space.
#[derive(Debug)]
pub(super) struct Nvme {
    space: u32,
    layout: SlotLayout,
    /// Bytes of a page, by plane.
    page_bytes: Box<[u32]>,
    disks: Vec<DiskHandle>,
    slabs: Vec<Option<DiskSlab>>,
    /// Mailbox for ended transfers.
    ended: Mailbox<Box<Transfer>>,
    /// Completions taken from the mailbox and not processed yet.
    completions: Completions,
    /// Unused boxes for transfers.
    #[expect(clippy::vec_box, reason = "boxes are sent between threads")]
    idle: Vec<Box<Transfer>>,
    /// Transfers in flight, by id.
    on_their_way: HashMap<u32, Sent>,
    /// Transfers that could not be sent; they end in the next round.
    unsent: Vec<(u32, Status)>,
    log_requests: LogRequests,
    /// Sampled pages of reads in flight.
    sampled: Vec<Sampled>,
    /// Slabs of disks out of service that are still held.
    lost: usize,
    /// Region requests that the node has not answered; a region granted to an ended space would stay unused.
    asked: u32,
    /// Counts of damaged pages.
    stats: NvmeStats,
    /// Planes of the last ended read that failed verification.
    bad: Vec<u32>,
}

/// Pages that failed verification when read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NvmeStats {
    /// Pages of this run, and flushed pages of an earlier run.
    pub corrupt: u64,
    /// Pages of an earlier run without a known flush; a power cut may have lost them.
    pub lost_unflushed: u64,
}

/// A disk handle, with messages that its mailboxes refused.
#[derive(Debug)]
struct DiskHandle {
    disk: Disk,
    messages: RetryQueue<DiskMessage>,
    log: RetryQueue<LogMessage>,
}

impl DiskHandle {
    fn new(disk: &Disk) -> DiskHandle {
        DiskHandle { messages: RetryQueue::new(disk.address()), log: RetryQueue::new(disk.log()), disk: disk.clone() }
    }
}

impl Nvme {
    /// Create the NVMe tier of a space with this configuration over these disks.
    ///
    /// # Errors
    /// No file descriptors are left.
    pub fn new(space: u32, config: &SpaceConfig, disks: &[Disk]) -> Result<Nvme, Error> {
        let page_bytes: Box<[u32]> = config.planes.iter().map(|plane| plane.page_bytes).collect();
        // Without disks nothing is ever in flight. One box keeps the other end of the eventfd open: a descriptor without a writer
        // would count as readable forever, and the thread would never sleep.
        let most = if disks.is_empty() { 1 } else { config.limits.ios_max as usize };
        let failed = |source| Error::Wire { action: "create a space's mailbox for transfers", source };
        let (reply, ended) = mailbox(most).map_err(failed)?;
        let blank = || Transfer {
            space,
            id: 0,
            kind: IoKind::Read,
            class: IoClass::Demand,
            offset: 0,
            bytes: 0,
            whole: false,
            key: SlotKey::default(),
            code: None,
            salt: 0,
            parts: Vec::with_capacity(page_bytes.len()),
            reply: reply.clone(),
            status: Status::Ok,
            errno: 0,
            waited_us: 0,
            device_us: 0,
        };
        Ok(Nvme {
            space,
            layout: SlotLayout::new(&config.planes),
            idle: (0..most).map(|_| Box::new(blank())).collect(),
            disks: disks.iter().map(DiskHandle::new).collect(),
            slabs: Vec::new(),
            ended,
            completions: Completions::new(most),
            on_their_way: HashMap::with_capacity(most),
            unsent: Vec::with_capacity(most),
            log_requests: LogRequests::new(space, config, disks.len())?,
            sampled: Vec::with_capacity(most),
            lost: 0,
            asked: 0,
            stats: NvmeStats::default(),
            bad: Vec::with_capacity(page_bytes.len()),
            page_bytes,
        })
    }

    /// Count a request for a region, which is about to be sent to the node.
    pub fn ask_region(&mut self) {
        self.asked += 1;
    }

    /// Count the node's answer to such a request.
    pub fn region_answered(&mut self) {
        self.asked = self.asked.saturating_sub(1);
    }

    /// Add a granted region, or an adopted one with its blocks.
    pub fn add(&mut self, region: &Region) {
        let slab = region.grant.slab as usize;
        if self.slabs.len() <= slab {
            self.slabs.resize_with(slab + 1, || None);
        }
        self.slabs[slab] = Some(DiskSlab::new(region, self.page_bytes.len()));
    }

    /// Remove a returned region.
    pub fn remove(&mut self, slab: u32) {
        if let Some(slab) = self.slabs.get_mut(slab as usize) {
            *slab = None;
        }
    }

    /// Mark a slab on a disk that is out of service. Return false if the space does not hold it or it is already marked.
    pub fn lose(&mut self, slab: u32) -> bool {
        let held = self.slabs.get_mut(slab as usize).and_then(Option::as_mut);
        let new = held.is_some_and(|slab| !std::mem::replace(&mut slab.gone, true));
        self.lost += usize::from(new);
        new
    }

    /// Remove and return a marked slab without transfers in flight.
    pub fn next_lost(&mut self) -> Option<u32> {
        if self.lost == 0 {
            return None;
        }
        let is_over = |id| self.on_their_way.values().all(|sent| sent.at.slab != id);
        let mut gone = (0..).zip(&self.slabs).filter(|(_, slab)| slab.as_ref().is_some_and(|slab| slab.gone));
        let (id, _) = gone.find(|(id, _)| is_over(*id))?;
        self.remove(id);
        self.lost -= 1;
        Some(id)
    }

    fn slab(&self, at: DiskSlot) -> Result<&DiskSlab, &'static str> {
        let slab = self.slabs.get(at.slab as usize).and_then(Option::as_ref).ok_or("no such slab")?;
        if slab.has(at.slot) { Ok(slab) } else { Err("no such slot") }
    }

    /// Remove and return the slabs on working disks, with their recorded blocks if the space may return in this run (`core`).
    pub fn leave(&mut self, core: Option<&Core>) -> Vec<Left> {
        let mut left: BTreeMap<u32, Left> = BTreeMap::new();
        for (slab, id) in self.slabs.iter().zip(0..) {
            if let Some(slab) = slab.as_ref().filter(|slab| !slab.gone) {
                let blocks = slab.no_blocks(&self.page_bytes);
                let generation = core.map_or(0, |core| core.generation_of(id));
                left.insert(id, Left { slab: id, blocks, generation });
            }
        }
        self.list_recorded(core, &mut left);
        self.slabs.clear();
        left.into_values().collect()
    }

    /// List the blocks recorded in slabs. Only if a log request is free; otherwise some are in flight and the records are not
    /// certain.
    fn list_recorded(&mut self, core: Option<&Core>, left: &mut BTreeMap<u32, Left>) {
        let (Some(core), Some(mut request)) = (core, self.log_requests.blank()) else { return };
        core.each_recorded(|at, shard, words| {
            let described = self.describe(&mut request, Wanted::Record(at, shard, words));
            let Some(of) = left.get_mut(&at.slab).filter(|_| described.is_ok()) else { return };
            // Blocks written in this run were not lost in a power cut.
            if !of.blocks.add(&request.put(), true) {
                tracing::error!("space {}: the record at {at:?} is invalid; its block is dropped", self.space);
            }
        });
    }

    /// Remove all slabs and return their ids.
    pub fn take_slabs(&mut self) -> impl Iterator<Item = u32> {
        let slabs = std::mem::take(&mut self.slabs);
        slabs.into_iter().zip(0..).filter_map(|(slab, id)| slab.map(|_| id))
    }

    /// Return the number of regions held.
    pub fn slabs(&self) -> usize {
        self.slabs.iter().flatten().count()
    }

    /// Return the counts of damaged pages.
    pub fn stats(&self) -> NvmeStats {
        self.stats
    }

    /// Return true if no transfer, log request or request for a region is in flight.
    pub fn is_settled(&self) -> bool {
        self.in_flight() + self.log_requests_in_flight() == 0 && self.asked == 0
    }

    /// Return the transfers in flight.
    pub fn in_flight(&self) -> usize {
        self.on_their_way.len() + self.unsent.len()
    }

    /// Send waiting messages to the disks. Return true if no mailbox is full.
    pub fn flush(&mut self) -> bool {
        self.flush_transfers() & self.flush_log_requests()
    }

    /// Return true if no answer to a transfer or log request waits.
    pub fn is_quiet(&self) -> bool {
        self.transfers_are_quiet() && self.log_is_quiet()
    }
}

#[cfg(test)]
mod tests;
