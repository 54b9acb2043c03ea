//! Sessions: each is one shard of one engine replica, with its tier 0, jobs, sequences, lanes and pending requests.

mod complete;
mod deadlines;
mod jobs;
mod lane;
mod late;
mod ops;
mod per_session;
mod wake;

pub(crate) use complete::Who;
pub(crate) use deadlines::Deadlines;
pub(crate) use jobs::{JobRec, Jobs, Task};
pub(crate) use lane::{Cursor, Lane};
pub(crate) use late::{LATE_US, touches_host};
pub(crate) use ops::{Op, Ops, Phase, Work};
pub(crate) use per_session::PerSession;

use crate::actions::LIST_MAX;
use crate::api::{Action, Limits, NONE, Policy, SpaceConfig};
use crate::block_api::BlockCopies;
use crate::blocks::{CHUNK, Frame, On, Seq, Tier0Class};
use crate::config::Geometry;
use crate::counters::{Counters, Hits};
use crate::link::Link;
use crate::lists::List;
use crate::paging::{Prediction, ScheduledPrefetches};
use crate::trace::Trace;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The sessions of a space, what they asked for, and what is sent to them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sessions {
    pub(crate) cfg: SpaceConfig,
    pub(crate) geo: Geometry,
    pub(crate) now: u64,
    /// Number of announced steps over all sessions.
    pub(crate) clock: u32,
    pub(crate) sessions: PerSession<Session>,
    pub(crate) deadlines: Deadlines,
    /// Earliest time at which refused jobs or parked sequences are due, in microseconds.
    pub(crate) timer: Option<u64>,
    /// Earliest time for the next scan for late jobs; `u64::MAX` while no job is in flight.
    pub(crate) late_at: u64,
    /// Actions that found no room in the caller's buffer and belong to no other queue.
    pub(crate) actions_out: VecDeque<Action>,
    /// Sessions with work to issue.
    pub(crate) woken: VecDeque<u16>,
    pub(crate) counters: Counters,
    pub(crate) trace: Trace,
}

impl Sessions {
    pub fn new(cfg: SpaceConfig, geo: Geometry) -> Sessions {
        let sessions = usize::from(cfg.limits.sessions_max);
        Sessions {
            now: 0,
            clock: 0,
            sessions: PerSession::new(cfg.limits.sessions_max),
            deadlines: Deadlines::default(),
            timer: None,
            late_at: u64::MAX,
            actions_out: VecDeque::with_capacity(sessions * 2 + 64),
            woken: VecDeque::with_capacity(sessions),
            counters: Counters::default(),
            trace: Trace::default(),
            geo,
            cfg,
        }
    }

    /// Return the tables, to use several at once.
    pub fn parts(&mut self) -> &mut Sessions {
        self
    }

    /// Attach a session to an empty entry.
    pub fn begin_session(&mut self, s: u16, shard: u16, lanes: u16, frames: &[u32]) {
        let (limits, policy) = (&self.cfg.limits, &self.cfg.policy);
        self.sessions[s].attach(&self.geo, limits, policy, shard, lanes, frames);
        self.deadlines.reserve(limits.requests_max as usize);
        self.actions_out.reserve(limits.requests_max as usize);
    }

    /// Return the bytes of all tables, from their allocated capacities.
    pub fn bytes(&self) -> usize {
        self.sessions.bytes()
            + self.sessions.iter().map(Session::bytes).sum::<usize>()
            + self.deadlines.bytes()
            + self.actions_out.capacity() * size_of::<Action>()
            + self.woken.capacity() * size_of::<u16>()
    }
}

/// State of a session entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Life {
    #[default]
    Empty,
    Live,
    /// Disconnected; the process may still run.
    Lost,
}

/// An acquired range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pin {
    pub seq: u32,
    pub plane: u16,
    pub planes: u16,
    pub first: u32,
    pub count: u32,
}

/// One session entry.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Session {
    pub life: Life,
    pub shard: u16,
    pub frames: Vec<Frame>,
    pub classes: Vec<Tier0Class>,
    pub jobs: Jobs,
    pub ops: Ops,
    pub seqs: Vec<Seq>,
    /// Directory entries per sequence.
    pub dir_len: usize,
    pub dirs: Vec<u32>,
    pub lanes: Vec<Lane>,
    /// Blocks that the session may have at the same time without further admission.
    pub guaranteed_blocks: u32,
    /// Referenced blocks that are charged to this session: it is their home, and no other session refers to them.
    pub own_blocks: u32,
    pub pins: Vec<Pin>,
    pub scheduled: ScheduledPrefetches,
    /// Frames that wait for their `Evict` job.
    pub evicts: List,
    /// Frames with an `Evict` job that was refused because the engine pins the page; it is sent again at `evict_again_at`.
    pub evicts_later: List,
    pub evict_again_at: u64,
    /// Last waiting time of those frames in microseconds; 0 after an eviction succeeded.
    pub evict_wait_us: u64,
    /// Frames that represent a block that waits for its `Drop` job.
    pub drops: List,
    /// Host frames that the session may still write after it was lost.
    pub quarantine: List,
    /// Pages with host frames that the session may still read after it was lost. They keep their bytes until it exits.
    pub reading: Vec<u32>,
    /// Host frames of jobs that were late when the session was lost.
    pub late_frames: Vec<u32>,
    /// Bytes of host memory used by copies in flight between host and the engine's own blocks, including late copies.
    pub copy_bytes: u64,
    /// Bytes of host memory used by its late copies and by late stores from tier 0.
    pub late_bytes: u64,
    /// Its late jobs exceed the limit, and the daemon was asked to end the session.
    pub overdrawn: bool,
    /// Time of the next check for late jobs; 0: no job in flight can become late.
    pub late_at: u64,
    /// Time at which the session was lost.
    pub lost_us: u64,
    /// Number of announced steps.
    pub clock: u32,
    /// Completions that wait for room, in addition to pending ops.
    pub completions_waiting: u32,
    /// In the core's queue of sessions to process.
    pub woken: bool,
    /// Time at which refused jobs are sent again; 0: none waits.
    pub again_at: u64,
    /// Time after which frames with a pinned page are requested again.
    pub ask_again_at: u64,
    /// Time after which pages with a refused `Move` are moved again.
    pub move_again_at: u64,
    /// Moves of a failed shrink must be canceled.
    pub moves_left: bool,
    /// Last block that queued a `Drop` here.
    pub drop_mark: u32,
    /// Number of parked sequences with a due time.
    pub dues: u32,
    /// Copies between host and the engine's own memory.
    pub copies: BlockCopies,
    /// Number of leases, including expired ones until they are processed; `lease_ends_at` is a lower bound of the first expiry.
    pub leases: u32,
    pub lease_ends_at: u64,
    /// Measured rate of copies from host to tier 0.
    pub link: Link,
    /// `approx` sequences and their predictions.
    pub prediction: Prediction,
    /// It is a relay that follows the feed.
    pub follows: bool,
    /// Tokens that it asked for, found and loaded.
    pub hits: Hits,
}

impl Session {
    /// Allocate all tables that the session will use.
    pub fn attach(&mut self, geo: &Geometry, limits: &Limits, policy: &Policy, shard: u16, lanes: u16, frames: &[u32]) {
        let classes = geo.classes.len();
        let (counts, mapped_frames) = frames.split_at(classes);
        let dir_len = limits.seq_blocks_max.div_ceil(CHUNK) as usize;
        let seqs = limits.seqs_max as usize;
        *self = Session {
            life: Life::Live,
            shard,
            frames: vec![Frame::default(); frames.iter().map(|&n| n as usize).sum()],
            jobs: Jobs::new(limits.jobs_max),
            ops: Ops::new(limits.requests_max),
            seqs: vec![Seq::default(); seqs],
            dir_len,
            dirs: vec![NONE; dir_len * seqs],
            lanes: (0..lanes).map(|_| Lane::new(seqs.min(LIST_MAX), classes)).collect(),
            pins: Vec::with_capacity(limits.requests_max as usize),
            scheduled: ScheduledPrefetches::new(),
            drop_mark: NONE,
            lease_ends_at: u64::MAX,
            woken: self.woken,
            ..Session::default()
        };
        let mut base = 0;
        for (i, &count) in counts.iter().enumerate() {
            // At least one frame per lane and one more, so that each lane's fault always finds one.
            let scan_max = policy.scan_frames.max(u32::from(lanes) + 1);
            let mapped_frames = mapped_frames.get(i).copied().unwrap_or(0);
            let mut class = Tier0Class { base, max: count, count, mapped_frames, scan_max, ..Tier0Class::default() };
            class.scan = class.scan_of(count);
            for f in base..base + count {
                class.free.push_back(&mut self.frames, f);
                self.frames[f as usize].on = On::Free;
            }
            base += count;
            for f in base..base + mapped_frames {
                class.mapped_free.push_back(&mut self.frames, f);
                self.frames[f as usize].on = On::MappedFree;
            }
            self.classes.push(class);
            base += mapped_frames;
        }
    }

    /// Return whether the session has a tier 0. Without one, its engine keeps its KV in its own memory.
    pub fn has_tier0(&self) -> bool {
        !self.frames.is_empty()
    }

    pub fn dir(&self, seq: u32) -> &[u32] {
        &self.dirs[seq as usize * self.dir_len..(seq as usize + 1) * self.dir_len]
    }

    pub fn class_of_frame(&self, frame: u32) -> u8 {
        self.classes.iter().position(|c| frame >= c.base && frame - c.base < c.max + c.mapped_frames).unwrap_or(0) as u8
    }

    /// Return whether a frame is a mapped frame.
    pub fn is_mapped_frame(&self, frame: u32) -> bool {
        self.classes[usize::from(self.class_of_frame(frame))].is_mapped_frame(frame)
    }

    /// Return the bytes of all vectors.
    pub fn bytes(&self) -> usize {
        self.frames.capacity() * size_of::<Frame>()
            + self.classes.capacity() * size_of::<Tier0Class>()
            + self.jobs.recs.capacity() * size_of::<JobRec>()
            + self.ops.recs.capacity() * size_of::<Op>()
            + self.seqs.capacity() * size_of::<Seq>()
            + self.dirs.capacity() * size_of::<u32>()
            + self.lanes.iter().map(|l| (l.batch.seqs.capacity() + l.next.seqs.capacity()) * 4).sum::<usize>()
            + self.lanes.capacity() * size_of::<Lane>()
            + self.pins.capacity() * size_of::<Pin>()
            + self.scheduled.bytes()
            + self.copies.bytes()
            + self.prediction.bytes()
    }
}
