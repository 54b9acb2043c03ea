//! NVMe admission: admits published blocks that are worth writing, with whole prefix chains at a time, within the write budget, and
//! charges the bytes written.

use super::admission::worthy;
use super::budget::Bucket;
use crate::api::{Admission, BlockId, Cause, Level, NONE, SpaceConfig};
use crate::index::evict::FrequencySketch;
use crate::pages::{PersistState, ShardCopy};
use crate::space::{Core, EXAMINED_MAX, Why};
use serde::{Deserialize, Serialize};

/// Maximum number of blocks of a prefix chain that is admitted as a whole without a request for [`Level::Stored`] or more. A longer
/// chain is admitted from its beginning when it is next looked up.
const CHAIN_MAX: u64 = 256;

/// Minimum time between two passes over the refused blocks.
const PASS_US: u64 = 1_000_000;

/// The write budget of a space, and the frequency sketch of its blocks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WriteBudget {
    bucket: Bucket,
    frequency: FrequencySketch,
    pass: Pass,
}

/// The pass over all blocks that admits refused ones when the bucket has refilled: no request may come that would.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Pass {
    /// The block to look at next.
    next: BlockId,
    /// Blocks left in this pass.
    left: u32,
    /// When it starts or goes on; `None`: no refused block waits for bytes.
    due_us: Option<u64>,
    /// The space ends: the last pass keeps no bytes for later.
    is_last: bool,
}

/// State of a space's write budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BudgetReport {
    /// Which published blocks are written.
    pub admission: Admission,
    /// Bytes per day; 0: unlimited.
    pub bytes_per_day: u64,
    /// Bytes that may be admitted now; meaningless without a limit.
    pub left_bytes: u64,
    /// Bytes reserved for blocks that are admitted and not written yet.
    pub committed_bytes: u64,
    /// Bytes written beyond the budget because host memory was short.
    pub debt_bytes: u64,
    /// Cached blocks that are not written because the budget is used up. They are written when it refills, unless they are dropped
    /// before.
    pub waiting_blocks: u64,
}

impl WriteBudget {
    /// Create the state of a new space: no block was used before.
    pub fn new(cfg: &SpaceConfig, slot_bytes: u64) -> WriteBudget {
        let entries = if cfg.limits.nvme_bytes_max > 0 { cfg.limits.entries_max } else { 0 };
        let whole = slot_bytes.saturating_mul(cfg.shards.into());
        WriteBudget {
            bucket: Bucket::new(cfg.policy.nvme_bytes_per_day, whole),
            frequency: FrequencySketch::new(entries),
            pass: Pass::default(),
        }
    }

    /// Advance the time, so that budget accrues.
    pub fn advance(&mut self, now_us: u64) {
        self.bucket.advance(now_us);
    }

    /// The space has blocks of an earlier run: it does not begin with bytes that run may have used.
    pub fn recovered(&mut self) {
        self.bucket.empty();
    }

    /// Change the rate. A decision on refused blocks is due at once.
    pub fn set_rate(&mut self, now_us: u64, per_day: u64) {
        self.bucket.advance(now_us);
        let before = self.bucket.per_day();
        self.bucket.set_rate(per_day);
        if self.bucket.per_day() != before && self.pass.due_us.is_some() {
            self.decide_again(now_us);
        }
    }

    /// Decide on all refused blocks again, beginning with the next tick, which is due now.
    pub fn decide_again(&mut self, now_us: u64) {
        (self.pass.left, self.pass.due_us) = (0, Some(now_us));
    }

    /// Return when the next tick is due for refused blocks.
    pub fn due_us(&self) -> Option<u64> {
        self.pass.due_us
    }

    /// Decide on refused blocks again when there are bytes for one.
    fn decide_later(&mut self, now_us: u64) {
        if !self.pass.is_last {
            let at = now_us.saturating_add(self.bucket.next_us().max(PASS_US));
            self.pass.due_us.get_or_insert(at);
        }
    }

    /// Return the bytes of the tables.
    pub fn bytes(&self) -> usize {
        self.frequency.bytes()
    }
}

impl Core {
    /// Record a use of a block: published, computed again, or looked up. Shards use a block together, so only shard 0 counts.
    pub(crate) fn touch_entry(&mut self, hash: u128, shard: u16) {
        if shard == 0 && self.has_nvme() && !self.admits_everything() {
            self.counters.second_uses += u64::from(self.write_budget.frequency.touch(hash) == 1);
        }
    }

    /// Return true if every published block is written, so that earlier uses do not matter.
    fn admits_everything(&self) -> bool {
        self.cfg.policy.nvme_admission == Admission::All && self.write_budget.bucket.per_day() == 0
    }

    /// Return whether a block and its ancestors may be written to NVMe. If so, start persisting them and reserve their bytes.
    pub(crate) fn admit_chain(&mut self, b: BlockId, why: Why) -> bool {
        if !self.has_nvme() {
            return false;
        }
        let admitted = self.try_admit_chain(b, why);
        if !admitted {
            self.blocks[b].not_admitted = true;
            self.settle_hosts_of(b);
        }
        admitted
    }

    fn try_admit_chain(&mut self, b: BlockId, why: Why) -> bool {
        let c = self.blocks[b].entry;
        let asked = matches!(why, Why::Published(level) if level > Level::Published);
        self.write_budget.bucket.advance(self.now);
        let uses = self.uses_before(b, asked);
        // With a larger write budget the block would be written.
        let wanted = uses.is_none_or(|uses| uses > 0) || self.cfg.policy.nvme_admission == Admission::All;
        let is_last = why == Why::Refilled && self.write_budget.pass.is_last;
        if !is_last && !self.is_worthy(b, uses) {
            self.not_admitted(b, why, wanted, !wanted);
            return false;
        }
        let free = self.write_budget.bucket.free(self.committed_bytes());
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
        self.blocks.set_over_budget(b, over_budget);
        if why != Why::Refilled {
            self.counters.refused_budget += u64::from(!unworthy);
            self.counters.refused_unworthy += u64::from(unworthy);
        }
        if self.may_be_admitted_later(b) {
            self.write_budget.decide_later(self.now);
        }
    }

    /// Return whether more bytes would admit a refused block: under `second-touch` only one that was used before.
    fn may_be_admitted_later(&self, b: BlockId) -> bool {
        self.cfg.policy.nvme_admission != Admission::SecondTouch || self.blocks[b].over_budget
    }

    /// Decide on refused blocks again, if a pass is due: on those among the next [`EXAMINED_MAX`] of all blocks, as long as there are bytes.
    pub(crate) fn admit_refilled(&mut self) {
        let mut pass = &mut self.write_budget.pass;
        if pass.due_us.is_none_or(|due_us| due_us > self.now) {
            return;
        }
        pass.due_us = None;
        if pass.left == 0 {
            pass.left = self.blocks.recs.len() as u32;
        }
        for _ in 0..pass.left.min(EXAMINED_MAX as u32) {
            if self.write_budget.bucket.free(self.committed_bytes()) < self.slot_bytes {
                self.write_budget.pass.left = 0;
                return self.write_budget.decide_later(self.now);
            }
            pass = &mut self.write_budget.pass;
            let b = if (pass.next as usize) < self.blocks.recs.len() { pass.next } else { 0 };
            (pass.next, pass.left) = (b + 1, pass.left - 1);
            let block = &self.blocks[b];
            let is_refused = block.not_admitted && block.entry != NONE && self.is_unpersisted(b);
            if is_refused && self.may_be_admitted_later(b) {
                self.persist(b, Why::Refilled);
            }
        }
        if self.write_budget.pass.left > 0 {
            self.write_budget.pass.due_us = Some(self.now);
        }
    }

    /// The space ends: admit what the write budget allows, and keep nothing for later.
    pub(crate) fn admit_last(&mut self) {
        self.write_budget.pass.is_last = true;
        self.write_budget.decide_again(self.now);
    }

    /// Return whether a decision on refused blocks is due now ([`Event::Tick`](crate::api::Event::Tick)).
    #[must_use]
    pub fn is_admitting(&self) -> bool {
        self.write_budget.pass.due_us.is_some_and(|due_us| due_us <= self.now)
    }

    /// Return how often a block was used before. Return `None` if that does not matter: every block is written, or another shard's
    /// copy of the block is, and the rest follows it.
    fn uses_before(&self, b: BlockId, asked: bool) -> Option<u8> {
        let c = self.blocks[b].entry;
        if self.admits_everything() || self.copies(c).any(|copy| !copy.block().is_some_and(|b| self.is_unpersisted(b)))
        {
            return None;
        }
        // The current use is counted already. A block requested as stored will be looked up.
        let before = self.write_budget.frequency.of(self.index.hash(c)).saturating_sub(1);
        Some(before + u8::from(asked))
    }

    /// Return whether the admission rule accepts the block.
    fn is_worthy(&self, b: BlockId, uses_before: Option<u8>) -> bool {
        let tokens = u64::from(self.blocks[b].depth) * self.geo.page_tokens;
        let fill = || self.write_budget.bucket.fill(self.committed_bytes());
        uses_before.is_none_or(|uses| worthy(self.cfg.policy.nvme_admission, uses, tokens, fill()))
    }

    /// Count the blocks lost with a cache entry that is about to be dropped: rejected by the write budget, or not written yet. Return what
    /// has kept a block of it from NVMe, if anything.
    pub(crate) fn count_lost(&mut self, c: u32) -> Option<Cause> {
        let on_its_way = |b: BlockId| {
            !matches!(self.blocks[b].persist, PersistState::No | PersistState::Erase) && !self.is_recorded(b)
        };
        let unwritten = self.copies(c).filter_map(ShardCopy::block).filter(|&b| on_its_way(b)).count() as u64;
        self.counters.unwritten_drops += unwritten;
        self.counters.unwritten_drop_bytes += unwritten * self.slot_bytes;
        let lost = self.copies(c).filter_map(ShardCopy::block).filter(|&b| self.blocks[b].over_budget).count() as u64;
        self.counters.over_budget_drops += lost;
        self.counters.over_budget_drop_bytes += lost * self.slot_bytes;
        let mut blocks = self.copies(c).filter_map(ShardCopy::block);
        match (lost, unwritten) {
            (1.., _) => Some(Cause::OverBudget),
            (0, 1..) => Some(Cause::Unwritten),
            (0, 0) => blocks.any(|b| self.blocks[b].not_admitted).then_some(Cause::NotAdmitted),
        }
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
            bytes += if self.is_unwritten(b) { self.slot_bytes } else { 0 };
        }
        (blocks > 0).then_some((blocks, bytes))
    }

    /// Return whether a block is neither recorded on NVMe nor being persisted.
    fn is_unpersisted(&self, b: BlockId) -> bool {
        matches!(self.blocks[b].persist, PersistState::No | PersistState::Erase) && !self.is_recorded(b)
    }

    /// Return whether any of its pages is not on NVMe.
    fn is_unwritten(&self, b: BlockId) -> bool {
        let missing = |page: u32| !self.pages[page as usize].on_disk() && !self.pages[page as usize].out_of_window();
        self.pages_of(b).any(missing)
    }

    /// Return whether the first or the last page of a block is only on NVMe.
    pub(crate) fn is_far(&self, b: BlockId) -> bool {
        let pages = self.pages_of(b);
        let far = |page: u32| {
            let p = &self.pages[page as usize];
            p.on_disk() && p.host == NONE && p.frame == NONE
        };
        far(pages.start) || far(pages.end - 1)
    }

    /// Reserve the bytes that a block being persisted will write.
    pub(crate) fn set_aside(&mut self, b: BlockId) {
        self.blocks.set_committed(b, self.is_unwritten(b));
    }

    pub(crate) fn committed_bytes(&self) -> u64 {
        u64::from(self.blocks.committed) * self.slot_bytes
    }

    /// Charge the bytes of a block being written, whether they were reserved or not.
    pub(crate) fn charge_write(&mut self, b: BlockId, bytes: u64) {
        match self.blocks[b].committed {
            true => self.counters.nvme_bytes_admitted += bytes,
            false => self.counters.nvme_bytes_forced += bytes,
        }
        self.blocks.set_committed(b, false);
        self.write_budget.bucket.advance(self.now);
        self.write_budget.bucket.charge(bytes);
    }

    /// Drop the least recently used unreferenced blocks that were not admitted, until a host frame of the class is free. Running
    /// sequences need host memory, so these blocks are not written for lack of it. Return false if only parents of stores in
    /// progress are among the candidates.
    pub(crate) fn drop_not_admitted(&mut self, class: u8) -> bool {
        while self.host.free_frames(class) == 0 {
            let Some(c) = self.first_not_admitted(class) else { return false };
            self.counters.refused_dropped += 1;
            self.drop_below(c, Cause::MemoryFull);
        }
        true
    }

    fn first_not_admitted(&self, class: u8) -> Option<u32> {
        let entries = self.host.not_admitted(class).map(|page| self.blocks[self.geo.block_of(page)].entry);
        entries.take(EXAMINED_MAX).find(|&c| !self.is_parent_of_store(self.index.leaf_of(c)))
    }

    /// Return the state of the space's write budget.
    #[must_use]
    pub fn budget_report(&self) -> BudgetReport {
        let (bucket, committed_bytes) = (&self.write_budget.bucket, self.committed_bytes());
        BudgetReport {
            admission: self.cfg.policy.nvme_admission,
            bytes_per_day: bucket.per_day(),
            left_bytes: if bucket.per_day() == 0 { 0 } else { bucket.free(committed_bytes) },
            committed_bytes,
            debt_bytes: bucket.debt(),
            waiting_blocks: self.blocks.over_budget.into(),
        }
    }
}
