//! A space's core: the tables, the entry points, and the bookkeeping that everything else goes through.
//!
//! - `dispatch`: events in, by kind and by request
//! - `pump`: what goes out while there is room; everything that did not fit waits in bounded queues
//! - `emit`: completions and jobs as actions
//! - `frames`: which frame shows which page, and which list it stands in
//! - `blocks`: references, death, and the way of a block's id back to the free list
//! - `content`: parts of what is published, and how it leaves the index
//! - `cold`: contents that are only on NVMe
//! - `keep`: the way of what is published to NVMe and into its index log
//! - `notes`: what the index logs are told
//! - `restore`: what earlier runs left on NVMe
//! - `gone`: disks that go out of service
//! - `account`: what is owned and whether more still fits
//! - `host`: host frames and slabs
//! - `reclaim`: host memory for another space
//! - `slots`: places on NVMe
//! - `transfers`: between host and NVMe, from their beginning to their end
//! - `attach`: sessions come and go
//! - `resize`: a session's tier 0 grows and shrinks
//! - `done`: jobs that ended
//! - `late`: jobs that did not end in time
//! - `check`: whether all tables agree, for tests and the simulator

mod account;
mod attach;
mod blocks;
mod check;
mod cold;
mod content;
mod dispatch;
mod done;
mod emit;
mod frames;
mod gone;
mod host;
mod keep;
mod late;
mod notes;
mod occupancy;
mod pump;
mod reclaim;
mod resize;
mod restore;
mod slots;
mod transfers;
mod windows;

pub(crate) use account::Admit;
pub(crate) use content::NEAR;
pub(crate) use emit::{NewJob, Who};
pub(crate) use frames::Pick;
pub(crate) use host::{ASK_AGAIN_US, For, Spare};
pub(crate) use keep::Why;
pub use occupancy::{Amount, Fill, Occupancy};
pub(crate) use transfers::IO_PAGES_MAX;

use crate::actions::ActionBuf;
use crate::api::{Action, Event, SpaceConfig};
use crate::config::{Class, Geometry};
use crate::counters::Counters;
use crate::error::Error;
use crate::format::SlotLayout;
use crate::pages::{Blocks, Disk, Host, Index, Notes, Page, Transfers};
use crate::plan::{Link, Prefetch, Wear};
use crate::requests::Deadlines;
use crate::sequences::{CHUNK, Chunks};
use crate::sessions::Session;
use crate::trace::Trace;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// A space: one model of one domain, all its sessions, blocks and host frames.
///
/// Determinism: the same configuration and the same calls, with the same room in their buffers, give the same actions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Core {
    pub(crate) cfg: SpaceConfig,
    pub(crate) geo: Geometry,
    pub(crate) now: u64,
    pub(crate) pages: Vec<Page>,
    pub(crate) blocks: Blocks,
    pub(crate) host: Host,
    pub(crate) disk: Disk,
    pub(crate) transfers: Transfers,
    /// What reads from NVMe carry.
    pub(crate) disk_link: Link,
    pub(crate) notes: Notes,
    pub(crate) log: notes::Log,
    /// What writing to NVMe may cost, and which contents were used before.
    pub(crate) wear: Wear,
    /// Bytes of a block's slot on NVMe.
    pub(crate) slot_bytes: u64,
    pub(crate) index: Index,
    pub(crate) chunks: Chunks,
    pub(crate) sessions: Vec<Session>,
    pub(crate) deadlines: Deadlines,
    /// What is learnt from attention; from the first `approx` sequence on.
    pub(crate) prefetch: Option<Box<Prefetch>>,
    /// When refused jobs or parked sequences come due, at the earliest.
    pub(crate) timer: Option<u64>,
    /// When the jobs of a session are looked at for late ones, at the earliest; the last time of all: none is in flight.
    pub(crate) late_at: u64,
    /// Actions without a list that found no room.
    pub(crate) outbox: VecDeque<Action>,
    /// Sessions to look at.
    pub(crate) woken: VecDeque<u16>,
    /// Somebody waits for a host frame.
    pub(crate) host_wanted: bool,
    /// Block ids missing for a request that waits until blocks are recorded; 0: no request waits.
    pub(crate) ids_wanted: u32,
    /// Somebody waits for a page to be unpublished from the frame that it gave up.
    pub(crate) leaving_wanted: bool,
    /// Somebody waits for a transfer to end, so that another can begin.
    pub(crate) io_wanted: bool,
    /// There may be something to write down.
    pub(crate) disk_woken: bool,
    /// The slab that is being emptied for another space.
    pub(crate) drain: Option<reclaim::Drain>,
    /// Counts announced steps of all sessions.
    pub(crate) clock: u32,
    pub(crate) counters: Counters,
    pub(crate) trace: Trace,
}

impl Core {
    /// A space without sessions or memory. Allocates the tables of blocks, pages and content.
    ///
    /// # Errors
    /// [`Error::Config`] names the rule that the configuration breaks.
    pub fn new(cfg: SpaceConfig) -> Result<Core, Error> {
        let geo = Geometry::new(&cfg)?;
        let l = cfg.limits;
        let sessions = usize::from(l.sessions_max);
        // Room for every block to be referred to twice over, plus one chunk that is not full for each sequence in use.
        let chunks = (2 * u64::from(l.blocks_max)).div_ceil(u64::from(CHUNK))
            + u64::from(l.seqs_max.min(l.blocks_max)) * u64::from(l.sessions_max);
        if chunks * u64::from(CHUNK) >= u64::from(u32::MAX) {
            return Err(Error::Config {
                what: "blocks_max and seqs_max times sessions_max exceed what ids count",
                value: chunks,
            });
        }
        let slot_bytes = SlotLayout::new(&cfg.planes).bytes();
        Ok(Core {
            now: 0,
            pages: Vec::with_capacity(l.blocks_max as usize * geo.planes.len()),
            blocks: Blocks::new(l.blocks_max),
            host: Host::new(geo.classes.len()),
            disk: Disk::new(slots_max(&cfg, slot_bytes), cfg.shards, geo.windowed.len()),
            transfers: Transfers::new(if l.nvme_bytes_max > 0 { l.ios_max } else { 0 }),
            disk_link: Link::default(),
            notes: Notes::new(if l.nvme_bytes_max > 0 { l.notes_max } else { 0 }),
            log: notes::Log::default(),
            wear: Wear::new(&cfg, slot_bytes),
            slot_bytes,
            index: Index::new(l.contents_max, cfg.shards, cfg.page_tokens, cfg.policy.eviction, cfg.policy.retention),
            chunks: Chunks::new(chunks as u32),
            sessions: vec![Session::default(); sessions],
            deadlines: Deadlines::default(),
            prefetch: None,
            timer: None,
            late_at: u64::MAX,
            outbox: VecDeque::with_capacity(sessions * 2 + 64),
            woken: VecDeque::with_capacity(sessions),
            host_wanted: false,
            ids_wanted: 0,
            leaving_wanted: false,
            io_wanted: false,
            disk_woken: false,
            drain: None,
            clock: 0,
            counters: Counters::default(),
            trace: Trace::default(),
            geo,
            cfg,
        })
    }

    /// Takes an event in. What it causes is written to `buf` as far as it fits; the rest waits inside, bounded, for
    /// [`Core::poll`]. With no room at all nothing is lost.
    ///
    /// # Errors
    /// The event contradicts the protocol between shell and core, or shows that a session's peer broke its own
    /// ([`Error::Agent`], [`Error::Overrun`]: the shell ends that session). Malformed requests are no errors here: they
    /// complete with a status.
    pub fn handle(&mut self, now_us: u64, event: Event<'_>, buf: &mut ActionBuf) -> Result<(), Error> {
        self.advance(now_us);
        let result = self.dispatch(event);
        self.pump(buf);
        self.counters.quarantined = self.host.quarantined();
        result
    }

    /// Goes on with what waits for room or job slots. Call it while [`Core::has_output`].
    pub fn poll(&mut self, now_us: u64, buf: &mut ActionBuf) {
        self.advance(now_us);
        self.pump(buf);
        self.counters.quarantined = self.host.quarantined();
    }

    /// Whether `poll` with room would do something now.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.outbox.is_empty() || !self.woken.is_empty() || self.disk_woken || self.may_drain()
    }

    /// When the core must be told of an [`Event::Tick`] at the latest, in the same clock as `now_us`.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let ops = self.deadlines.first().map(|d| d.0);
        let expires = self.index.order.expires_us().map(|us| us.max(self.now));
        [ops, self.timer, expires, self.late_due()].into_iter().flatten().min()
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Hash of all actions so far.
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.trace
    }

    /// Size classes in class order.
    #[must_use]
    pub fn classes(&self) -> &[Class] {
        &self.geo.classes
    }

    /// Committed tokens of a sequence.
    #[must_use]
    pub fn seq_tokens(&self, session: crate::api::SessionId, seq: crate::api::SeqId) -> Option<u64> {
        self.sessions.get(usize::from(session))?.seqs.get(seq as usize).filter(|q| q.live).map(|q| q.tokens)
    }

    /// Whether nothing lives here: no session, no block, no content. What host memory is still granted can go back with the space.
    #[must_use]
    pub fn is_vacant(&self) -> bool {
        self.sessions.iter().all(|s| s.life == crate::sessions::Life::Empty)
            && self.blocks.free.len as usize == self.blocks.recs.len()
            && self.index.live_len() == 0
            && self.disk.limbo == 0
            && self.notes.in_flight() == 0
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &SpaceConfig {
        &self.cfg
    }

    /// Bytes of the tables that a content needs which is only on NVMe: the index and the slots, from their real capacities.
    #[must_use]
    pub fn contents_bytes(&self) -> usize {
        self.index.bytes() + self.disk.bytes() + self.wear.bytes()
    }

    /// Bytes of all tables, from their real capacities.
    #[must_use]
    pub fn metadata_bytes(&self) -> usize {
        size_of::<Core>()
            + self.pages.capacity() * size_of::<Page>()
            + self.blocks.recs.capacity() * size_of::<crate::pages::Block>()
            + self.host.bytes()
            + self.disk.bytes()
            + self.transfers.bytes()
            + self.notes.bytes()
            + self.wear.bytes()
            + self.index.bytes()
            + self.index.order.bytes()
            + self.chunks.bytes()
            + self.sessions.capacity() * size_of::<Session>()
            + self.sessions.iter().map(Session::bytes).sum::<usize>()
            + self.deadlines.bytes()
            + self.prefetch.as_ref().map_or(0, |p| p.bytes())
            + self.outbox.capacity() * size_of::<Action>()
            + self.woken.capacity() * size_of::<u16>()
    }
}

/// Slots that a space can make use of: as many as it may hold, but no more than there may be contents and blocks.
fn slots_max(cfg: &SpaceConfig, slot_bytes: u64) -> usize {
    let l = cfg.limits;
    (l.nvme_bytes_max / slot_bytes).min(u64::from(l.contents_max) + u64::from(l.blocks_max)) as usize
}
