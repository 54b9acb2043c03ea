//! The write budget of a space, and the pass that decides again on blocks which it refused.

use super::Disk;
use super::bucket::Bucket;
use crate::api::{Admission, BlockId, SpaceConfig};
use crate::evict::FrequencySketch;
use serde::{Deserialize, Serialize};

/// Minimum time between two passes over the refused blocks.
const PASS_US: u64 = 1_000_000;

/// The write budget of a space, and the frequency sketch of its blocks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct WriteBudget {
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

    /// Return the bytes of the tables.
    pub fn bytes(&self) -> usize {
        self.frequency.bytes()
    }
}

impl Disk {
    /// Count a use of a block. Return its uses before.
    pub fn count_use(&mut self, hash: u128) -> u8 {
        self.budget.frequency.touch(hash)
    }

    /// Return how often a block was used.
    pub fn uses_of(&self, hash: u128) -> u8 {
        self.budget.frequency.of(hash)
    }

    /// Advance the time, so that budget accrues.
    pub fn advance_budget(&mut self, now_us: u64) {
        self.budget.bucket.advance(now_us);
    }

    /// Return whether bytes a day are limited.
    pub fn is_budgeted(&self) -> bool {
        self.budget.bucket.per_day() > 0
    }

    /// Return the bytes that may be admitted in addition to `committed` blocks.
    pub fn free_budget(&self, committed: u32) -> u64 {
        self.budget.bucket.free(self.bytes_of(committed))
    }

    /// Return the fill level of the budget without `committed` blocks, as [`worthy`](super::worthy) takes it.
    pub fn budget_fill(&self, committed: u32) -> u32 {
        self.budget.bucket.fill(self.bytes_of(committed))
    }

    fn bytes_of(&self, blocks: u32) -> u64 {
        u64::from(blocks) * self.slot_bytes
    }

    /// Charge written bytes.
    pub fn charge(&mut self, now_us: u64, bytes: u64) {
        self.budget.bucket.advance(now_us);
        self.budget.bucket.charge(bytes);
    }

    /// The space has blocks of an earlier run: it does not begin with bytes that run may have used.
    pub fn empty_budget(&mut self) {
        self.budget.bucket.empty();
    }

    /// Change the rate. A decision on refused blocks is due at once.
    pub fn set_budget(&mut self, now_us: u64, per_day: u64) {
        let bucket = &mut self.budget.bucket;
        bucket.advance(now_us);
        let before = bucket.per_day();
        bucket.set_rate(per_day);
        if bucket.per_day() != before && self.budget.pass.due_us.is_some() {
            self.decide_again(now_us);
        }
    }

    /// Decide on all refused blocks again, beginning with the next tick, which is due now.
    pub fn decide_again(&mut self, now_us: u64) {
        (self.budget.pass.left, self.budget.pass.due_us) = (0, Some(now_us));
    }

    /// The space ends: decide on all refused blocks a last time, and keep nothing for later.
    pub fn decide_last(&mut self, now_us: u64) {
        self.budget.pass.is_last = true;
        self.decide_again(now_us);
    }

    /// Decide on refused blocks again when there are bytes for one.
    pub fn decide_later(&mut self, now_us: u64) {
        if !self.budget.pass.is_last {
            let at = now_us.saturating_add(self.budget.bucket.next_us().max(PASS_US));
            self.budget.pass.due_us.get_or_insert(at);
        }
    }

    /// Return when the next tick is due for refused blocks.
    pub fn decision_due_us(&self) -> Option<u64> {
        self.budget.pass.due_us
    }

    pub fn is_last_decision(&self) -> bool {
        self.budget.pass.is_last
    }

    /// Begin or continue a pass over `blocks` blocks, if one is due. Return how many blocks are left in it.
    pub fn begin_pass(&mut self, now_us: u64, blocks: u32) -> Option<u32> {
        let pass = &mut self.budget.pass;
        pass.due_us.take_if(|due_us| *due_us <= now_us)?;
        if pass.left == 0 {
            pass.left = blocks;
        }
        Some(pass.left)
    }

    /// Return the next block of the pass; or end the pass, because there are not enough bytes for a block.
    pub fn next_of_pass(&mut self, now_us: u64, blocks: u32, committed: u32) -> Option<BlockId> {
        if self.free_budget(committed) < self.slot_bytes {
            self.budget.pass.left = 0;
            self.decide_later(now_us);
            return None;
        }
        let pass = &mut self.budget.pass;
        let b = if pass.next < blocks { pass.next } else { 0 };
        (pass.next, pass.left) = (b + 1, pass.left - 1);
        Some(b)
    }

    /// Continue the pass with the next tick, which is due now, unless it is complete.
    pub fn suspend_pass(&mut self, now_us: u64) {
        if self.budget.pass.left > 0 {
            self.budget.pass.due_us = Some(now_us);
        }
    }

    /// Return the state of the write budget.
    pub fn budget_report(&self, admission: Admission, committed: u32, waiting: u32) -> BudgetReport {
        let (bucket, committed_bytes) = (&self.budget.bucket, self.bytes_of(committed));
        BudgetReport {
            admission,
            bytes_per_day: bucket.per_day(),
            left_bytes: if bucket.per_day() == 0 { 0 } else { bucket.free(committed_bytes) },
            committed_bytes,
            debt_bytes: bucket.debt(),
            waiting_blocks: waiting.into(),
        }
    }
}
