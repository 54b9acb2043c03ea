//! Transfers in flight between host and NVMe.

use super::Disk;
use crate::api::{BlockId, DiskSlot, IoClass, IoKind, NONE};
use crate::counters::Reason;
use crate::error::Error;
use crate::lists::{Links, List, linked};
use serde::{Deserialize, Serialize};

/// One transfer: pages of one block, in one direction. It counts as in flight on its block; its host frames are in `frames`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Transfer {
    links: Links,
    live: bool,
    /// High half of its id, so that a stale id is detected.
    generation: u16,
    pub kind: IoKind,
    pub class: IoClass,
    pub reason: Reason,
    pub block: u32,
    /// Host frames that it reads or writes, by ascending plane.
    pub frames: List,
    pub sent_us: u64,
}

impl Default for Transfer {
    fn default() -> Self {
        Transfer {
            links: Links::default(),
            live: false,
            generation: 0,
            kind: IoKind::Read,
            class: IoClass::Demand,
            reason: Reason::Demand,
            block: NONE,
            frames: List::default(),
            sent_us: 0,
        }
    }
}

impl Transfer {
    pub fn new(
        (kind, class, reason): (IoKind, IoClass, Reason),
        block: BlockId,
        frames: List,
        sent_us: u64,
    ) -> Transfer {
        Transfer { kind, class, reason, block, frames, sent_us, ..Transfer::default() }
    }
}

linked!(Transfer.links);

fn is_lazy(transfer: &Transfer) -> bool {
    transfer.kind == IoKind::Read && transfer.class != IoClass::Demand
}

/// Table of all transfers; its size limits how many are in flight.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Transfers {
    recs: Vec<Transfer>,
    free: List,
    /// Writes in flight.
    writes: u32,
    /// Reads in flight that no caller waits for.
    lazy: u32,
}

impl Transfers {
    pub fn new(count: u32) -> Transfers {
        let mut transfers = Transfers { recs: vec![Transfer::default(); count as usize], ..Transfers::default() };
        for i in 0..count {
            transfers.free.push_back(&mut transfers.recs, i);
        }
        transfers
    }

    pub fn max(&self) -> u32 {
        self.recs.len() as u32
    }

    /// Take a record and return the transfer's id. The caller has checked that one is free.
    fn launch(&mut self, transfer: Transfer) -> u32 {
        let at =
            self.free.pop_front(&mut self.recs).expect("callers check for a free slot before they plan a transfer");
        let generation = self.recs[at as usize].generation.wrapping_add(1);
        self.writes += u32::from(transfer.kind == IoKind::Write);
        self.lazy += u32::from(is_lazy(&transfer));
        self.recs[at as usize] = Transfer { live: true, generation, ..transfer };
        u32::from(generation) << 16 | at
    }

    /// Raise a transfer's urgency to `class`; never lower it. Return whether it was raised.
    fn urge(&mut self, at: u32, class: IoClass) -> bool {
        let rec = &mut self.recs[at as usize];
        let before = *rec;
        rec.class = rec.class.min(class);
        self.lazy -= u32::from(is_lazy(&before)) - u32::from(is_lazy(rec));
        before.class > class
    }

    /// Return the table index of a transfer in flight.
    fn slot_of(&self, id: u32) -> Option<u32> {
        let at = id & 0xffff;
        let rec = self.recs.get(at as usize)?;
        (rec.live && u32::from(rec.generation) == id >> 16).then_some(at)
    }

    /// Free the record of a transfer that ended, and return it.
    fn release(&mut self, at: u32) -> Transfer {
        let rec = self.recs[at as usize];
        self.writes -= u32::from(rec.kind == IoKind::Write);
        self.lazy -= u32::from(is_lazy(&rec));
        self.recs[at as usize] = Transfer { generation: rec.generation, ..Transfer::default() };
        self.free.push_back(&mut self.recs, at);
        rec
    }

    pub fn bytes(&self) -> usize {
        self.recs.capacity() * size_of::<Transfer>()
    }
}

impl Disk {
    /// Return whether a transfer of that class may start now; otherwise its caller waits for one to end. A quarter of the transfers
    /// is reserved for demand reads.
    pub fn may_transfer(&mut self, class: IoClass) -> bool {
        let spared = if class == IoClass::Demand { 0 } else { self.transfers.max() / 4 };
        let may = self.transfers.free.len > spared;
        self.transfer_wanted |= !may;
        may
    }

    /// A caller waits for a transfer to end.
    pub fn want_transfer(&mut self) {
        self.transfer_wanted = true;
    }

    /// Start a transfer of `bytes` with a slot. Return its id and the slot's location.
    pub fn start_transfer(&mut self, transfer: Transfer, slot: u32, bytes: u32) -> (u32, DiskSlot) {
        if transfer.kind == IoKind::Read {
            self.link.begin(transfer.sent_us, bytes);
        }
        (self.transfers.launch(transfer), self.location(slot))
    }

    /// Free the record of a transfer that ended. Return it, and whether a caller waited for the end of one.
    ///
    /// # Errors
    /// [`Error::Transfer`] if no transfer with that id is in flight.
    pub fn end_transfer(&mut self, id: u32) -> Result<(Transfer, bool), Error> {
        let at = self.transfers.slot_of(id).ok_or(Error::Transfer { id })?;
        self.wake();
        Ok((self.transfers.release(at), std::mem::take(&mut self.transfer_wanted)))
    }

    /// Measure the throughput of reads with one that ended.
    pub fn measure_read(&mut self, now_us: u64, bytes: u32, moved: bool) {
        self.link.end(now_us, bytes, moved);
    }

    /// Return the transfers in flight.
    pub fn transfers(&self) -> impl Iterator<Item = &Transfer> {
        self.transfers.recs.iter().filter(|t| t.live)
    }

    pub fn transfers_in_flight(&self) -> u32 {
        self.transfers.max() - self.transfers.free.len
    }

    /// Return the number of writes in flight.
    pub fn writes(&self) -> u32 {
        self.transfers.writes
    }

    /// Return whether writes in flight are one in `part` of all possible transfers, or more.
    pub fn writes_take(&self, part: u32) -> bool {
        self.transfers.writes >= (self.transfers.max() / part).max(1)
    }

    pub fn is_reading(&self) -> bool {
        self.transfers_in_flight() > self.transfers.writes
    }

    /// Return whether a transfer names the block.
    pub fn moves_block(&self, b: BlockId) -> bool {
        self.transfers().any(|t| t.block == b)
    }

    /// Raise the urgency of the first read in flight that `is_wanted`. Return its id, or `None` if it was as urgent before.
    pub fn urge(&mut self, class: IoClass, is_wanted: impl Fn(&Transfer) -> bool) -> Option<u32> {
        let wanted = |t: &Transfer| t.live && t.kind == IoKind::Read && is_wanted(t);
        let at = self.transfers.recs.iter().position(wanted)? as u32;
        let generation = u32::from(self.transfers.recs[at as usize].generation);
        self.transfers.urge(at, class).then_some(generation << 16 | at)
    }

    /// Return whether some read in flight can be made more urgent.
    pub fn has_lazy_reads(&self) -> bool {
        self.transfers.lazy > 0
    }
}
