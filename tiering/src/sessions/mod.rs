//! Sessions: one shard of one engine replica each, with its tier 0, job slots, sequences, lanes and pending requests.
//!
//! The tables here belong to `space`, `sequences` and `plan`, which are the only ones to change them.

mod jobs;
mod lane;

pub(crate) use jobs::{JobRec, Jobs, Task};
pub(crate) use lane::{Cursor, Lane};

use crate::actions::LIST_MAX;
use crate::api::{Limits, NONE, Policy};
use crate::config::Geometry;
use crate::external::Copies;
use crate::lists::List;
use crate::pages::{Frame, On, Tier0Class};
use crate::plan::{Intents, Soft};
use crate::requests::Ops;
use crate::sequences::{CHUNK, Seq};
use serde::{Deserialize, Serialize};

/// Life of a session slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Life {
    #[default]
    Empty,
    Live,
    /// Lease over, process perhaps not.
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

/// One session slot.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Session {
    pub life: Life,
    pub shard: u16,
    pub frames: Vec<Frame>,
    pub classes: Vec<Tier0Class>,
    pub jobs: Jobs,
    pub ops: Ops,
    pub seqs: Vec<Seq>,
    /// Directory entries of one sequence.
    pub dir_len: usize,
    pub dirs: Vec<u32>,
    pub lanes: Vec<Lane>,
    /// Blocks of the session's own reserve.
    pub reserve: List,
    pub pins: Vec<Pin>,
    pub intents: Intents,
    /// Frames that wait for their Evict job.
    pub evicts: List,
    /// Frames whose Evict job was refused, since the engine pins the page; asked again at `evict_again_at`.
    pub evicts_later: List,
    pub evict_again_at: u64,
    /// How long they waited the last time, in microseconds; 0 once one was given up.
    pub evict_wait_us: u64,
    /// Frames that stand for a block that waits for its Drop job.
    pub drops: List,
    /// Host frames that it may still write after it was lost.
    pub quarantine: List,
    /// Pages whose host frames it may still read after it was lost: they keep their content until it exited.
    pub reading: Vec<u32>,
    /// Host frames of jobs that were late when it was lost.
    pub late_frames: Vec<u32>,
    /// Bytes of host memory that its copies in flight between host and an engine's own blocks touch, late ones included.
    pub copy_bytes: u64,
    /// Bytes of host memory that its late copies touch, and late stores from tier 0.
    pub late_bytes: u64,
    /// Its late jobs exceed the bound, and the shell was asked to end it.
    pub overdrawn: bool,
    /// When its jobs are looked at for late ones; 0: none is in flight that could become one.
    pub late_at: u64,
    /// When it was lost.
    pub lost_us: u64,
    /// Counts announced steps.
    pub clock: u32,
    /// Completions that wait for room, besides pending ops.
    pub outbox: u32,
    /// In the core's queue of sessions to look at.
    pub woken: bool,
    /// Jobs that were refused are sent again at this time; 0: none wait.
    pub again_at: u64,
    /// Frames whose page was pinned when they were asked for are asked for again after this time.
    pub ask_again_at: u64,
    /// Pages whose Move was refused are moved again after this time.
    pub move_again_at: u64,
    /// Moves of a shrink that failed are to be called off.
    pub moves_left: bool,
    /// The last block that queued a Drop here.
    pub drop_mark: u32,
    /// Parked sequences with a due time.
    pub dues: u32,
    /// Blocks that are copied between host and memory of the engine's own.
    pub copies: Copies,
    /// Leases, ended ones included until they are looked at, and when the first one ends at the earliest.
    pub leases: u32,
    pub lease_ends_at: u64,
    /// Its `approx` sequences, and what is predicted of them.
    pub soft: Soft,
}

impl Session {
    /// Allocates everything that the session will use.
    pub fn attach(&mut self, geo: &Geometry, limits: &Limits, policy: &Policy, shard: u16, lanes: u16, frames: &[u32]) {
        let classes = geo.classes.len();
        let (counts, windows) = frames.split_at(classes);
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
            intents: Intents::new(),
            drop_mark: NONE,
            lease_ends_at: u64::MAX,
            woken: self.woken,
            ..Session::default()
        };
        let mut base = 0;
        for (i, &count) in counts.iter().enumerate() {
            // At least one frame a lane and one spare, so that each lane's fault always finds one.
            let scan_max = policy.scan_frames.max(u32::from(lanes) + 1);
            let windows = windows.get(i).copied().unwrap_or(0);
            let mut class = Tier0Class { base, max: count, count, windows, scan_max, ..Tier0Class::default() };
            class.scan = class.scan_of(count);
            for f in base..base + count {
                class.free.push_back(&mut self.frames, f);
                self.frames[f as usize].on = On::Free;
            }
            base += count;
            for f in base..base + windows {
                class.window_free.push_back(&mut self.frames, f);
                self.frames[f as usize].on = On::WindowFree;
            }
            self.classes.push(class);
            base += windows;
        }
    }

    /// Whether it has a tier 0; without, its engine keeps its KV in memory of its own.
    pub fn has_tier0(&self) -> bool {
        !self.frames.is_empty()
    }

    pub fn dir(&self, seq: u32) -> &[u32] {
        &self.dirs[seq as usize * self.dir_len..(seq as usize + 1) * self.dir_len]
    }

    pub fn class_of_frame(&self, frame: u32) -> u8 {
        self.classes.iter().position(|c| frame >= c.base && frame - c.base < c.max + c.windows).unwrap_or(0) as u8
    }

    /// Whether a frame is a window frame.
    pub fn is_window(&self, frame: u32) -> bool {
        self.classes[usize::from(self.class_of_frame(frame))].is_window(frame)
    }

    /// Bytes of all vectors.
    pub fn bytes(&self) -> usize {
        self.frames.capacity() * size_of::<Frame>()
            + self.classes.capacity() * size_of::<Tier0Class>()
            + self.jobs.recs.capacity() * size_of::<JobRec>()
            + self.ops.recs.capacity() * size_of::<crate::requests::Op>()
            + self.seqs.capacity() * size_of::<Seq>()
            + self.dirs.capacity() * size_of::<u32>()
            + self.lanes.iter().map(|l| (l.batch.seqs.capacity() + l.next.seqs.capacity()) * 4).sum::<usize>()
            + self.lanes.capacity() * size_of::<Lane>()
            + self.pins.capacity() * size_of::<Pin>()
            + self.intents.bytes()
            + self.copies.bytes()
            + self.soft.bytes()
    }
}
