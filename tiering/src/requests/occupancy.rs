//! Occupancy of a space, from counters that its tables maintain.

use crate::requests::Requests;
use crate::sessions::Life;
use serde::{Deserialize, Serialize};

/// Occupancy of a space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Occupancy {
    /// Blocks in use, including those about to be freed.
    pub blocks: u32,
    /// Maximum number of blocks.
    pub blocks_max: u32,
    /// Blocks that sessions may have by their guarantees.
    pub blocks_guaranteed: u32,
    /// Cached entries.
    pub published: u32,
    /// Cached entries that are only on NVMe and have no block.
    pub index_only: u32,
    /// Cached entries in pinned prefixes.
    pub pinned: u32,
    /// Attached sessions.
    pub sessions: u32,
    /// Ranges that engines have acquired and not released.
    pub pins: u64,
    /// Host frames granted, over all size classes.
    pub host_frames: u64,
    /// Host frames with a page or about to have one.
    pub host_frames_used: u64,
    /// Host frames quarantined because a lost session or a late copy may still access them.
    pub host_frames_quarantined: u64,
    /// Host frames by state.
    pub host: Fill,
    /// NVMe slots granted; each holds all pages of a block.
    pub nvme_slots: u32,
    /// NVMe slots of blocks and of index-only entries.
    pub nvme_slots_used: u32,
    /// NVMe slots of index-only entries.
    pub nvme_slots_index_only: u32,
    /// NVMe slots awaiting erasure of their index record.
    pub nvme_slots_awaiting_erasure: u32,
    /// NVMe slots given up because writes to them failed.
    pub nvme_slots_bad: u32,
    /// Size of a slot, in bytes.
    pub nvme_slot_bytes: u64,
    /// Pages per block.
    pub planes: u32,
    /// Transfers in flight between host and NVMe.
    pub transfers: u32,
    /// Log requests in flight.
    pub log_requests: u32,
    /// Published blocks that wait to be written to NVMe or recorded in its index log.
    pub persisting: u32,
    /// Tier-0 frames of the attached sessions.
    pub tier0_frames: u64,
    /// Tier-0 frames that are not free.
    pub tier0_frames_used: u64,
    /// Tier-0 frames by state.
    pub tier0: Fill,
    /// Mapped frames of the attached sessions.
    pub mapped_frames: u64,
    /// Mapped frames that show a page of host memory, are about to, or may still show it.
    pub mapped_frames_used: u64,
}

impl Occupancy {
    /// Return the bytes of NVMe slots in use, and of all slots.
    #[must_use]
    pub fn nvme_used_of_all(&self) -> (u64, u64) {
        let bytes = |slots| u64::from(slots) * self.nvme_slot_bytes;
        (bytes(self.nvme_slots_used), bytes(self.nvme_slots))
    }
}

/// The frames of a tier by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fill {
    /// Without a page.
    pub free: Amount,
    /// With a page that the tier below has too: evictable at once.
    pub clean: Amount,
    /// With a sealed page that the tier below does not have.
    pub dirty: Amount,
    /// With a page that an engine has acquired.
    pub pinned: Amount,
    /// With a page that is still written, or that is being moved.
    pub busy: Amount,
    /// Still accessible to a lost session or a late copy.
    pub quarantined: Amount,
}

/// A number of frames and their size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Amount {
    /// Number of frames.
    pub frames: u64,
    /// Bytes of their pages.
    pub bytes: u64,
}

impl Amount {
    fn add(&mut self, frames: u64, page_bytes: u32) {
        self.frames += frames;
        self.bytes += frames * u64::from(page_bytes);
    }
}

impl Fill {
    /// Return the bytes in use, and of all frames.
    #[must_use]
    pub fn used_of_all(&self) -> (u64, u64) {
        let used = [self.clean, self.dirty, self.pinned, self.busy, self.quarantined].iter().map(|a| a.bytes).sum();
        (used, used + self.free.bytes)
    }

    /// Return the number of frames in all states.
    #[must_use]
    pub fn frames(&self) -> u64 {
        let Fill { free, clean, dirty, pinned, busy, quarantined } = self;
        [free, clean, dirty, pinned, busy, quarantined].iter().map(|amount| amount.frames).sum()
    }
}

impl Requests {
    /// Return the occupancy of the space.
    pub(crate) fn occupancy(&self) -> Occupancy {
        let (host, tier0) = (self.host_fill(), self.tier0_fill());
        let classes = self.tier0s().iter().flat_map(|tier0| &tier0.classes);
        let tier0_frames = classes.map(|c| u64::from(c.count) + u64::from(c.beyond)).sum();
        let [_, used, index_only, awaiting_erasure, bad] = self.disk.counts();
        Occupancy {
            blocks: self.blocks().recs.len() as u32 - self.blocks().free.len,
            blocks_max: self.blocks().max,
            blocks_guaranteed: self.tier0s().iter().map(|tier0| tier0.guaranteed_blocks).sum(),
            published: self.index.live_len(),
            pinned: self.index.pinned_len(),
            index_only: self.index.index_only_len(),
            sessions: self.sessions().iter().filter(|s| s.life == Life::Live).count() as u32,
            pins: self.pagers.iter().map(|pager| pager.pins.len() as u64).sum(),
            host_frames: host.frames(),
            host_frames_used: host.clean.frames + host.dirty.frames + host.busy.frames,
            host_frames_quarantined: host.quarantined.frames,
            host,
            nvme_slots: self.disk.usable() + bad,
            nvme_slots_used: used,
            nvme_slots_index_only: index_only,
            nvme_slots_awaiting_erasure: awaiting_erasure,
            nvme_slots_bad: bad,
            nvme_slot_bytes: self.disk.slot_bytes(),
            planes: self.geo().planes.len() as u32,
            transfers: self.disk.transfers_in_flight(),
            log_requests: self.disk.log_requests_in_flight(),
            persisting: self.blocks().to_write_count() + self.blocks().to_record.len,
            tier0_frames,
            tier0_frames_used: tier0_frames - tier0.free.frames,
            tier0,
            mapped_frames: self
                .tier0s()
                .iter()
                .flat_map(|tier0| &tier0.classes)
                .map(|c| u64::from(c.mapped_frames))
                .sum(),
            mapped_frames_used: self
                .tier0s()
                .iter()
                .flat_map(|tier0| &tier0.classes)
                .map(|c| u64::from(c.mapped_frames - c.mapped_free.len))
                .sum(),
        }
    }

    fn host_fill(&self) -> Fill {
        let mut fill = Fill::default();
        for (class, geo) in (0..).zip(&self.geo().classes) {
            let [clean, dirty, busy, quarantined, free] = self.host.states(class);
            let bytes = geo.page_bytes;
            fill.clean.add(clean, bytes);
            fill.dirty.add(dirty, bytes);
            fill.busy.add(busy, bytes);
            fill.quarantined.add(quarantined, bytes);
            fill.free.add(free, bytes);
        }
        fill
    }

    fn tier0_fill(&self) -> Fill {
        let mut fill = Fill::default();
        for tier0 in self.tier0s().iter() {
            for (class, geo) in tier0.classes.iter().zip(&self.geo().classes) {
                let (free, pinned) = (u64::from(class.free.len), class.pinned);
                let clean = u64::from(class.clean.len) + u64::from(class.refused.len) + u64::from(class.outgoing.len);
                // Some pinned pages are also in the list of pages to be stored.
                let early = class.early.iter(&tier0.frames).filter(|&f| tier0.frames[f as usize].pins == 0);
                let dirty = u64::from(class.dirty.len) + early.count() as u64;
                let bytes = geo.page_bytes;
                fill.free.add(free, bytes);
                fill.pinned.add(pinned, bytes);
                fill.clean.add(clean, bytes);
                fill.dirty.add(dirty, bytes);
                let all = u64::from(class.count) + u64::from(class.beyond);
                fill.busy.add(all.saturating_sub(free + pinned + clean + dirty), bytes);
            }
        }
        fill
    }
}
