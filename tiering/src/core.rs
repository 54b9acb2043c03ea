//! The core of one space: its entry points. What they do is in the layers, from `sessions` at the bottom to `requests` at the top.

use crate::actions::ActionBuf;
use crate::api::{DiskSlot, Event, SpaceConfig};
use crate::config::Class;
use crate::counters::{Counters, Hits};
use crate::disk::BudgetReport;
use crate::error::Error;
use crate::index::{Absence, EntryStatus};
use crate::requests::{Occupancy, Requests};
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
        self.requests.counters.quarantined = self.requests.host.quarantined();
        result
    }

    /// Continue with work that waits for buffer room or job slots. Call it while [`Core::has_output`] returns true.
    pub fn poll(&mut self, now_us: u64, buf: &mut ActionBuf) {
        self.requests.advance(now_us);
        self.requests.issue(buf);
        self.requests.counters.quarantined = self.requests.host.quarantined();
    }

    /// Return whether `poll` with buffer room would make progress now.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.requests.actions_out.is_empty()
            || !self.requests.woken.is_empty()
            || self.requests.disk.is_woken()
            || self.requests.host.drain_at().is_some_and(|at| at <= self.requests.now)
    }

    /// Return the latest time for the next [`Event::Tick`], in microseconds on the clock of `now_us`.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let ops = self.requests.deadlines.first().map(|d| d.0);
        let expires = self.requests.index.expires_us().map(|us| us.max(self.requests.now));
        [ops, self.requests.timer, expires, self.requests.late_due(), self.requests.disk.decision_due_us()].into_iter().flatten().min()
    }

    /// Return the counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.requests.counters
    }

    /// Return a hash of all actions so far.
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.requests.trace
    }

    /// Return the size classes, in class order.
    #[must_use]
    pub fn classes(&self) -> &[Class] {
        &self.requests.geo.classes
    }

    /// Return the committed tokens of a sequence.
    #[must_use]
    pub fn seq_tokens(&self, session: crate::api::SessionId, seq: crate::api::SeqId) -> Option<u64> {
        self.requests.sessions.get(usize::from(session))?.seqs.get(seq as usize).filter(|q| q.live).map(|q| q.tokens)
    }

    /// Return whether the space is unused: no session, no block, no cache entry, no slot awaiting erasure. Host memory that is
    /// still granted can be released with the space.
    #[must_use]
    pub fn is_vacant(&self) -> bool {
        self.requests.sessions.iter().all(|s| s.life == crate::sessions::Life::Empty) && self.is_blank()
    }

    /// Return whether the space has no block, no cache entry and no slot awaiting erasure.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.requests.blocks.free.len as usize == self.requests.blocks.recs.len() && self.requests.index.live_len() == 0 && self.requests.disk.is_log_idle()
    }

    /// Return the configuration.
    #[must_use]
    pub fn config(&self) -> &SpaceConfig {
        &self.requests.cfg
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
}
