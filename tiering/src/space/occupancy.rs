//! How full a space is, from what its tables count anyway.

use super::Core;
use crate::sessions::{Life, Session};
use serde::{Deserialize, Serialize};

/// How full a space is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Occupancy {
    /// Blocks in use, those on their way to be free included.
    pub blocks: u32,
    /// Blocks that there are.
    pub blocks_max: u32,
    /// Contents that can be found.
    pub published: u32,
    /// Of those, only on NVMe: they have no block.
    pub cold: u32,
    /// Sessions attached.
    pub sessions: u32,
    /// Ranges that engines have acquired and not released.
    pub pins: u64,
    /// Host frames granted, over all size classes.
    pub host_frames: u64,
    /// Of those, with a page or about to have one.
    pub host_frames_used: u64,
    /// Of those, set aside because a lost session may still write them.
    pub host_frames_quarantined: u64,
    /// All of them by what is in them.
    pub host: Fill,
    /// Slots on NVMe granted; each takes all pages of a block.
    pub nvme_slots: u32,
    /// Of those, with a block.
    pub nvme_slots_used: u32,
    /// Of those, with a content that has no block.
    pub nvme_slots_cold: u32,
    /// Slots that are free once their index log knows that they hold nothing.
    pub nvme_slots_limbo: u32,
    /// Slots given up because writes to them failed.
    pub nvme_slots_bad: u32,
    /// Bytes of a slot.
    pub nvme_slot_bytes: u64,
    /// Pages of a block.
    pub planes: u32,
    /// Transfers between host and NVMe in flight.
    pub transfers: u32,
    /// Notes to index logs in flight.
    pub notes: u32,
    /// Published blocks on their way to NVMe and into its index log.
    pub keeping: u32,
    /// Tier-0 frames of the sessions attached.
    pub tier0_frames: u64,
    /// Of those, not free.
    pub tier0_frames_used: u64,
    /// All of them by what is in them.
    pub tier0: Fill,
    /// Window frames of the sessions attached.
    pub windows: u64,
    /// Of those, that show a page of host memory, are about to or may still.
    pub windows_used: u64,
}

/// The frames of a tier by what is in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fill {
    /// Nothing.
    pub free: Amount,
    /// A page that the tier below has too: it can be had at once.
    pub clean: Amount,
    /// A sealed page that the tier below does not have.
    pub dirty: Amount,
    /// A page that an engine has acquired.
    pub pinned: Amount,
    /// A page that is still written, or that moves.
    pub busy: Amount,
    /// What a lost session may still write.
    pub quarantined: Amount,
}

/// How much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// Frames.
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
    /// Frames of all states.
    #[must_use]
    pub fn frames(&self) -> u64 {
        let Fill { free, clean, dirty, pinned, busy, quarantined } = self;
        [free, clean, dirty, pinned, busy, quarantined].iter().map(|amount| amount.frames).sum()
    }
}

impl Core {
    /// How full the space is. Takes time in proportion to the sessions and to the published pages that are to be stored.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        let (host, tier0) = (self.host_fill(), self.tier0_fill());
        let classes = self.attached().flat_map(|s| &s.classes);
        let tier0_frames = classes.map(|c| u64::from(c.count) + u64::from(c.beyond)).sum();
        Occupancy {
            blocks: self.blocks.recs.len() as u32 - self.blocks.free.len,
            blocks_max: self.blocks.max,
            published: self.index.live_len(),
            cold: self.index.order.cold.len(),
            sessions: self.attached().count() as u32,
            pins: self.attached().map(|s| s.pins.len() as u64).sum(),
            host_frames: self.host.classes.iter().map(|c| c.granted).sum(),
            host_frames_used: self.host.classes.iter().map(|c| c.used).sum(),
            host_frames_quarantined: host.quarantined.frames,
            host,
            nvme_slots: self.disk.granted,
            nvme_slots_used: self.disk.used,
            nvme_slots_cold: self.disk.cold,
            nvme_slots_limbo: self.disk.limbo,
            nvme_slots_bad: self.disk.bad,
            nvme_slot_bytes: self.slot_bytes,
            planes: self.geo.planes.len() as u32,
            transfers: self.transfers.in_flight(),
            notes: self.notes.in_flight(),
            keeping: self.blocks.to_write_count() + self.blocks.to_record.len,
            tier0_frames,
            tier0_frames_used: tier0_frames - tier0.free.frames,
            tier0,
            windows: self.attached().flat_map(|s| &s.classes).map(|c| u64::from(c.windows)).sum(),
            windows_used: self
                .attached()
                .flat_map(|s| &s.classes)
                .map(|c| u64::from(c.windows - c.window_free.len))
                .sum(),
        }
    }

    fn attached(&self) -> impl Iterator<Item = &Session> {
        self.sessions.iter().filter(|s| s.life == Life::Live)
    }

    fn host_fill(&self) -> Fill {
        let mut fill = Fill::default();
        for (class, geo) in self.host.classes.iter().zip(&self.geo.classes) {
            let (clean, dirty) = (class.evictable(), u64::from(class.dirty.len));
            let bytes = geo.page_bytes;
            fill.clean.add(clean, bytes);
            fill.dirty.add(dirty, bytes);
            fill.busy.add(class.used.saturating_sub(clean + dirty), bytes);
            fill.quarantined.add(class.quarantined, bytes);
            fill.free.add(class.granted.saturating_sub(class.used + class.quarantined), bytes);
        }
        fill
    }

    fn tier0_fill(&self) -> Fill {
        let mut fill = Fill::default();
        for session in self.attached() {
            for (class, geo) in session.classes.iter().zip(&self.geo.classes) {
                let (free, pinned) = (u64::from(class.free.len), class.pinned);
                let clean = u64::from(class.clean.len) + u64::from(class.refused.len) + u64::from(class.outgoing.len);
                // Some that are pinned are to be stored, too.
                let early = class.early.iter(&session.frames).filter(|&f| session.frames[f as usize].pins == 0);
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
