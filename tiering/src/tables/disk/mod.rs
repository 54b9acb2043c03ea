//! The NVMe tier of a space: slots, transfers and log requests in flight, failures of its disks, the rule of admission, and the
//! write budget.
//!
//! It knows blocks and cache entries only as numbers that own slots. It sends nothing and sets no timer: its methods return
//! what to send, and when to try again. It must not depend on sessions, requests, plans or `Core`.

mod admission;
mod bucket;
mod check;
mod health;
mod log;
mod log_requests;
mod place;
mod slots;
mod transfers;
mod write_budget;

pub(crate) use admission::worthy;
pub(crate) use health::IO_TRIES;
pub(crate) use log_requests::{LogRequest, LogRequestKind};
pub(crate) use place::Choice;
pub(crate) use slots::{Logged, Place};
pub(crate) use transfers::Transfer;
pub use write_budget::BudgetReport;

use super::index::Link as CopyLink;
use crate::api::SpaceConfig;
use crate::link::Link;
use health::Health;
use kvtide_format::SlotLayout;
use log::Log;
use log_requests::LogRequests;
use serde::{Deserialize, Serialize};
use slots::{Group, Queue, Slab};
use transfers::Transfers;
use write_budget::WriteBudget;

/// The slots of NVMe, and the transfers and log requests in flight.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Disk {
    /// Block or cache entry that owns the slot. For a free slot, or one queued for erasure: the next slot in its queue.
    owners: Vec<u32>,
    generations: Vec<u32>,
    states: Vec<u16>,
    /// For index-only slots: the next shard copy of their cache entry. Only in spaces with several shards.
    next_copies: Vec<CopyLink>,
    /// For index-only slots: one bit for each windowed plane, set if its page is present; `present_words` words a slot.
    present: Vec<u32>,
    present_words: usize,
    several: bool,
    slabs: Vec<Slab>,
    /// First slot and id of each slab, sorted by first slot. The id is `NONE` for slabs that are gone.
    ranges: Vec<(u32, u32)>,
    /// By disk, in the order of their first slabs.
    groups: Vec<Group>,
    /// Record ranges of returned slabs: base, slots.
    holes: Vec<(u32, u32)>,
    /// Slots with a log record to erase.
    erase: Queue,
    /// Slots granted.
    granted: u32,
    /// Slots owned by blocks and cache entries.
    used: u32,
    /// Slots among them owned by cache entries without a block.
    index_only: u32,
    /// Slots awaiting erasure.
    awaiting_erasure: u32,
    /// Slots that failed too often.
    bad: u32,
    /// Highest generation in a returned slab: the same physical slot may be granted again under any id.
    floor: u32,
    /// Size of a slot, in bytes: all pages of a block.
    slot_bytes: u64,
    /// A NeedDisk was sent and not answered yet.
    asked: bool,
    /// The disk that was asked for, if any.
    asked_for: Option<u16>,
    /// The node refused, and no space has been freed anywhere since.
    refused: bool,
    /// No block without a slot can get one, and no dirty page has one: write-back cannot free a host frame.
    exhausted: bool,
    /// There may be blocks to write, or log requests to send.
    woken: bool,
    /// A caller waits for a transfer to end, so that another can start.
    transfer_wanted: bool,
    health: Health,
    transfers: Transfers,
    /// Measured throughput of reads.
    link: Link,
    log_requests: LogRequests,
    log: Log,
    /// Write budget, and the use counts of earlier cache entries.
    budget: WriteBudget,
}

impl Disk {
    /// Create the tier without space. Memory for all slots that the limits allow is reserved, and touched as they are granted.
    /// `windowed`: number of planes with pages that a block may lack.
    pub fn new(cfg: &SpaceConfig, windowed: usize) -> Disk {
        let (l, several) = (cfg.limits, cfg.shards > 1);
        let slot_bytes = SlotLayout::new(&cfg.planes).bytes();
        // At most one slot for each cache entry and block.
        let slots = (l.nvme_bytes_max / slot_bytes).min(u64::from(l.entries_max) + u64::from(l.blocks_max)) as usize;
        let if_any = |count| if l.nvme_bytes_max > 0 { count } else { 0 };
        let present_words = windowed.div_ceil(32);
        Disk {
            owners: Vec::with_capacity(slots),
            generations: Vec::with_capacity(slots),
            states: Vec::with_capacity(slots),
            next_copies: Vec::with_capacity(if several { slots } else { 0 }),
            present: Vec::with_capacity(slots * present_words),
            present_words,
            several,
            slabs: Vec::new(),
            ranges: Vec::new(),
            groups: Vec::new(),
            holes: Vec::new(),
            erase: Queue::default(),
            granted: 0,
            used: 0,
            index_only: 0,
            awaiting_erasure: 0,
            bad: 0,
            floor: 0,
            slot_bytes,
            asked: false,
            asked_for: None,
            refused: false,
            exhausted: false,
            woken: false,
            transfer_wanted: false,
            health: Health::default(),
            transfers: Transfers::new(if_any(l.ios_max)),
            link: Link::default(),
            log_requests: LogRequests::new(if_any(l.log_requests_max)),
            log: Log::default(),
            budget: WriteBudget::new(cfg, slot_bytes),
        }
    }

    /// Return whether the space has an NVMe tier.
    pub fn exists(&self) -> bool {
        self.transfers.max() > 0
    }

    /// Return the size of a block's slot, in bytes.
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// Return the measured throughput of reads, in bytes per microsecond; 0: not measured yet.
    pub fn read_rate(&self) -> f32 {
        self.link.rate
    }

    /// Schedule write-back and log requests: there may be pages to write, or free slots.
    pub fn wake(&mut self) {
        self.wake_again();
        self.exhausted = false;
    }

    /// Schedule write-back and log requests, although no slot became free.
    pub fn wake_again(&mut self) {
        self.woken |= self.exists();
    }

    pub fn is_woken(&self) -> bool {
        self.woken
    }

    pub fn take_woken(&mut self) -> bool {
        std::mem::take(&mut self.woken)
    }

    /// Return whether no slot awaits erasure and no log request is in flight.
    pub fn is_log_idle(&self) -> bool {
        self.awaiting_erasure == 0 && self.log_requests_in_flight() == 0
    }

    /// Return the bytes of the tables that an index-only entry needs.
    pub fn index_bytes(&self) -> usize {
        self.slot_table_bytes() + self.budget.bytes()
    }

    /// Return the bytes of all tables.
    pub fn bytes(&self) -> usize {
        self.index_bytes() + self.transfers.bytes() + self.log_requests.bytes()
    }
}
