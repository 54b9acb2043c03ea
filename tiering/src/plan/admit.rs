//! Admission: published blocks that are worth it are sent on their way to NVMe, whole prefix runs at a time, within the bytes that may be
//! written in a day; and what is written is charged.

use super::admission::worthy;
use super::budget::Bucket;
use crate::api::{Admission, BlockId, Level, NONE, SpaceConfig};
use crate::evict::Touches;
use crate::pages::{Keep, Part};
use crate::space::{Core, NEAR, Why};
use serde::{Deserialize, Serialize};

/// Blocks of a run that nobody asked to be stored and that is looked at as a whole: one that is longer is admitted from its
/// beginning when it is next looked up.
const RUN_MAX: u64 = 256;

/// What writing to NVMe may cost, and which contents were used before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Wear {
    bucket: Bucket,
    touches: Touches,
}

/// How a space stands with the bytes that it may write to NVMe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endurance {
    /// Which published blocks are written.
    pub admission: Admission,
    /// Bytes a day; 0: no bound.
    pub bytes_per_day: u64,
    /// Bytes that may be admitted now; meaningless without a bound.
    pub left_bytes: u64,
    /// Bytes set aside for blocks that are admitted and not written yet.
    pub promised_bytes: u64,
    /// Bytes written, because host memory was short, beyond what had accrued.
    pub debt_bytes: u64,
}

impl Wear {
    /// Of a new space: nothing may be written yet, nothing was used before.
    pub fn new(cfg: &SpaceConfig, slot_bytes: u64) -> Wear {
        let contents = if cfg.limits.nvme_bytes_max > 0 { cfg.limits.contents_max } else { 0 };
        let whole = slot_bytes.saturating_mul(cfg.shards.into());
        Wear { bucket: Bucket::new(cfg.policy.nvme_bytes_per_day, whole), touches: Touches::new(contents) }
    }

    /// Time passed.
    pub fn advance(&mut self, now_us: u64) {
        self.bucket.advance(now_us);
    }

    /// The rate is another from now on.
    pub fn set_rate(&mut self, now_us: u64, per_day: u64) {
        self.bucket.advance(now_us);
        self.bucket.set_rate(per_day);
    }

    /// Bytes of the tables.
    pub fn bytes(&self) -> usize {
        self.touches.bytes()
    }
}

impl Core {
    /// A content is used: published, computed again, or looked up. Shards use it together: the first one's use counts.
    pub(crate) fn touch_content(&mut self, hash: u128, shard: u16) {
        if shard == 0 && self.has_nvme() && !self.admits_everything() {
            self.counters.second_touches += u64::from(self.wear.touches.touch(hash) == 1);
        }
    }

    /// Return true if every published block is written, so that earlier uses do not matter.
    fn admits_everything(&self) -> bool {
        self.cfg.policy.nvme_admission == Admission::All && self.wear.bucket.per_day() == 0
    }

    /// Whether a block may be written to NVMe, with all that it stands on: then that is on its way, and its bytes are set aside.
    pub(crate) fn admit_run(&mut self, b: BlockId, why: Why) -> bool {
        if !self.has_nvme() {
            return false;
        }
        let admitted = self.try_admit_run(b, why);
        if !admitted {
            self.blocks[b].refused = true;
            self.settle_hosts_of(b);
        }
        admitted
    }

    fn try_admit_run(&mut self, b: BlockId, why: Why) -> bool {
        let c = self.blocks[b].content;
        let asked = matches!(why, Why::Published(level) if level > Level::Published);
        self.wear.bucket.advance(self.now);
        self.blocks[b].over_budget = false;
        let uses = self.uses_before(b, asked);
        // With more bytes a day the block would be written.
        let wanted = uses.is_none_or(|uses| uses > 0) || self.cfg.policy.nvme_admission == Admission::All;
        if !self.is_worthy(b, uses) {
            self.blocks[b].over_budget = wanted;
            self.counters.refused_budget += u64::from(wanted);
            self.counters.refused_unworthy += u64::from(!wanted);
            return false;
        }
        let free = self.wear.bucket.free(self.promised_bytes());
        let (mut blocks, mut bytes) = (0, 0);
        let mut above = c;
        while let Some(count) = self.unkept(above) {
            blocks += u64::from(count.0);
            bytes += count.1;
            if bytes > free || blocks > RUN_MAX && !asked {
                self.blocks[b].over_budget = wanted && bytes > free;
                self.counters.refused_budget += 1;
                return false;
            }
            above = self.index.recs[above as usize].parent;
        }
        self.counters.admitted += blocks;
        let mut next = c;
        while next != above {
            let mut part = self.index.recs[next as usize].head();
            while part != Part::End {
                if let Some(p) = part.block().filter(|&p| self.is_unkept(p)) {
                    self.begin_keep(p);
                }
                part = self.part_after(part);
            }
            next = self.index.recs[next as usize].parent;
        }
        true
    }

    /// How often a block's content was used before; nothing if that does not matter: everything is written, or another part of the
    /// content is, and the rest follows it.
    fn uses_before(&self, b: BlockId, asked: bool) -> Option<u8> {
        let c = self.blocks[b].content;
        if self.admits_everything() || self.parts(c).any(|part| !part.block().is_some_and(|p| self.is_unkept(p))) {
            return None;
        }
        // The use that this is, is counted already; who asks for the block to be stored will look it up.
        let before = self.wear.touches.of(self.index.recs[c as usize].hash()).saturating_sub(1);
        Some(before + u8::from(asked))
    }

    /// By the rule.
    fn is_worthy(&self, b: BlockId, uses_before: Option<u8>) -> bool {
        let tokens = u64::from(self.blocks[b].depth) * self.geo.page_tokens;
        let fill = || self.wear.bucket.fill(self.promised_bytes());
        uses_before.is_none_or(|uses| worthy(self.cfg.policy.nvme_admission, uses, tokens, fill()))
    }

    /// Counts the blocks lost with a content that is about to be dropped: refused by the write budget, or not written yet.
    pub(crate) fn count_lost(&mut self, c: u32) {
        let on_its_way = |b: BlockId| !matches!(self.blocks[b].keep, Keep::No | Keep::Erase) && !self.is_recorded(b);
        let unwritten = self.parts(c).filter_map(Part::block).filter(|&b| on_its_way(b)).count() as u64;
        self.counters.unwritten_drops += unwritten;
        self.counters.unwritten_drop_bytes += unwritten * self.slot_bytes;
        let lost = self.parts(c).filter_map(Part::block).filter(|&b| self.blocks[b].over_budget).count() as u64;
        self.counters.over_budget_drops += lost;
        self.counters.over_budget_drop_bytes += lost * self.slot_bytes;
    }

    /// Blocks of a content that are not on their way to NVMe, and what they would write. `None` if all are, or there is none.
    fn unkept(&self, c: u32) -> Option<(u32, u64)> {
        if c == NONE {
            return None;
        }
        let unkept = self.parts(c).filter_map(Part::block).filter(|&p| self.is_unkept(p));
        let (mut blocks, mut bytes) = (0, 0);
        for p in unkept {
            blocks += 1;
            bytes += if self.is_unwritten(p) { self.slot_bytes } else { 0 };
        }
        (blocks > 0).then_some((blocks, bytes))
    }

    /// Whether a block of a content is neither recorded on NVMe nor on its way there.
    fn is_unkept(&self, b: BlockId) -> bool {
        matches!(self.blocks[b].keep, Keep::No | Keep::Erase) && !self.is_recorded(b)
    }

    /// Whether any of its pages is not on NVMe.
    fn is_unwritten(&self, b: BlockId) -> bool {
        let missing = |page: u32| !self.pages[page as usize].on_disk() && !self.pages[page as usize].retired();
        self.pages_of(b).any(missing)
    }

    /// Whether a block's pages are on NVMe alone, by its first and its last.
    pub(crate) fn is_far(&self, b: BlockId) -> bool {
        let pages = self.pages_of(b);
        let far = |page: u32| {
            let p = &self.pages[page as usize];
            p.on_disk() && p.host == NONE && p.frame == NONE
        };
        far(pages.start) || far(pages.end - 1)
    }

    /// Sets aside what a block that is on its way to NVMe will write.
    pub(crate) fn set_aside(&mut self, b: BlockId) {
        self.blocks.set_promised(b, self.is_unwritten(b));
    }

    pub(crate) fn promised_bytes(&self) -> u64 {
        u64::from(self.blocks.promised) * self.slot_bytes
    }

    /// A block is being written: it costs that, whether it had been set aside or not.
    pub(crate) fn charge_write(&mut self, b: BlockId, bytes: u64) {
        match self.blocks[b].promised {
            true => self.counters.nvme_bytes_admitted += bytes,
            false => self.counters.nvme_bytes_forced += bytes,
        }
        self.blocks.set_promised(b, false);
        self.wear.bucket.advance(self.now);
        self.wear.bucket.charge(bytes);
    }

    /// Drops the least recently used of the contents that were refused and that nobody refers to, until a host frame of the class
    /// is free: it is not written for want of host memory, as what runs is. False when there is none near but what stores under way
    /// stand on.
    pub(crate) fn drop_spare(&mut self, class: u8) -> bool {
        while self.host.free_frames(class) == 0 {
            let Some(c) = self.first_spare(class) else { return false };
            self.counters.refused_dropped += 1;
            self.drop_below(c);
        }
        true
    }

    fn first_spare(&self, class: u8) -> Option<u32> {
        let spare = self.host.classes[usize::from(class)].spare.iter(&self.host.recs);
        let contents = spare.map(|at| self.blocks[self.geo.block_of(self.host.recs[at as usize].page)].content);
        contents.take(NEAR).find(|&c| !self.is_stood_on(self.index.leaf_of(c)))
    }

    /// How the space stands with the bytes that it may write to NVMe.
    #[must_use]
    pub fn endurance(&self) -> Endurance {
        let (bucket, promised_bytes) = (&self.wear.bucket, self.promised_bytes());
        Endurance {
            admission: self.cfg.policy.nvme_admission,
            bytes_per_day: bucket.per_day(),
            left_bytes: if bucket.per_day() == 0 { 0 } else { bucket.free(promised_bytes) },
            promised_bytes,
            debt_bytes: bucket.debt(),
        }
    }
}
