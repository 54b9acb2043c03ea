//! The core of one space: its entry points. What they do is in the layers, from `sessions` at the bottom to `requests` at the top.

use crate::actions::ActionBuf;
use crate::api::{DiskSlot, Event, SeqId, SessionId, SpaceConfig};
use crate::config::Class;
use crate::counters::{Counters, Hits};
use crate::error::Error;
use crate::index::EntryStatus;
use crate::requests::{Occupancy, Requests};
use crate::sessions::Life;
use crate::tables::disk::BudgetReport;
use crate::tables::index::Absence;
use crate::tables::index::evict::Advice;
use crate::trace::Trace;
use serde::{Deserialize, Serialize};

/// A space: one model of one domain, with all its sessions, blocks and host frames.
///
/// Deterministic: the same configuration, the same calls and the same room in their buffers give the same actions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Core {
    requests: Requests,
}

impl Core {
    /// Create a space without sessions or memory. Allocates the tables of blocks, pages and cache entries.
    ///
    /// # Errors
    /// [`Error::Config`] names the rule that the configuration violates.
    pub fn new(cfg: SpaceConfig) -> Result<Core, Error> {
        Ok(Core { requests: Requests::new(cfg)? })
    }

    /// Process one event. Write the resulting actions to `buf` as far as they fit; the rest is queued inside, within bounds, for
    /// [`Core::poll`]. Nothing is lost if `buf` has no room at all.
    ///
    /// # Errors
    /// The event violates the protocol between daemon and core, or shows that a session's peer violated its own ([`Error::Agent`],
    /// [`Error::Overrun`]: the daemon ends that session). A malformed request is not an error here: it completes with a status.
    pub fn handle(&mut self, now_us: u64, event: Event<'_>, buf: &mut ActionBuf) -> Result<(), Error> {
        self.requests.advance(now_us);
        let result = self.requests.dispatch(event);
        self.requests.issue(buf);
        result
    }

    /// Continue with work that waits for buffer room or job slots. Call it while [`Core::has_output`] returns true.
    pub fn poll(&mut self, now_us: u64, buf: &mut ActionBuf) {
        self.requests.advance(now_us);
        self.requests.issue(buf);
    }

    /// Return whether `poll` with buffer room would make progress now.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.requests.has_waiting()
            || self.requests.disk.is_woken()
            || self.requests.host.drain_at().is_some_and(|at| at <= self.requests.now())
    }

    /// Return the latest time for the next [`Event::Tick`], in microseconds on the clock of `now_us`.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let expires = self.requests.index.expires_us().map(|us| us.max(self.requests.now()));
        [self.requests.timer_us(), expires, self.requests.late_due(), self.requests.disk.decision_due_us()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Return the counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.requests.counters
    }

    /// Return a hash of all actions so far.
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.requests.trace()
    }

    /// Return the size classes, in class order.
    #[must_use]
    pub fn classes(&self) -> &[Class] {
        &self.requests.geo().classes
    }

    /// Return the committed tokens of a sequence.
    #[must_use]
    pub fn seq_tokens(&self, session: SessionId, seq: SeqId) -> Option<u64> {
        self.requests.is_live(session).then(|| self.requests.live_seq(session, seq))?.map(|q| q.tokens)
    }

    /// Return whether the space is unused: no session, no block, no cache entry, no slot awaiting erasure. Host memory that is
    /// still granted can be released with the space.
    #[must_use]
    pub fn is_vacant(&self) -> bool {
        self.requests.sessions().iter().all(|s| s.life == Life::Empty) && self.is_blank()
    }

    /// Return whether the space has no block, no cache entry and no slot awaiting erasure.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.requests.blocks().free.len as usize == self.requests.blocks().recs.len()
            && self.requests.index.live_len() == 0
            && self.requests.disk.is_log_idle()
    }

    /// Return the configuration.
    #[must_use]
    pub fn config(&self) -> &SpaceConfig {
        self.requests.cfg()
    }

    /// Return the bytes of the tables that an index-only entry needs (index, NVMe slots, use counts), from their allocated
    /// capacities.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        self.requests.index.table_bytes() + self.requests.disk.index_bytes()
    }

    /// Return the bytes of all tables, from their allocated capacities.
    #[must_use]
    pub fn metadata_bytes(&self) -> usize {
        self.requests.bytes()
    }

    /// Return why lookups do not find the block with this hash; `None` if they find it. Takes constant time. Changes nothing, and no
    /// decision of the core depends on it.
    #[must_use]
    pub fn absence(&self, hash: u128) -> Option<Absence> {
        self.requests.absence(hash)
    }

    /// Return the time since which no block that left, or was not stored, has been forgotten, in microseconds on the clock of `now_us`.
    #[must_use]
    pub fn absences_known_since_us(&self) -> u64 {
        self.requests.absences_known_since_us()
    }

    /// Return what is known of a cached block.
    #[must_use]
    pub fn entry(&self, hash: u128) -> Option<EntryStatus> {
        self.requests.entry(hash)
    }

    /// Return the figures of a session since it attached; `None` if there is no such session.
    #[must_use]
    pub fn hits(&self, session: u16) -> Option<Hits> {
        self.requests.hits(session)
    }

    /// Return the occupancy of the space. Takes time in proportion to the sessions and to the published pages that are to be
    /// stored.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        self.requests.occupancy()
    }

    /// Return the maximum number of cached blocks in pinned prefixes.
    #[must_use]
    pub fn pinned_max(&self) -> u32 {
        self.requests.pinned_max()
    }

    /// Return the estimates of the space's ghost caches for other sizes and policies.
    #[must_use]
    pub fn eviction_advice(&self) -> Advice {
        self.requests.eviction_advice()
    }

    /// Return the state of the space's write budget.
    #[must_use]
    pub fn budget_report(&self) -> BudgetReport {
        self.requests.budget_report()
    }

    /// Return whether a decision on refused blocks is due now ([`Event::Tick`](crate::api::Event::Tick)).
    #[must_use]
    pub fn is_admitting(&self) -> bool {
        self.requests.is_admitting()
    }

    /// Return true while a slab is being emptied for another space.
    #[must_use]
    pub fn is_reclaiming(&self) -> bool {
        self.requests.is_reclaiming()
    }

    /// Call `each` for every block with a valid record on NVMe: its location, its shard, and the words of its record as in
    /// [`Action::Record`](crate::api::Action::Record). For a space that ends; takes time in proportion to the index.
    pub fn each_recorded(&self, each: impl FnMut(DiskSlot, u16, &[u32])) {
        self.requests.each_recorded(each);
    }

    /// Return the highest generation that slots of an NVMe slab have had.
    #[must_use]
    pub fn generation_of(&self, slab: u32) -> u32 {
        self.requests.generation_of(slab)
    }

    /// Check that all tables agree. Each frame has at most one owner and is in one list. Reference counts and in-flight counts
    /// match their holders. Free lists are disjoint, and sums add up.
    ///
    /// # Errors
    /// A description of the first violated rule and its location.
    pub fn check(&self) -> Result<(), String> {
        self.requests.check()
    }
}
