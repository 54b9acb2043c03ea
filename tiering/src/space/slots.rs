//! Slots on NVMe for blocks: where the next one comes from, and when slabs go back.

use super::Core;
use crate::api::{Action, BlockId, NONE, Status};
use crate::error::Error;
use crate::mutants::{self, Mutant};

/// Writes that fail in a row, over all slots, before the disk counts as failing: about a tenth of a second.
const FAILING: u8 = 8;
/// When slots run out, one of so many is made free at once, for their logs take a while, but no more than so many.
const BATCH_PART: u32 = 64;
const BATCH_MAX: u32 = 16;

impl Core {
    /// Whether there is a tier below host.
    pub(crate) fn has_nvme(&self) -> bool {
        self.cfg.limits.nvme_bytes_max > 0
    }

    /// Asks the node for NVMe space, unless that is hopeless now. True while an answer is to come.
    pub(crate) fn ask_disk(&mut self) -> bool {
        let granted = u64::from(self.disk.granted) * self.slot_bytes;
        let fits = granted + self.slot_bytes <= self.cfg.limits.nvme_bytes_max;
        if !self.disk.asked && !self.disk.refused && fits {
            self.disk.asked = true;
            self.outbox.push_back(Action::NeedDisk { disk: u16::MAX });
        }
        self.disk.asked
    }

    /// How writes fail, or erasures of slots that are wanted again, if none has succeeded for long: nothing is promised a place on
    /// disk then.
    pub(crate) fn disk_failing(&self) -> Option<Status> {
        (self.disk.write_fails >= FAILING || self.log.is_stuck()).then_some(self.disk.failed_with)
    }

    /// Whether slots will be free without anything more being done: the node has been asked, or logs have.
    pub(crate) fn slots_to_come(&self) -> bool {
        self.disk.asked || self.disk.limbo > 0 && !self.log.is_stuck()
    }

    /// Requests of a session that wait for a host frame while the disk takes nothing that could make one free, and nothing is
    /// in flight that would, are told so.
    pub(crate) fn give_up_on_disk(&mut self, s: u16) {
        let Some(status) = self.disk_failing() else { return };
        if self.sessions[usize::from(s)].jobs.any() || self.transfers.in_flight() > self.transfers.writes {
            return;
        }
        let full = |core: &Core, class: u8| {
            let c = &core.host.classes[usize::from(class)];
            core.host.free_frames(class) == 0 && c.evictable() == 0 && !c.asked
        };
        if !(0..self.geo.classes.len() as u8).any(|class| full(self, class)) {
            return;
        }
        let mut op = self.sessions[usize::from(s)].ops.faults.head;
        while op != NONE {
            let rec = self.sessions[usize::from(s)].ops[op];
            if full(self, self.geo.class_of_page(rec.at)) {
                self.fail_op(s, op, status);
            }
            op = rec.links.next;
        }
        for op in [self.sessions[usize::from(s)].ops.frames.head, self.sessions[usize::from(s)].ops.leaving.head] {
            if op != NONE {
                self.fail_op(s, op, status);
            }
        }
    }

    pub(crate) fn disk_granted(&mut self, slab: u32, slots: u32, disk: u16, generation: u32) -> Result<(), Error> {
        if !self.disk.asked {
            return Err(Error::Slab { slab, why: "was not asked for" });
        }
        self.disk.grant(slab, slots, disk, generation)?;
        self.disk.asked = false;
        self.wake_all();
        self.wake_disk();
        Ok(())
    }

    pub(crate) fn disk_refused(&mut self) -> Result<(), Error> {
        if !self.disk.asked {
            return Err(Error::Slab { slab: NONE, why: "was not asked for" });
        }
        self.disk.asked = false;
        self.disk.refused = true;
        self.wake_all();
        self.wake_disk();
        Ok(())
    }

    /// The block's slot, or a new one. Content that nobody refers to gives way, least recently used first, when there is none: then
    /// slots are free at once or (see [`Core::slots_to_come`]) when their logs know.
    pub(crate) fn give_slot(&mut self, b: BlockId) -> bool {
        if self.blocks[b].slot != NONE {
            return !self.is_slot_gone(b);
        }
        if self.disk.free_slots() == 0 {
            if self.ask_disk() {
                return false;
            }
            let wanted = (self.disk.usable() / BATCH_PART).clamp(1, BATCH_MAX);
            while self.disk.free_slots() + self.disk.limbo < wanted && self.drop_stored_content() {
                self.counters.nvme_drops += 1;
            }
            if !self.blocks[b].live() {
                // It was cached content itself.
                return false;
            }
        }
        let Some(slab) = self.slab_for(b) else { return false };
        match self.disk.take(slab, b) {
            Some(at) => self.blocks[b].slot = at,
            None => return false,
        }
        true
    }

    /// The one decision on which slab, of those with free slots, a block gets its slot.
    fn slab_for(&self, _b: BlockId) -> Option<u32> {
        self.disk.open().next().map(|(slab, _disk)| slab)
    }

    /// Nothing is on disk of the block any more: its slot is free, once its log knows. No transfer names it.
    pub(crate) fn free_slot(&mut self, b: BlockId) {
        for page in self.pages_of(b) {
            self.pages[page as usize].set_on_disk(false);
        }
        let at = std::mem::replace(&mut self.blocks[b].slot, NONE);
        if at != NONE {
            self.release_slot(at);
        }
    }

    /// Nobody has the slot any more.
    pub(crate) fn release_slot(&mut self, at: u32) {
        self.disk.release(at);
        self.wake_disk();
    }

    /// The block's slot fails whenever it is written: it is not used again. False when pages have their only copy there.
    pub(crate) fn retire_slot(&mut self, b: BlockId) -> bool {
        let copies = |core: &Core, page: u32| {
            let p = &core.pages[page as usize];
            let busy = p.reading() || p.writing();
            busy || p.on_disk() && p.host == NONE
        };
        if self.pages_of(b).any(|page| copies(self, page)) {
            return false;
        }
        for page in self.pages_of(b) {
            self.pages[page as usize].set_on_disk(false);
            self.settle_page(page);
        }
        let at = std::mem::replace(&mut self.blocks[b].slot, NONE);
        self.disk.retire(at);
        true
    }

    /// What the engine will change is not what the slot holds.
    pub(crate) fn forget_disk_copy(&mut self, page: u32) {
        if !mutants::on(Mutant::StaleDiskCopy) {
            self.pages[page as usize].set_on_disk(false);
        }
    }

    /// Gives one wholly free slab back that no admitted block needs; keeps a tenth of what is granted.
    pub(crate) fn return_idle_disk(&mut self) {
        let promised = self.blocks.referred.saturating_sub(self.disk.used);
        if let Some(slab) = self.disk.idle_slab(promised.max(self.disk.granted / 10)) {
            self.disk.remove(slab);
            self.outbox.push_back(Action::ReturnDisk { slab });
        }
    }

    /// Over the high watermark, published blocks that nobody refers to are dropped for good, least recently used first, until
    /// the low one.
    pub(crate) fn trim_disk(&mut self) {
        let policy = self.cfg.policy;
        let limit = match self.disk.refused {
            true => u64::from(self.disk.usable()),
            false => self.cfg.limits.nvme_bytes_max / self.slot_bytes,
        };
        let high = u128::from(limit) * u128::from(policy.nvme_high_percent) / 100;
        let low = u128::from(limit) * u128::from(policy.nvme_low_percent) / 100;
        if high == 0 || u128::from(self.disk.used) < high {
            return;
        }
        while u128::from(self.disk.used) > low && self.drop_stored_content() {
            self.counters.nvme_drops += 1;
        }
    }
}
