//! NVMe admission: admits published blocks that are worth writing, with whole prefix chains at a time, within the write budget, and
//! charges the bytes written.

use crate::api::{Admission, BlockId, Cause, Level, NONE};
use crate::blocks::PersistState;
use crate::disk::{DiskTier, Why};
use crate::index::EXAMINED_MAX;
use crate::tables::disk::{BudgetReport, worthy};
use crate::tables::index::ShardCopy;

/// Maximum number of blocks of a prefix chain that is admitted as a whole without a request for [`Level::Stored`] or more. A longer
/// chain is admitted from its beginning when it is next looked up.
const CHAIN_MAX: u64 = 256;

impl DiskTier {
    /// Record a use of a block: published, computed again, or looked up. Shards use a block together, so only shard 0 counts.
    pub(crate) fn touch_entry(&mut self, hash: u128, shard: u16) {
        if shard == 0 && self.disk.exists() && !self.admits_everything() {
            self.counters.second_uses += u64::from(self.disk.count_use(hash) == 1);
        }
    }

    /// Return true if every published block is written, so that earlier uses do not matter.
    fn admits_everything(&self) -> bool {
        self.cfg().policy.nvme_admission == Admission::All && !self.disk.is_budgeted()
    }

    /// Return whether a block and its ancestors may be written to NVMe. If so, start persisting them and reserve their bytes.
    pub(crate) fn admit_chain(&mut self, b: BlockId, why: Why) -> bool {
        if !self.disk.exists() {
            return false;
        }
        let admitted = self.try_admit_chain(b, why);
        if !admitted {
            self.set_not_admitted(b, true);
            self.settle_hosts_of(b);
        }
        admitted
    }

    fn try_admit_chain(&mut self, b: BlockId, why: Why) -> bool {
        let c = self.block(b).entry;
        let asked = matches!(why, Why::Published(level) if level > Level::Published);
        let now = self.now();
        self.disk.advance_budget(now);
        let uses = self.uses_before(b, asked);
        // With a larger write budget the block would be written.
        let wanted = uses.is_none_or(|uses| uses > 0) || self.cfg().policy.nvme_admission == Admission::All;
        let is_last = why == Why::Refilled && self.disk.is_last_decision();
        if !is_last && !self.is_worthy(b, uses) {
            self.not_admitted(b, why, wanted, !wanted);
            return false;
        }
        let free = self.disk.free_budget(self.blocks().committed);
        let (mut blocks, mut bytes) = (0, 0);
        let mut above = c;
        while let Some(count) = self.unpersisted(above) {
            blocks += u64::from(count.0);
            bytes += count.1;
            if bytes > free || blocks > CHAIN_MAX && !asked {
                self.not_admitted(b, why, wanted && bytes > free, false);
                return false;
            }
            above = self.index.parent(above);
        }
        self.counters.admitted += blocks;
        let mut next = c;
        while next != above {
            let mut copy = self.index.first_copy(next);
            while copy != ShardCopy::End {
                if let Some(b) = copy.block().filter(|&b| self.is_unpersisted(b)) {
                    self.begin_persist(b);
                }
                copy = self.copy_after(copy);
            }
            next = self.index.parent(next);
        }
        true
    }

    /// Refuse a block. `over_budget`: with a larger write budget it would be written. `unworthy`: only the rule keeps it out.
    fn not_admitted(&mut self, b: BlockId, why: Why, over_budget: bool, unworthy: bool) {
        self.set_over_budget(b, over_budget);
        if why != Why::Refilled {
            self.counters.refused_budget += u64::from(!unworthy);
            self.counters.refused_unworthy += u64::from(unworthy);
        }
        if self.may_be_admitted_later(b) {
            let now = self.now();
            self.disk.decide_later(now);
        }
    }

    /// Return whether more bytes would admit a refused block: under `second-touch` only one that was used before.
    fn may_be_admitted_later(&self, b: BlockId) -> bool {
        self.cfg().policy.nvme_admission != Admission::SecondTouch || self.block(b).over_budget
    }

    /// Decide on refused blocks again, if a pass is due: on those among the next [`EXAMINED_MAX`] of all blocks, as long as there are bytes.
    pub(crate) fn admit_refilled(&mut self) {
        let (now, blocks) = (self.now(), self.blocks().recs.len() as u32);
        let Some(left) = self.disk.begin_pass(now, blocks) else { return };
        for _ in 0..left.min(EXAMINED_MAX as u32) {
            let committed = self.blocks().committed;
            let Some(b) = self.disk.next_of_pass(now, blocks, committed) else { return };
            let block = self.block(b);
            let is_refused = block.not_admitted && block.entry != NONE && self.is_unpersisted(b);
            if is_refused && self.may_be_admitted_later(b) {
                self.persist(b, Why::Refilled);
            }
        }
        self.disk.suspend_pass(now);
    }

    /// The space ends: admit what the write budget allows, and keep nothing for later.
    pub(crate) fn admit_last(&mut self) {
        let now = self.now();
        self.disk.decide_last(now);
    }

    /// Return whether a decision on refused blocks is due now ([`Event::Tick`](crate::api::Event::Tick)).
    pub(crate) fn is_admitting(&self) -> bool {
        self.disk.decision_due_us().is_some_and(|due_us| due_us <= self.now())
    }

    /// Return how often a block was used before. Return `None` if that does not matter: every block is written, or another shard's
    /// copy of the block is, and the rest follows it.
    fn uses_before(&self, b: BlockId, asked: bool) -> Option<u8> {
        let c = self.block(b).entry;
        if self.admits_everything() || self.copies(c).any(|copy| !copy.block().is_some_and(|b| self.is_unpersisted(b)))
        {
            return None;
        }
        // The current use is counted already. A block requested as stored will be looked up.
        let before = self.disk.uses_of(self.index.hash(c)).saturating_sub(1);
        Some(before + u8::from(asked))
    }

    /// Return whether the admission rule accepts the block.
    fn is_worthy(&self, b: BlockId, uses_before: Option<u8>) -> bool {
        let tokens = u64::from(self.block(b).depth) * self.geo().page_tokens;
        let fill = || self.disk.budget_fill(self.blocks().committed);
        uses_before.is_none_or(|uses| worthy(self.cfg().policy.nvme_admission, uses, tokens, fill()))
    }

    /// Return the number of an entry's blocks that are not admitted, and the bytes that they would write. `None` if all are
    /// admitted, or there are none.
    fn unpersisted(&self, c: u32) -> Option<(u32, u64)> {
        if c == NONE {
            return None;
        }
        let unpersisted = self.copies(c).filter_map(ShardCopy::block).filter(|&b| self.is_unpersisted(b));
        let (mut blocks, mut bytes) = (0, 0);
        for b in unpersisted {
            blocks += 1;
            bytes += if self.is_unwritten(b) { self.disk.slot_bytes() } else { 0 };
        }
        (blocks > 0).then_some((blocks, bytes))
    }

    /// Return whether a block is neither recorded on NVMe nor being persisted.
    fn is_unpersisted(&self, b: BlockId) -> bool {
        matches!(self.block(b).persist, PersistState::No | PersistState::Erase) && !self.is_recorded(b)
    }

    /// Return whether any of its pages is not on NVMe.
    fn is_unwritten(&self, b: BlockId) -> bool {
        let missing = |page: u32| !self.page(page).on_disk() && !self.page(page).out_of_window();
        self.pages_of(b).any(missing)
    }

    /// Reserve the bytes that a block being persisted will write.
    pub(crate) fn set_aside(&mut self, b: BlockId) {
        let unwritten = self.is_unwritten(b);
        self.set_committed(b, unwritten);
    }

    /// Charge the bytes of a block being written, whether they were reserved or not.
    pub(crate) fn charge_write(&mut self, b: BlockId, bytes: u64) {
        match self.block(b).committed {
            true => self.counters.nvme_bytes_admitted += bytes,
            false => self.counters.nvme_bytes_forced += bytes,
        }
        self.set_committed(b, false);
        let now = self.now();
        self.disk.charge(now, bytes);
    }

    /// Drop the least recently used unreferenced blocks that were not admitted, until a host frame of the class is free. Running
    /// sequences need host memory, so these blocks are not written for lack of it. Return false if no leaf is near that stores do not
    /// add children to.
    pub(crate) fn drop_not_admitted(&mut self, class: u8) -> bool {
        while self.host.free_frames(class) == 0 {
            let Some(c) = self.first_not_admitted(class) else { return false };
            self.counters.refused_dropped += 1;
            self.drop_leaf(c, Cause::MemoryFull);
        }
        true
    }

    fn first_not_admitted(&self, class: u8) -> Option<u32> {
        let entries = self.host.not_admitted(class).map(|page| self.block(self.geo().block_of(page)).entry);
        entries.take(EXAMINED_MAX).find(|&c| self.index.is_leaf(c) && !self.index.is_held(c))
    }

    /// Return the state of the space's write budget.
    pub(crate) fn budget_report(&self) -> BudgetReport {
        self.disk.budget_report(self.cfg().policy.nvme_admission, self.blocks().committed, self.blocks().over_budget)
    }
}
