//! Transfers in flight between host and NVMe.

use crate::api::{IoClass, IoKind, NONE};
use crate::counters::Reason;
use crate::lists::{Links, List, linked};
use serde::{Deserialize, Serialize};

/// One transfer: pages of one block, in one direction. It counts as in flight on its block; its host frames are in `frames`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Transfer {
    pub links: Links,
    pub live: bool,
    /// High half of its id, so that a stale id is detected.
    pub generation: u16,
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

linked!(Transfer.links);

fn is_lazy(transfer: &Transfer) -> bool {
    transfer.kind == IoKind::Read && transfer.class != IoClass::Demand
}

/// Table of all transfers; its size limits how many are in flight.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Transfers {
    pub recs: Vec<Transfer>,
    free: List,
    /// Writes in flight.
    pub writes: u32,
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

    /// Return how many transfers may still start.
    pub fn free(&self) -> u32 {
        self.free.len
    }

    pub fn in_flight(&self) -> u32 {
        self.recs.len() as u32 - self.free.len
    }

    /// Take a record and return the transfer's id. The caller has checked that one is free.
    pub fn launch(&mut self, transfer: Transfer) -> u32 {
        let at =
            self.free.pop_front(&mut self.recs).expect("callers check for a free slot before they plan a transfer");
        let generation = self.recs[at as usize].generation.wrapping_add(1);
        self.writes += u32::from(transfer.kind == IoKind::Write);
        self.lazy += u32::from(is_lazy(&transfer));
        self.recs[at as usize] = Transfer { live: true, generation, ..transfer };
        u32::from(generation) << 16 | at
    }

    /// Return whether some read in flight can be made more urgent.
    pub fn any_lazy(&self) -> bool {
        self.lazy > 0
    }

    /// Raise a transfer's urgency to `class`; never lower it. Return whether it was raised.
    pub fn urge(&mut self, at: u32, class: IoClass) -> bool {
        let rec = &mut self.recs[at as usize];
        let before = *rec;
        rec.class = rec.class.min(class);
        self.lazy -= u32::from(is_lazy(&before)) - u32::from(is_lazy(rec));
        before.class > class
    }

    pub fn id(&self, at: u32) -> u32 {
        u32::from(self.recs[at as usize].generation) << 16 | at
    }

    /// Return the table index of a transfer in flight.
    pub fn slot_of(&self, id: u32) -> Option<u32> {
        let at = id & 0xffff;
        let rec = self.recs.get(at as usize)?;
        (rec.live && u32::from(rec.generation) == id >> 16).then_some(at)
    }

    /// Free the record of a transfer that ended, and return it.
    pub fn release(&mut self, at: u32) -> Transfer {
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
