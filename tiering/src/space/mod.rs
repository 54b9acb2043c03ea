//! The core of one space: its tables, its entry points, and the bookkeeping that every operation shares.
//!
//! - `dispatch`: route events by kind and by request
//! - `issue`: issue work while buffers have room; the rest waits in bounded queues
//! - `emit`: turn completions and jobs into actions
//! - `frames`: which tier-0 frame shows which page, and the frame lists
//! - `blocks`: references, release, and the return of block ids to the free list
//! - `entries`: shard copies of cache entries, and removal from the index
//! - `absences`: why blocks are not cached
//! - `index_only`: index-only entries (stored on NVMe, without a block)
//! - `persist`: persist published blocks: write-back to NVMe, then a record in the index log
//! - `log_requests`: requests to the index logs
//! - `restore`: NVMe slots recovered from earlier runs
//! - `gone`: disks that go out of service
//! - `account`: committed memory, and admission of new requests
//! - `host`: host frames for pages, and what is evicted for them
//! - `reclaim`: return of host memory for another space
//! - `slots`: slots on NVMe
//! - `transfers`: transfers between host and NVMe, from start to end
//! - `attach`: attach and detach of sessions
//! - `guarantee`: guarantees of blocks to sessions
//! - `resize`: growth and shrinking of a session's tier 0
//! - `operator`: what operators ask: where a block is, pins, eviction by hand
//! - `done`: completed jobs
//! - `late`: jobs that miss their deadline
//! - `check`: consistency of all tables, for tests and the simulator

mod absences;
mod account;
mod attach;
mod blocks;
mod check;
mod dispatch;
mod done;
mod emit;
mod entries;
mod frames;
mod gone;
mod guarantee;
mod host;
mod index_only;
mod issue;
mod late;
mod log_requests;
mod occupancy;
mod operator;
mod partial;
mod persist;
mod reclaim;
mod resize;
mod restore;
mod slots;
mod transfers;

pub(crate) use absences::why_not_stored;
pub(crate) use account::Admit;
pub(crate) use emit::{NewJob, Who};
pub(crate) use entries::EXAMINED_MAX;
pub(crate) use frames::Pick;
pub(crate) use host::For;
pub use occupancy::{Amount, Fill, Occupancy};
pub use operator::EntryStatus;
pub(crate) use persist::Why;
pub(crate) use transfers::IO_PAGES_MAX;

use crate::actions::ActionBuf;
use crate::api::{Action, Event, SpaceConfig};
use crate::block_api::Feed;
use crate::config::{Class, Geometry};
use crate::counters::Counters;
use crate::disk::DiskTier;
use crate::error::Error;
use crate::host::Host;
use crate::index::Index;
use crate::pages::{Blocks, Page};
use crate::plan::Prefetch;
use crate::requests::Deadlines;
use crate::sequences::{CHUNK, Chunks};
use crate::sessions::Session;
use crate::trace::Trace;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// A space: one model of one domain, with all its sessions, blocks and host frames.
///
/// Deterministic: the same configuration, the same calls and the same room in their buffers give the same actions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Core {
    pub(crate) cfg: SpaceConfig,
    pub(crate) geo: Geometry,
    pub(crate) now: u64,
    pub(crate) pages: Vec<Page>,
    pub(crate) blocks: Blocks,
    pub(crate) host: Host,
    pub(crate) disk: DiskTier,
    pub(crate) index: Index,
    pub(crate) chunks: Chunks,
    pub(crate) sessions: Vec<Session>,
    pub(crate) deadlines: Deadlines,
    /// State learned from attention. Allocated with the first `approx` sequence.
    pub(crate) prefetch: Option<Box<Prefetch>>,
    /// Earliest time at which refused jobs or parked sequences are due, in microseconds.
    pub(crate) timer: Option<u64>,
    /// Earliest time for the next scan for late jobs; `u64::MAX` while no job is in flight.
    pub(crate) late_at: u64,
    /// Actions that found no room in the caller's buffer and belong to no other queue.
    pub(crate) actions_out: VecDeque<Action>,
    /// Sessions with work to issue.
    pub(crate) woken: VecDeque<u16>,
    /// Block ids that a request still lacks while it waits for blocks to be recorded; 0 if no request waits.
    pub(crate) ids_wanted: u32,
    /// A caller waits for a page to be invalidated in the frame that it gave up.
    pub(crate) invalidating_wanted: bool,
    /// Number of announced steps over all sessions.
    pub(crate) clock: u32,
    /// Changes of the cache for relays, while a session follows them.
    pub(crate) feed: Option<Box<Feed>>,
    /// There was a read by hash: where no relay attaches, readers are not searched for one.
    pub(crate) has_read_by_hash: bool,
    pub(crate) counters: Counters,
    pub(crate) trace: Trace,
}

impl Core {
    /// Create a space without sessions or memory. Allocates the tables of blocks, pages and cache entries.
    ///
    /// # Errors
    /// [`Error::Config`] names the rule that the configuration violates.
    pub fn new(cfg: SpaceConfig) -> Result<Core, Error> {
        let geo = Geometry::new(&cfg)?;
        let l = cfg.limits;
        let sessions = usize::from(l.sessions_max);
        // Room for two references to every block, plus one partly filled chunk for each sequence.
        let chunks = (2 * u64::from(l.blocks_max)).div_ceil(u64::from(CHUNK))
            + u64::from(l.seqs_max.min(l.blocks_max)) * u64::from(l.sessions_max);
        if chunks * u64::from(CHUNK) >= u64::from(u32::MAX) {
            return Err(Error::Config {
                what: "blocks_max and seqs_max × sessions_max exceed the range of chunk ids",
                value: chunks,
            });
        }
        Ok(Core {
            now: 0,
            pages: Vec::with_capacity(l.blocks_max as usize * geo.planes.len()),
            blocks: Blocks::new(l.blocks_max),
            host: Host::new(geo.classes.len()),
            disk: DiskTier::new(&cfg, geo.windowed.len()),
            index: Index::new(l.entries_max, cfg.shards, cfg.page_tokens, cfg.policy.eviction, cfg.policy.retention),
            chunks: Chunks::new(chunks as u32),
            sessions: vec![Session::default(); sessions],
            deadlines: Deadlines::default(),
            prefetch: None,
            timer: None,
            late_at: u64::MAX,
            actions_out: VecDeque::with_capacity(sessions * 2 + 64),
            woken: VecDeque::with_capacity(sessions),
            ids_wanted: 0,
            invalidating_wanted: false,
            clock: 0,
            feed: None,
            has_read_by_hash: false,
            counters: Counters::default(),
            trace: Trace::default(),
            geo,
            cfg,
        })
    }

    /// Process one event. Write the resulting actions to `buf` as far as they fit; the rest is queued inside, within bounds, for
    /// [`Core::poll`]. Nothing is lost if `buf` has no room at all.
    ///
    /// # Errors
    /// The event violates the protocol between daemon and core, or shows that a session's peer violated its own ([`Error::Agent`],
    /// [`Error::Overrun`]: the daemon ends that session). A malformed request is not an error here: it completes with a status.
    pub fn handle(&mut self, now_us: u64, event: Event<'_>, buf: &mut ActionBuf) -> Result<(), Error> {
        self.advance(now_us);
        let result = self.dispatch(event);
        self.issue(buf);
        self.counters.quarantined = self.host.quarantined();
        result
    }

    /// Continue with work that waits for buffer room or job slots. Call it while [`Core::has_output`] returns true.
    pub fn poll(&mut self, now_us: u64, buf: &mut ActionBuf) {
        self.advance(now_us);
        self.issue(buf);
        self.counters.quarantined = self.host.quarantined();
    }

    /// Return whether `poll` with buffer room would make progress now.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.actions_out.is_empty()
            || !self.woken.is_empty()
            || self.disk.is_woken()
            || self.host.drain_at().is_some_and(|at| at <= self.now)
    }

    /// Return the latest time for the next [`Event::Tick`], in microseconds on the clock of `now_us`.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let ops = self.deadlines.first().map(|d| d.0);
        let expires = self.index.expires_us().map(|us| us.max(self.now));
        [ops, self.timer, expires, self.late_due(), self.disk.decision_due_us()].into_iter().flatten().min()
    }

    /// Return the counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Return a hash of all actions so far.
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.trace
    }

    /// Return the size classes, in class order.
    #[must_use]
    pub fn classes(&self) -> &[Class] {
        &self.geo.classes
    }

    /// Return the committed tokens of a sequence.
    #[must_use]
    pub fn seq_tokens(&self, session: crate::api::SessionId, seq: crate::api::SeqId) -> Option<u64> {
        self.sessions.get(usize::from(session))?.seqs.get(seq as usize).filter(|q| q.live).map(|q| q.tokens)
    }

    /// Return whether the space is unused: no session, no block, no cache entry, no slot awaiting erasure. Host memory that is
    /// still granted can be released with the space.
    #[must_use]
    pub fn is_vacant(&self) -> bool {
        self.sessions.iter().all(|s| s.life == crate::sessions::Life::Empty) && self.is_blank()
    }

    /// Return whether the space has no block, no cache entry and no slot awaiting erasure.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.blocks.free.len as usize == self.blocks.recs.len() && self.index.live_len() == 0 && self.disk.is_log_idle()
    }

    /// Return the configuration.
    #[must_use]
    pub fn config(&self) -> &SpaceConfig {
        &self.cfg
    }

    /// Return the bytes of the tables that an index-only entry needs (index, NVMe slots, use counts), from their allocated
    /// capacities.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        self.index.table_bytes() + self.disk.index_bytes()
    }

    /// Return the bytes of all tables, from their allocated capacities.
    #[must_use]
    pub fn metadata_bytes(&self) -> usize {
        size_of::<Core>()
            + self.pages.capacity() * size_of::<Page>()
            + self.blocks.recs.capacity() * size_of::<crate::pages::Block>()
            + self.host.bytes()
            + self.disk.bytes()
            + self.index.bytes()
            + self.chunks.bytes()
            + self.sessions.capacity() * size_of::<Session>()
            + self.sessions.iter().map(Session::bytes).sum::<usize>()
            + self.deadlines.bytes()
            + self.prefetch.as_ref().map_or(0, |p| p.bytes())
            + self.feed.as_ref().map_or(0, |feed| feed.bytes())
            + self.actions_out.capacity() * size_of::<Action>()
            + self.woken.capacity() * size_of::<u16>()
    }
}
