//! The NVMe tier as one space has it: the core's wishes as boxes that the threads of disks carry out, and their ends as its
//! events. [`transfers`] move pages, [`notes`] write down what stands where, [`table`] is what the space must know to believe
//! what it reads, [`restore`] brings back what an earlier run left.
//!
//! Boxes, their lists and the tables are made with the space and with its slabs: neither a transfer nor a note allocates.
//! A box on its way keeps the memory that it names alive, whatever becomes of the space.

mod notes;
mod restore;
mod table;
mod transfers;

pub(super) use notes::{Noted, Wanted};
pub(super) use restore::Restore;
pub(super) use transfers::Ended;

use super::letters::{Left, Region};
use crate::error::Error;
use crate::io::{Disk, DiskLetter, LogLetter, SlotKey, Transfer};
use crate::mail::{Mailbox, Outbox, mailbox};
use kvtide_tiering::Core;
use kvtide_tiering::api::{DiskSlot, IoClass, IoKind, SpaceConfig, Status};
use kvtide_tiering::format::SlotLayout;
use notes::Notes;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use table::DiskSlab;
use transfers::{Completions, Sampled, Sent};

/// The NVMe tier as one space has it.
#[derive(Debug)]
pub(super) struct Nvme {
    space: u32,
    layout: SlotLayout,
    /// Bytes of each plane's page.
    page_bytes: Box<[u32]>,
    disks: Vec<Door>,
    slabs: Vec<Option<DiskSlab>>,
    /// Ends of transfers.
    ended: Mailbox<Box<Transfer>>,
    /// Completions taken from the mailbox and not processed yet.
    completions: Completions,
    /// Boxes for transfers to come.
    #[expect(clippy::vec_box, reason = "boxes travel between threads: what is kept is what is sent")]
    idle: Vec<Box<Transfer>>,
    /// Transfers on their way, by id.
    on_their_way: HashMap<u32, Sent>,
    /// Transfers that could not be sent, to be ended at the next look.
    unsent: Vec<(u32, Status)>,
    notes: Notes,
    /// Pages of reads on their way that the canary wants to know.
    sampled: Vec<Sampled>,
    /// Slabs of disks out of service that are still held.
    lost: usize,
    /// What was wrong.
    pub tally: NvmeTally,
    /// Planes of the last read that ended whose bytes are not what was written.
    bad: Vec<u32>,
}

/// Pages that were read and are not what was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct NvmeTally {
    /// Those of this run, and those of an earlier one that a flush of the device covered.
    pub corrupt: u64,
    /// Those of an earlier run that a power cut may have lost, because no flush is known to have covered them.
    pub lost_unflushed: u64,
}

/// A disk, and what it has no room for yet.
#[derive(Debug)]
struct Door {
    disk: Disk,
    letters: Outbox<DiskLetter>,
    notes: Outbox<LogLetter>,
}

impl Door {
    fn new(disk: &Disk) -> Door {
        Door { letters: Outbox::new(disk.letters()), notes: Outbox::new(disk.log()), disk: disk.clone() }
    }
}

impl Nvme {
    /// For a space of this configuration over these disks.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new(space: u32, config: &SpaceConfig, disks: &[Disk]) -> Result<Nvme, Error> {
        let page_bytes: Box<[u32]> = config.planes.iter().map(|plane| plane.page_bytes).collect();
        // Without disks nothing is ever on its way; one box keeps the bell's other end, for a bell that nobody can ring any more
        // counts as rung for ever, and the thread would never sleep.
        let most = if disks.is_empty() { 1 } else { config.limits.ios_max as usize };
        let failed = |source| Error::Wire { action: "make a space's mailbox for transfers", source };
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
            disks: disks.iter().map(Door::new).collect(),
            slabs: Vec::new(),
            ended,
            completions: Completions::new(most),
            on_their_way: HashMap::with_capacity(most),
            unsent: Vec::with_capacity(most),
            notes: Notes::new(space, config, disks.len())?,
            sampled: Vec::with_capacity(most),
            lost: 0,
            tally: NvmeTally::default(),
            bad: Vec::with_capacity(page_bytes.len()),
            page_bytes,
        })
    }

    /// A region was granted, or adopted with what is in it.
    pub fn add(&mut self, region: &Region) {
        let slab = region.grant.slab as usize;
        if self.slabs.len() <= slab {
            self.slabs.resize_with(slab + 1, || None);
        }
        self.slabs[slab] = Some(DiskSlab::new(region, self.page_bytes.len()));
    }

    /// A region goes back.
    pub fn remove(&mut self, slab: u32) {
        if let Some(slab) = self.slabs.get_mut(slab as usize) {
            *slab = None;
        }
    }

    /// The disk of a slab went out of service. False if the space does not hold it, or was told before.
    pub fn lose(&mut self, slab: u32) -> bool {
        let held = self.slabs.get_mut(slab as usize).and_then(Option::as_mut);
        let new = held.is_some_and(|slab| !std::mem::replace(&mut slab.gone, true));
        self.lost += usize::from(new);
        new
    }

    /// A slab of a disk out of service to which nothing is on its way any more; it is held no longer.
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
        let slab = self.slabs.get(at.slab as usize).and_then(Option::as_ref).ok_or("it names no slab")?;
        if slab.has(at.slot) { Ok(slab) } else { Err("it names no slot") }
    }

    /// The slabs on disks in service, with the blocks recorded there if the space may come again in this run (`core`). None is held
    /// afterwards.
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

    /// Lists the blocks that are recorded in slabs. Without a note at home some are under way, and nothing is certain.
    fn list_recorded(&mut self, core: Option<&Core>, left: &mut BTreeMap<u32, Left>) {
        let (Some(core), Some(mut note)) = (core, self.notes.blank()) else { return };
        core.each_recorded(|at, shard, words| {
            let described = self.describe(&mut note, Wanted::Record(at, shard, words));
            let Some(of) = left.get_mut(&at.slab).filter(|_| described.is_ok()) else { return };
            // Nothing that this run wrote was lost in a power cut.
            if !of.blocks.add(&note.put(), true) {
                tracing::error!("space {}: the block recorded at {at:?} is invalid and is not kept", self.space);
            }
        });
    }

    /// Slabs held, by id; none afterwards.
    pub fn take_slabs(&mut self) -> impl Iterator<Item = u32> {
        let slabs = std::mem::take(&mut self.slabs);
        slabs.into_iter().zip(0..).filter_map(|(slab, id)| slab.map(|_| id))
    }

    /// Regions held.
    pub fn slabs(&self) -> usize {
        self.slabs.iter().flatten().count()
    }

    /// Transfers on their way.
    pub fn in_flight(&self) -> usize {
        self.on_their_way.len() + self.unsent.len()
    }

    /// Hands on what was begun. True if no queue of a disk is full.
    pub fn flush(&mut self) -> bool {
        self.flush_transfers() & self.flush_notes()
    }

    /// Whether no end of a transfer or a note waits to be taken.
    pub fn is_quiet(&self) -> bool {
        self.transfers_are_quiet() && self.notes_are_quiet()
    }
}

#[cfg(test)]
mod tests;
