//! Counters of the core, since construction. The daemon reads and exports them.

use kvtide_types::Cause;
use serde::{Deserialize, Serialize};

/// Why a page moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// A lane waits for it.
    Demand = 0,
    /// An announced step will read it.
    Step = 1,
    /// The next step of a scan is expected to read it.
    Prefetch = 2,
    /// A request waits for it (acquire, resume).
    Request = 3,
    /// Write-back, so that the page can be evicted later.
    Clean = 4,
    /// Its sequence leaves tier 0.
    Park = 5,
    /// Copy on write, or fork.
    Copy = 6,
    /// Tier 0 shrinks.
    Resize = 7,
    /// Attention is predicted to read it.
    Attention = 8,
    /// A queued or parked sequence will need it, or an engine advised it.
    Scheduled = 9,
}

/// Number of [`Reason`]s.
pub const REASONS: usize = 10;

/// Pages and bytes moved between two tiers, by [`Reason`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Edge {
    /// Pages moved successfully.
    pub pages: [u64; REASONS],
    /// Their bytes.
    pub bytes: [u64; REASONS],
    /// Transfers that failed, moved too few bytes or were canceled.
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

/// Tokens by the tier in which they were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ByTier {
    /// In tier 0 of the session.
    pub tier0: u64,
    /// In host memory, or in tier 0 of another session.
    pub host: u64,
    /// On NVMe only.
    pub nvme: u64,
}

impl ByTier {
    /// Return their sum.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.tier0 + self.host + self.nvme
    }
}

/// What the prefix cache gave to engines, of both APIs. Counted once for all shards: by the sessions of shard 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hits {
    /// Tokens of the prefixes that engines asked for, in full blocks.
    pub asked_tokens: u64,
    /// Of those, cached.
    pub found_tokens: u64,
    /// Lookups that did not find all blocks, by the cause of the first missing one that they named ([`Cause::ALL`]).
    #[serde(with = "by_cause")]
    pub missed: [u64; Cause::ALL.len()],
    /// Cached tokens that engines got: copied into their memory, or attached to a sequence.
    pub loaded_tokens: ByTier,
    /// Estimated time to compute the loaded tokens, by `eviction.recompute_tokens_per_s` and their position in the prompt.
    pub recompute_us: u64,
    /// Time to load them: of copies as measured, of attached blocks as estimated from the measured rates.
    pub load_us: u64,
}

/// A list of any length, so that releases with more or fewer causes read each other's status.
mod by_cause {
    use kvtide_types::Cause;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(counts: &[u64; Cause::ALL.len()], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(counts)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[u64; Cause::ALL.len()], D::Error> {
        let read = Vec::<u64>::deserialize(from)?;
        let mut counts = [0; Cause::ALL.len()];
        counts.iter_mut().zip(read).for_each(|(count, read)| *count = read);
        Ok(counts)
    }
}

impl Hits {
    /// Add the figures of another session or space.
    pub fn add(&mut self, more: &Hits) {
        let Hits {
            asked_tokens,
            found_tokens,
            missed,
            loaded_tokens: ByTier { tier0, host, nvme },
            recompute_us,
            load_us,
        } = *more;
        // Engines say how many blocks they ask for: a hostile one cannot make a sum overflow.
        self.asked_tokens = self.asked_tokens.saturating_add(asked_tokens);
        self.found_tokens = self.found_tokens.saturating_add(found_tokens);
        self.missed.iter_mut().zip(missed).for_each(|(all, more)| *all += more);
        self.loaded_tokens.tier0 += tier0;
        self.loaded_tokens.host += host;
        self.loaded_tokens.nvme += nvme;
        self.recompute_us += recompute_us;
        self.load_us += load_us;
    }

    /// Return the time that the cache saved, in microseconds; negative if loading took longer than computing.
    #[must_use]
    pub fn saved_us(&self) -> i64 {
        self.recompute_us.cast_signed() - self.load_us.cast_signed()
    }
}

/// All counters of a space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Requests received.
    pub requests: u64,
    /// Requests that completed with a status other than `Ok`.
    pub requests_failed: u64,
    /// Requests that missed their deadline.
    pub timed_out: u64,
    /// Requests canceled.
    pub canceled: u64,
    /// Residency changes of pages: a page entered or left tier 0, or its host copy became valid or was dropped.
    pub transitions: u64,
    /// Pages needed by an announced step and found in tier 0.
    pub found_tier0: u64,
    /// Pages needed by an announced step and found in host only.
    pub found_host: u64,
    /// Pages needed by an announced step and found on NVMe only.
    pub found_nvme: u64,
    /// Pages needed by an announced step and found in none of these tiers.
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
    /// Pages evicted from tier 0 to make room for another page.
    pub evictions: u64,
    /// Host copies dropped for lack of host memory while the page was in tier 0 (exclusive tiers).
    pub exclusive_drops: u64,
    /// Pages evicted from host to make room; NVMe has a copy.
    pub host_evictions: u64,
    /// Published blocks dropped because NVMe had no free slot.
    pub nvme_drops: u64,
    /// Transfers between host and NVMe that failed at the device.
    pub io_failed: u64,
    /// Pages read from NVMe with a checksum mismatch.
    pub checksum_failed: u64,
    /// Host copies dropped because their bytes differed from the stored ones.
    pub host_corrupt: u64,
    /// Pages with a failed read from NVMe that was retried.
    pub io_retries: u64,
    /// Pages read ahead from NVMe and used.
    pub prefetch_used: u64,
    /// Pages with a read-ahead still in flight when a request waited for them.
    pub prefetch_late: u64,
    /// Pages read ahead from NVMe and evicted unused.
    pub prefetch_wasted: u64,
    /// Published blocks dropped from the last tier.
    pub cache_drops: u64,
    /// Of those, dropped because they reached the maximum age.
    pub expired: u64,
    /// Cached blocks evicted by an operator.
    pub evicted_by_hand: u64,
    /// Pages of window and state planes discarded because no later step reads them.
    pub pages_discarded: u64,
    /// Page faults of lanes.
    pub faults: u64,
    /// Faults for pages that were already resident on arrival.
    pub faults_resident: u64,
    /// Requests that waited for a frame or for capacity.
    pub stalls: u64,
    /// Jobs sent.
    pub jobs: u64,
    /// Jobs that ended with `Busy` and were planned again.
    pub jobs_busy: u64,
    /// Jobs that failed and were retried.
    pub jobs_retried: u64,
    /// Jobs canceled by the core.
    pub jobs_canceled: u64,
    /// Host frames in quarantine now.
    pub quarantined: u64,
    /// Host frames put in quarantine.
    pub quarantined_total: u64,
    /// Score entries accepted.
    pub scores: u64,
    /// Invalid score entries: unknown sequence, page or plane, or an invalid share.
    pub scores_refused: u64,
    /// Score entries ignored because their step had already read the plane, or because they repeat an earlier entry.
    pub scores_late: u64,
    /// `approx` sequences read like `exact` ones because the limit of tracked sequences is reached.
    pub untracked: u64,
    /// Pages loaded into tier 0 because attention is predicted to read them.
    pub attention_loads: u64,
    /// Of those, read with a share large enough to keep them.
    pub attention_used: u64,
    /// Of those, still in flight when their step read the plane.
    pub attention_late: u64,
    /// Of those, not used by two steps, or evicted earlier.
    pub attention_wasted: u64,
    /// Bytes of the wasted loads.
    pub attention_wasted_bytes: u64,
    /// Of those, canceled in time.
    pub attention_canceled: u64,
    /// Pages predicted to be read and not loaded, for lack of bandwidth or of a frame.
    pub attention_held: u64,
    /// Pages loaded into tier 0 for queued sequences: parked with a due time.
    pub scheduled_loads: u64,
    /// Of those, in tier 0 when their sequence was resumed.
    pub scheduled_used: u64,
    /// Pages needed by a queued sequence that were in flight to host or tier 0 when it was resumed.
    pub scheduled_late: u64,
    /// Pages needed by a queued sequence that were neither loaded nor in flight when it was resumed.
    pub scheduled_missed: u64,
    /// Pages loaded for a queued sequence that left tier 0 before it was resumed.
    pub scheduled_wasted: u64,
    /// Times that such a load waited because no frame could be taken.
    pub scheduled_held: u64,
    /// Times that a session's tier 0 grew.
    pub tier0_grown: u64,
    /// Times that a session's tier 0 shrank.
    pub tier0_shrunk: u64,
    /// Shrinks that were rejected or missed their deadline.
    pub tier0_shrinks_failed: u64,
    /// Pages evicted because a session's tier 0 shrank.
    pub resize_evictions: u64,
    /// Pages moved to another tier-0 frame because theirs was removed.
    pub resize_moves: u64,
    /// Pages read in place in host memory, through mapped frames.
    pub shown_in_place: u64,
    /// Pages unmapped from mapped frames because host frames were short.
    pub pages_unmapped: u64,
    /// Leases that expired.
    pub leases_expired: u64,
    /// Sessions lost.
    pub sessions_lost: u64,
    /// Pages lost: no other copy existed.
    pub pages_lost: u64,
    /// Blocks copied from the cache into engines' own memory.
    pub blocks_loaded: u64,
    /// Tokens asked for, found and loaded, and the time that this saved.
    pub hits: Hits,
    /// Blocks published.
    pub published: u64,
    /// Blocks stored: recorded on NVMe together with all ancestors, so that they survive the end of the daemon.
    pub stored: u64,
    /// Blocks with a publish that ended as durable: they survive a power cut.
    pub durable: u64,
    /// Blocks recorded in index logs.
    pub records: u64,
    /// Records that failed.
    pub records_failed: u64,
    /// Slots erased in index logs.
    pub erases: u64,
    /// Erasures that failed.
    pub erases_failed: u64,
    /// Flushes that ended.
    pub flushes: u64,
    /// Of those, that failed.
    pub flushes_failed: u64,
    /// Recovered blocks that can be found again.
    pub restored: u64,
    /// Recovered blocks that were refused: no room, or an ancestor is missing.
    pub restore_refused: u64,
    /// Cached blocks dropped because a page on NVMe could not be read back, and their descendants.
    pub entries_corrupt: u64,
    /// Cached blocks dropped because their disk went out of service, without their descendants.
    pub entries_gone: u64,
    /// Slabs on disks that went out of service.
    pub disks_gone: u64,
    /// Blocks of unreferenced cached blocks on NVMe that became index-only and released their block ids.
    pub blocks_dropped: u64,
    /// Index-only cached blocks that were attached and got a block id again.
    pub blocks_given: u64,
    /// Blocks attached by `AttachPrefix` or a lease.
    pub blocks_attached: u64,
    /// Of those, blocks with pages only on NVMe.
    pub nvme_hits: u64,
    /// Blocks admitted to NVMe.
    pub admitted: u64,
    /// Admission decisions against a block that was used too rarely for its bytes.
    pub refused_unworthy: u64,
    /// Admission decisions against a block for lack of write budget; the block may have been worth its bytes.
    pub refused_budget: u64,
    /// Blocks dropped from host memory without being written because admission had rejected them.
    pub refused_dropped: u64,
    /// Blocks dropped from the cache unwritten because of `bytes_per_day`.
    pub over_budget_drops: u64,
    /// Bytes of those blocks.
    pub over_budget_drop_bytes: u64,
    /// Blocks dropped from the cache before they were written and recorded, because stores are faster than the disks.
    pub unwritten_drops: u64,
    /// Bytes of those blocks.
    pub unwritten_drop_bytes: u64,
    /// Cached blocks used a second time, within the memory of the frequency sketch.
    pub second_uses: u64,
    /// Bytes written to NVMe that admission had reserved.
    pub nvme_bytes_admitted: u64,
    /// Bytes written to NVMe because host memory was short, without a reservation.
    pub nvme_bytes_forced: u64,
    /// Blocks written to another disk than the rest of their prefix chain.
    pub chains_overflowed: u64,
}
