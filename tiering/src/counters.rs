//! What the core counts. Plain numbers since construction; the shell reads and exports them.

use serde::{Deserialize, Serialize};

/// Why a page moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// A lane waits for it.
    Demand = 0,
    /// A step that was announced will read it.
    Step = 1,
    /// It is expected to be read: the next step of a scan.
    Prefetch = 2,
    /// A request waits for it (acquire, resume).
    Request = 3,
    /// Cleaning: written down so that it can be evicted later.
    Clean = 4,
    /// A sequence leaves tier 0.
    Park = 5,
    /// Copy on write, fork.
    Copy = 6,
    /// Tier 0 shrinks.
    Resize = 7,
    /// Attention is predicted to read it.
    Attention = 8,
    /// An engine said that it will need it: a queued sequence, a parked one that is due, advice.
    Intent = 9,
}

/// Number of [`Reason`]s.
pub const REASONS: usize = 10;

/// Pages and bytes that moved over one edge, by [`Reason`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edge {
    /// Pages whose transfer succeeded.
    pub pages: [u64; REASONS],
    /// Their bytes.
    pub bytes: [u64; REASONS],
    /// Transfers that failed, fell short or were cancelled.
    pub failed: u64,
}

impl Edge {
    pub(crate) fn add(&mut self, reason: Reason, bytes: u32) {
        self.pages[reason as usize] += 1;
        self.bytes[reason as usize] += u64::from(bytes);
    }

    /// Bytes over all reasons.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Pages over all reasons.
    #[must_use]
    pub fn total_pages(&self) -> u64 {
        self.pages.iter().sum()
    }
}

/// Everything that a space counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Requests by fate.
    pub requests: u64,
    /// Requests that completed with a status other than `Ok`.
    pub requests_failed: u64,
    /// Requests that passed their deadline.
    pub timed_out: u64,
    /// Requests cancelled.
    pub canceled: u64,
    /// Times a page's residency changed (it entered or left tier 0, a host copy became valid or was dropped).
    pub transitions: u64,
    /// Pages that an announced step needed and that were in tier 0.
    pub found_tier0: u64,
    /// Pages that an announced step needed and that were only in host.
    pub found_host: u64,
    /// Pages that an announced step needed and that were only on NVMe.
    pub found_nvme: u64,
    /// Pages that an announced step needed and that existed nowhere.
    pub found_nowhere: u64,
    /// Host to tier 0.
    pub host_to_tier0: Edge,
    /// Tier 0 to host.
    pub tier0_to_host: Edge,
    /// NVMe to host.
    pub nvme_to_host: Edge,
    /// Host to NVMe.
    pub host_to_nvme: Edge,
    /// Within tier 0 (fork, copy on write).
    pub tier0_to_tier0: Edge,
    /// Pages that lost their tier-0 frame to another page.
    pub evictions: u64,
    /// Host copies dropped because the page is in tier 0 and host was short (exclusive tiers).
    pub exclusive_drops: u64,
    /// Pages on NVMe that lost their host frame to another page.
    pub host_evictions: u64,
    /// Published blocks dropped because NVMe had no slot left.
    pub nvme_drops: u64,
    /// Transfers between host and NVMe that the device failed.
    pub io_failed: u64,
    /// Pages read from NVMe that were not what had been written.
    pub checksum_failed: u64,
    /// Host copies that were not what had been stored there, and were dropped.
    pub host_corrupt: u64,
    /// Pages whose read from NVMe failed and was tried again.
    pub io_retries: u64,
    /// Pages read from NVMe ahead of use and used.
    pub prefetch_used: u64,
    /// Pages whose read ahead of use was still under way when somebody waited for them.
    pub prefetch_late: u64,
    /// Pages read from NVMe ahead of use and evicted unused.
    pub prefetch_wasted: u64,
    /// Published blocks dropped from the last tier.
    pub cache_drops: u64,
    /// Of those, dropped because nobody had used them for so long.
    pub expired: u64,
    /// Pages retired because they left their window.
    pub retired: u64,
    /// Page faults of lanes.
    pub faults: u64,
    /// Faults whose page was resident when they arrived.
    pub faults_resident: u64,
    /// Requests that had to wait for frames or capacity.
    pub stalls: u64,
    /// Jobs sent.
    pub jobs: u64,
    /// Jobs refused with `Busy` and replanned.
    pub jobs_busy: u64,
    /// Jobs that failed and were tried again.
    pub jobs_retried: u64,
    /// Jobs cancelled by the core.
    pub jobs_canceled: u64,
    /// Host frames in quarantine now.
    pub quarantined: u64,
    /// Host frames ever put in quarantine.
    pub quarantined_total: u64,
    /// Entries of score areas that were taken in.
    pub scores: u64,
    /// Entries that cannot be true: no such sequence, page or plane, shares that are none.
    pub scores_refused: u64,
    /// Entries about a step that has read its plane already, or that was told of before.
    pub scores_late: u64,
    /// `approx` sequences that are read like `exact` ones since too many are planned for.
    pub untracked: u64,
    /// Loads into tier 0 of pages that attention is predicted to read.
    pub attention_loads: u64,
    /// Of those, read with a share that kept them.
    pub attention_used: u64,
    /// Of those, under way when their step read the plane.
    pub attention_late: u64,
    /// Of those, of no use to two steps, or gone before.
    pub attention_wasted: u64,
    /// Bytes of those.
    pub attention_wasted_bytes: u64,
    /// Of those, called off.
    pub attention_canceled: u64,
    /// Pages that attention is predicted to read and that were not loaded: no bandwidth in time, or no frame.
    pub attention_held: u64,
    /// Loads into tier 0 for sequences that are parked and expected back.
    pub intent_loads: u64,
    /// Of those, there when their sequence was resumed.
    pub intent_used: u64,
    /// Pages that such a sequence needed and that were on their way to host or tier 0 when it was resumed.
    pub intent_late: u64,
    /// Pages that it needed and that were not.
    pub intent_missed: u64,
    /// Pages loaded for it that left tier 0 before it was resumed.
    pub intent_wasted: u64,
    /// Times that such loads found no frame that may be taken, and waited.
    pub intent_held: u64,
    /// Times that a session's tier 0 grew.
    pub tier0_grown: u64,
    /// Times that it shrank.
    pub tier0_shrunk: u64,
    /// Shrinks that were refused or not done in time.
    pub tier0_shrinks_failed: u64,
    /// Pages evicted because a session's tier 0 shrank.
    pub resize_evictions: u64,
    /// Pages given another tier-0 frame because theirs had to go.
    pub resize_moves: u64,
    /// Pages that a window came to show where they are in host: nothing was copied.
    pub shown_in_place: u64,
    /// Windows that gave way since host frames were short.
    pub windows_shed: u64,
    /// Leases that ended by themselves, at their time.
    pub leases_expired: u64,
    /// Sessions lost.
    pub sessions_lost: u64,
    /// Pages that existed nowhere else and are lost.
    pub pages_lost: u64,
    /// Blocks published.
    pub published: u64,
    /// Blocks that came to be recorded on NVMe, with all that they stand on: they survive the daemon.
    pub stored: u64,
    /// Blocks whose publish ended as durable: they survive a power cut.
    pub durable: u64,
    /// Records that the index logs took.
    pub records: u64,
    /// Records that they did not take.
    pub records_failed: u64,
    /// Slots that they know to hold nothing again.
    pub erases: u64,
    /// Erasures that they did not take.
    pub erases_failed: u64,
    /// Flushes that ended.
    pub flushes: u64,
    /// Of those, that failed.
    pub flushes_failed: u64,
    /// Blocks of earlier runs that can be found again.
    pub restored: u64,
    /// Blocks of earlier runs that could not be taken: no room, or what they stand on is missing.
    pub restore_refused: u64,
    /// Contents dropped because a page of them on NVMe could not be read back, and what stood on them.
    pub contents_corrupt: u64,
    /// Contents dropped because their disk went out of service, but for what stood on them.
    pub contents_gone: u64,
    /// Slabs whose disk went out of service.
    pub disks_gone: u64,
    /// Blocks of contents that nobody refers to that gave their ids up, being on NVMe.
    pub cooled: u64,
    /// Contents only on NVMe that were mapped and got a block.
    pub heated: u64,
    /// Blocks attached by `map`.
    pub mapped: u64,
    /// Of those, blocks whose pages were on NVMe alone.
    pub nvme_hits: u64,
    /// Blocks admitted to NVMe.
    pub admitted: u64,
    /// Looks at a published block that was not worth its bytes by the rule of admission.
    pub refused_unworthy: u64,
    /// Looks at a published block for whose run, if worthy, there were not enough bytes a day left.
    pub refused_budget: u64,
    /// Blocks dropped from host memory that would have gone to NVMe had they been admitted.
    pub refused_dropped: u64,
    /// Blocks dropped from the cache without having been written that more bytes a day would have paid for.
    pub over_budget_drops: u64,
    /// Bytes of those blocks.
    pub over_budget_drop_bytes: u64,
    /// Blocks dropped from the cache on their way to NVMe, before they were recorded there.
    pub unwritten_drops: u64,
    /// Bytes of those blocks.
    pub unwritten_drop_bytes: u64,
    /// Contents that were used a second time, as far as that is remembered.
    pub second_touches: u64,
    /// Bytes written to NVMe that admission had set aside.
    pub nvme_bytes_admitted: u64,
    /// Bytes written to NVMe because host memory was short, whatever the bytes a day.
    pub nvme_bytes_forced: u64,
    /// Blocks that took a slot on another disk than their prefix run.
    pub runs_spilled: u64,
}
