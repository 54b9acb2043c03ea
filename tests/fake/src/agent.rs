//! An engine with its agent: page table, lanes, jobs that wait for them, and memory.

use kvtide_tiering::api::{BlockId, FrameId, Job, LaneId, NONE, SpaceConfig, Victim};
use std::collections::{BTreeMap, VecDeque};

/// The frame of each page in tier 0.
#[derive(Clone, Debug)]
pub struct PageTable {
    planes: u16,
    frames: Vec<FrameId>,
}

impl PageTable {
    pub fn new(blocks_max: u32, planes: u16) -> PageTable {
        PageTable { planes, frames: vec![NONE; blocks_max as usize * usize::from(planes)] }
    }

    /// Return the index of a page among all pages of the space.
    pub fn page(&self, block: BlockId, plane: u16) -> usize {
        block as usize * usize::from(self.planes) + usize::from(plane)
    }

    pub fn frame(&self, block: BlockId, plane: u16) -> Option<FrameId> {
        Some(self.frames[self.page(block, plane)]).filter(|&frame| frame != NONE)
    }

    /// Show a page in a frame; return the frame that showed it before.
    pub fn show(&mut self, block: BlockId, plane: u16, frame: FrameId) -> Option<FrameId> {
        let page = self.page(block, plane);
        Some(std::mem::replace(&mut self.frames[page], frame)).filter(|&before| before != NONE)
    }

    pub fn hide(&mut self, block: BlockId, plane: u16) {
        self.show(block, plane, NONE);
    }

    /// Hide all pages that a frame shows.
    pub fn empty(&mut self, frame: FrameId) {
        self.frames.iter_mut().filter(|shown| **shown == frame).for_each(|shown| *shown = NONE);
    }

    /// Return the pages in tier 0 with their frames.
    pub fn iter(&self) -> impl Iterator<Item = ((BlockId, u16), FrameId)> {
        let planes = usize::from(self.planes);
        let shown = self.frames.iter().enumerate().filter(|(_, frame)| **frame != NONE);
        shown.map(move |(page, &frame)| (((page / planes) as BlockId, (page % planes) as u16), frame))
    }

    /// Change the table as the end of a job does: its victim is out, its page is in. Return the frame that showed the page before.
    pub fn apply(&mut self, job: Job) -> Option<FrameId> {
        let message = job.encode().0;
        let evicted = match job {
            Job::Evict { block, plane, .. } => Some((block, plane)),
            _ => message.victim.map(|victim| (victim.block, victim.plane)),
        };
        if let Some((block, plane)) = evicted.filter(|&(block, plane)| self.frame(block, plane) == message.frame) {
            self.hide(block, plane);
        }
        if let Job::Drop { block } = job {
            (0..self.planes).for_each(|plane| self.hide(block, plane));
        }
        installed(job).and_then(|(block, plane, frame)| self.show(block, plane, frame))
    }
}

/// Return the page that a job installs, and its frame.
pub fn installed(job: Job) -> Option<(BlockId, u16, FrameId)> {
    let message = job.encode().0;
    let page = message.block.zip(message.frame).filter(|_| !matches!(job, Job::CopyOut { .. } | Job::Evict { .. }));
    page.map(|(block, frame)| (block, message.plane, frame))
}

/// A lane.
#[derive(Clone, Debug)]
struct Lane {
    /// Position within a step, step × planes + plane; `None`: between steps.
    at: Option<u64>,
    /// Number of its moves, and by page the last move after which it read the page.
    moves: u64,
    read: Vec<u64>,
}

/// An engine with its agent.
#[derive(Clone, Debug)]
pub struct Agent {
    pub table: PageTable,
    /// Jobs sent and not executed.
    pub jobs: VecDeque<(u32, Job)>,
    lanes: Vec<Lane>,
    /// Frame → content.
    pub frames: BTreeMap<FrameId, u64>,
    /// Frames of each size class: the first, the maximum number, the number with memory.
    pub sizes: Vec<(FrameId, u32, u32)>,
    /// Mapped frames of each size class: the first, and their number.
    pub mapped_frames: Vec<(FrameId, u32)>,
    /// Host frame that each mapped frame shows.
    pub aliases: BTreeMap<FrameId, (u32, u32)>,
    /// The engine's own memory: (its block, plane) → content.
    pub engine: BTreeMap<(u32, u16), u64>,
}

impl Agent {
    /// Create the agent of an engine with this many frames of its own memory, and mapped ones, by size class.
    pub fn new(config: &SpaceConfig, lanes: u16, frames: &[u32], mapped: &[u32]) -> Agent {
        let (blocks_max, planes) = (config.limits.blocks_max, config.planes.len());
        let lane = Lane { at: None, moves: 0, read: vec![0; blocks_max as usize * planes] };
        let (mut sizes, mut mapped_frames, mut base) = (Vec::new(), Vec::new(), 0);
        for (&count, shown) in frames.iter().zip(mapped.iter().copied().chain(std::iter::repeat(0))) {
            sizes.push((base, count, count));
            mapped_frames.push((base + count, shown));
            base += count + shown;
        }
        Agent {
            table: PageTable::new(blocks_max, planes as u16),
            jobs: VecDeque::with_capacity(2 * config.limits.jobs_max as usize),
            lanes: vec![lane; usize::from(lanes)],
            frames: BTreeMap::new(),
            sizes,
            mapped_frames,
            aliases: BTreeMap::new(),
            engine: BTreeMap::new(),
        }
    }

    /// Move a lane to a position of a step, or out of its step.
    pub fn enter(&mut self, lane: LaneId, at: Option<u64>) {
        let lane = &mut self.lanes[usize::from(lane)];
        (lane.at, lane.moves) = (at, lane.moves + 1);
    }

    /// Let a lane read a page.
    pub fn mark_read(&mut self, lane: LaneId, block: BlockId, plane: u16) {
        let (page, lane) = (self.table.page(block, plane), &mut self.lanes[usize::from(lane)]);
        lane.read[page] = lane.moves;
    }

    /// Return whether the lane has passed its last use of the victim.
    fn may_run(&self, job: Job) -> bool {
        let Some(Victim { block, plane, after: Some((lane, pos)) }) = job.encode().0.victim else {
            return !matches!(job, Job::Move { .. }) || !self.is_stepping();
        };
        let lane = &self.lanes[usize::from(lane)];
        lane.at.is_none_or(|at| at > pos || at == pos && lane.read[self.table.page(block, plane)] == lane.moves)
    }

    fn is_stepping(&self) -> bool {
        self.lanes.iter().any(|lane| lane.at.is_some())
    }

    /// Take the oldest job that need not wait for a lane.
    pub fn next_job(&mut self) -> Option<(u32, Job)> {
        let at = self.jobs.iter().position(|&(_, job)| self.may_run(job))?;
        self.jobs.remove(at)
    }

    /// Remove a job that was not executed.
    pub fn withdraw(&mut self, id: u32) -> bool {
        let at = self.jobs.iter().position(|&(other, _)| other == id);
        at.is_some_and(|at| self.jobs.remove(at).is_some())
    }

    /// Return whether a frame is a mapped frame.
    pub fn is_mapped_frame(&self, frame: FrameId) -> bool {
        self.mapped_frames.iter().any(|&(base, count)| frame >= base && frame - base < count)
    }

    /// Return the host frames that the page table shows in place.
    pub fn in_place(&self) -> impl Iterator<Item = (u32, u32)> {
        self.table.iter().filter(|&(_, f)| self.is_mapped_frame(f)).map(|(_, f)| self.aliases[&f])
    }

    /// Return whether a frame has memory.
    fn has(&self, frame: FrameId) -> bool {
        self.sizes.iter().any(|&(base, _, now)| frame >= base && frame - base < now)
    }

    /// Check a job against the frames, the page table and the lanes.
    pub(crate) fn check(&self, job: Job) {
        let is_mapped = matches!(job, Job::CopyIn { frame, .. } if self.is_mapped_frame(frame));
        let written = installed(job).map(|(_, _, frame)| frame);
        let read = match job {
            Job::Copy { from, .. } | Job::Move { from, .. } => Some(from),
            Job::CopyOut { frame, .. } => Some(frame),
            _ => None,
        };
        for frame in written.filter(|_| !is_mapped).into_iter().chain(read) {
            assert!(self.has(frame), "{job:?} touches frame {frame}, which has no memory");
        }
        let victim = job.encode().0.victim.map(|victim| (victim.block, victim.plane));
        let shown = self.table.iter().filter(|&(page, frame)| Some(frame) == written && Some(page) != victim);
        let shown: Vec<_> = shown.collect();
        assert!(shown.is_empty(), "{job:?} overwrites a frame that still shows {shown:?}");
        match job {
            Job::CopyOut { block, plane, frame, .. } => {
                let shown = self.table.frame(block, plane);
                assert_eq!(shown, Some(frame), "{job:?} stores a frame that shows another page");
            }
            Job::Move { .. } => assert!(!self.is_stepping(), "{job:?} while a lane is in a step"),
            _ => {}
        }
    }
}
