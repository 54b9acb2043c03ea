//! Slots on NVMe for blocks: where the next one comes from, and when slabs go back.

use super::Core;
use crate::api::{Action, BlockId, NONE, Status};
use crate::error::Error;
use crate::mutants::{self, Mutant};
use crate::plan::{Choice, choose};

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
        self.ask_disk_on(None)
    }

    /// The same, rather on a certain disk.
    fn ask_disk_on(&mut self, disk: Option<u16>) -> bool {
        if !self.disk.asked && self.may_grow() {
            (self.disk.asked, self.disk.asked_for) = (true, disk);
            self.outbox.push_back(Action::NeedDisk { disk: disk.unwrap_or(u16::MAX) });
        }
        self.disk.asked
    }

    /// Whether the node may have more for the space.
    fn may_grow(&self) -> bool {
        let granted = u64::from(self.disk.granted) * self.slot_bytes;
        !self.disk.refused && granted + self.slot_bytes <= self.cfg.limits.nvme_bytes_max
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
        if let Some(wanted) = self.disk.asked_for.take().filter(|&wanted| wanted != disk) {
            self.disk.set_full(Some(wanted));
        }
        self.wake_all();
        self.wake_disk();
        Ok(())
    }

    pub(crate) fn disk_refused(&mut self) -> Result<(), Error> {
        if !self.disk.asked {
            return Err(Error::Slab { slab: NONE, why: "was not asked for" });
        }
        (self.disk.asked, self.disk.asked_for) = (false, None);
        self.disk.refused = true;
        self.wake_all();
        self.wake_disk();
        Ok(())
    }

    /// The block's slot, or a new one. Content that nobody refers to gives way, least recently used first, when there is none: then
    /// slots are free at once or (see [`Core::slots_to_come`]) when their logs know. `urgent`: somebody waits for its host frames.
    pub(crate) fn give_slot(&mut self, b: BlockId, urgent: bool) -> bool {
        if self.blocks[b].slot != NONE {
            return !self.is_slot_gone(b);
        }
        if self.disk.free_slots() == 0 {
            if self.ask_disk() {
                return false;
            }
            let wanted = (self.disk.usable() / BATCH_PART).clamp(1, BATCH_MAX);
            while self.blocks[b].live() && self.disk.free_slots() + self.disk.limbo < wanted && self.drop_for_slot() {}
            if !self.blocks[b].live() {
                // It was cached content itself.
                return false;
            }
        }
        let disk = match choose(self.run_disk(b), self.disk.standings(), self.may_grow(), urgent) {
            Choice::On(disk) => disk,
            Choice::Spill(disk) => {
                self.counters.runs_spilled += 1;
                disk
            }
            Choice::Ask(disk) => {
                self.ask_disk_on(disk);
                return false;
            }
            Choice::Nowhere => return false,
        };
        let Some(at) = self.disk.take(disk, b) else { return false };
        self.blocks[b].slot = at;
        self.set_run_disk(b, disk);
        true
    }

    /// The disk that the prefix run of a block stands on: that of the content before it or, if that has no slot, of what its
    /// sequence wrote or mapped last.
    fn run_disk(&self, b: BlockId) -> Option<u16> {
        let block = &self.blocks[b];
        let parent = if block.content == NONE { NONE } else { self.index.recs[block.content as usize].parent };
        let part = if parent == NONE { None } else { self.part_of(parent, block.shard) };
        let slot = part.and_then(|part| part.slot().or_else(|| part.block().map(|p| self.blocks[p].slot)));
        match slot.filter(|&at| at != NONE) {
            Some(at) => Some(self.disk.disk_of(at)),
            None => self.run_of(b).and_then(|(s, seq)| self.sessions[s].seqs[seq].disk),
        }
    }

    /// The sequence that uses a block goes on where it went.
    pub(crate) fn set_run_disk(&mut self, b: BlockId, disk: u16) {
        if let Some((s, seq)) = self.run_of(b) {
            self.sessions[s].seqs[seq].disk = Some(disk);
        }
    }

    /// The session and the sequence that used a block last.
    fn run_of(&self, b: BlockId) -> Option<(usize, usize)> {
        let block = &self.blocks[b];
        let (s, seq) = (usize::from(block.home), block.seq as usize);
        let live = self.sessions.get(s)?.seqs.get(seq)?.live;
        live.then_some((s, seq))
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

    /// Return one free slab that no admitted block needs. Keep a tenth of the granted slabs, and all of them while a request waits for
    /// admission: it would ask for the returned slab again.
    pub(crate) fn return_idle_disk(&mut self) {
        if self.sessions.iter().any(|s| !s.ops.admission.is_empty()) {
            return;
        }
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
