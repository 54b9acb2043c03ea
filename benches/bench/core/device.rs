//! A simulated engine with its devices: jobs end in order, each once the last use of its victim is over.

use super::super::BenchError;
use super::{PLANES, SpaceConfig};
use kvtide_tiering::api::{Action, Event, Job, Request, Status, Victim};
use kvtide_tiering::{ActionBuf, Core};
use std::collections::VecDeque;

/// Frames of one simulated slab.
const SLAB_FRAMES: u32 = 1 << 14;
/// Not in tier 0.
const ABSENT: u32 = 0;

/// The core and its simulated environment.
pub(super) struct World {
    pub(super) core: Core,
    buf: ActionBuf,
    now_us: u64,
    jobs: VecDeque<(u32, Job)>,
    /// Page table: page id → frame plus one.
    table: Vec<u32>,
    /// Page id → position of its last use.
    used: Vec<u64>,
    /// Blocks of each sequence.
    seqs: Vec<Vec<u32>>,
    /// Position of the lane within a step.
    position: Option<u64>,
    steps: u64,
    slabs: u32,
    /// Number of replies; the status of the last one, and the first blocks of its list.
    answers: u64,
    failed: Option<Status>,
    granted: Vec<u32>,
}

fn page(block: u32, plane: u16) -> usize {
    block as usize * usize::from(PLANES) + usize::from(plane)
}

impl World {
    pub(super) fn new(config: SpaceConfig, frames: u32) -> Result<World, BenchError> {
        let pages = config.limits.blocks_max as usize * config.planes.len();
        let (seqs, seq_blocks) = (config.limits.seqs_max as usize, config.limits.seq_blocks_max as usize);
        let mut world = World {
            core: Core::new(config)?,
            buf: ActionBuf::new(512, 4096),
            now_us: 1,
            jobs: VecDeque::with_capacity(512),
            table: vec![ABSENT; pages],
            used: vec![0; pages],
            seqs: (0..seqs).map(|_| Vec::with_capacity(seq_blocks)).collect(),
            position: None,
            steps: 0,
            slabs: 0,
            answers: 0,
            failed: None,
            granted: Vec::with_capacity(512),
        };
        world.event(Event::Attach { session: 0, shard: 0, lanes: 1, frames: &[frames] })?;
        Ok(world)
    }

    fn event(&mut self, event: Event<'_>) -> Result<(), BenchError> {
        self.now_us += 1;
        self.core.handle(self.now_us, event, &mut self.buf)?;
        self.take()
    }

    /// Execute the core's actions.
    fn take(&mut self) -> Result<(), BenchError> {
        loop {
            let mut needed = None;
            for action in self.buf.actions() {
                match *action {
                    Action::Job { id, job, .. } => self.jobs.push_back((id, job)),
                    Action::Complete { status, list, .. } => {
                        self.answers += 1;
                        if status != Status::Ok {
                            self.failed = Some(status);
                        }
                        self.granted.clear();
                        self.granted.extend_from_slice(self.buf.list(list));
                    }
                    Action::NeedSlab { class } => needed = Some(class),
                    Action::ReturnSlab { .. } | Action::SessionGone { .. } | Action::EndSession { .. } => {}
                    // The benchmark's space has no NVMe tier.
                    Action::NeedDisk { .. }
                    | Action::ReturnDisk { .. }
                    | Action::Io { .. }
                    | Action::Urge { .. }
                    | Action::Record { .. }
                    | Action::Erase { .. }
                    | Action::Flush { .. } => {}
                }
            }
            self.buf.clear();
            if let Some(class) = needed {
                let granted = Event::SlabGranted { class, slab: self.slabs, frames: SLAB_FRAMES };
                self.slabs += 1;
                self.core.handle(self.now_us, granted, &mut self.buf)?;
            } else if self.core.has_output() {
                self.core.poll(self.now_us, &mut self.buf);
            } else {
                return Ok(());
            }
        }
    }

    fn may_run(&self, job: &Job) -> bool {
        let (Job::Install { victim, .. }
        | Job::CopyIn { victim, .. }
        | Job::Copy { victim, .. }
        | Job::CopyInAs { victim, .. }) = job
        else {
            return self.position.is_none() || !matches!(job, Job::Move { .. });
        };
        match (victim, self.position) {
            (Some(Victim { block, plane, after: Some((_, use_pos)) }), Some(position)) => {
                position > *use_pos || position == *use_pos && self.used[page(*block, *plane)] == *use_pos
            }
            _ => true,
        }
    }

    /// Finish the oldest job that may run. Return false if none may.
    fn run_one(&mut self) -> Result<bool, BenchError> {
        let Some(at) = self.jobs.iter().position(|(_, job)| self.may_run(job)) else { return Ok(false) };
        let Some((id, job)) = self.jobs.remove(at) else { return Ok(false) };
        match job {
            Job::Install { block, plane, frame, victim }
            | Job::CopyIn { block, plane, frame, victim, .. }
            | Job::Copy { block, plane, frame, victim, .. }
            | Job::CopyInAs { block, plane, frame, victim, .. } => {
                if let Some(victim) = victim {
                    self.table[page(victim.block, victim.plane)] = ABSENT;
                }
                self.table[page(block, plane)] = frame + 1;
            }
            Job::Move { block, plane, frame, .. } => self.table[page(block, plane)] = frame + 1,
            Job::Evict { block, plane, .. } => self.table[page(block, plane)] = ABSENT,
            Job::Drop { block } => {
                let first = page(block, 0);
                self.table[first..first + usize::from(PLANES)].fill(ABSENT);
            }
            Job::CopyOut { .. } | Job::Cancel { .. } | Job::Gather { .. } | Job::Scatter { .. } => {}
        }
        self.event(Event::JobDone { session: 0, job: id, status: Status::Ok })?;
        Ok(true)
    }

    /// Send a request and run the devices until its reply.
    fn ask(&mut self, request: Request<'_>) -> Result<(), BenchError> {
        let answers = self.answers;
        self.failed = None;
        self.event(Event::Request { session: 0, channel: 0, tag: 0, timeout_us: 0, request })?;
        while self.answers == answers {
            if !self.run_one()? {
                return Err(BenchError::Odd(format!("no job is left, but {request:?} has no reply")));
            }
        }
        match self.failed {
            Some(status) => Err(BenchError::Odd(format!("{request:?} ended with {status:?}"))),
            None => Ok(()),
        }
    }

    /// Create a sequence of `blocks` full blocks.
    pub(super) fn fill(&mut self, seq: u32, blocks: u32) -> Result<(), BenchError> {
        self.ask(Request::SeqCreate { seq })?;
        let page_tokens = u64::from(self.core.config().page_tokens);
        for block in 1..=u64::from(blocks) {
            self.ask(Request::Reserve { seq, count: 1 })?;
            self.seqs[seq as usize].extend_from_slice(&self.granted);
            self.ask(Request::Commit { seq, tokens: block * page_tokens })?;
        }
        while self.run_one()? {}
        Ok(())
    }

    /// Create, fill and drop a sequence.
    pub(super) fn come_and_go(&mut self, seq: u32, blocks: u32) -> Result<(), BenchError> {
        self.fill(seq, blocks)?;
        self.seqs[seq as usize].clear();
        self.ask(Request::SeqDrop { seq })?;
        while self.run_one()? {}
        Ok(())
    }

    /// Run one step that reads every page of these sequences, plane by plane.
    pub(super) fn step(&mut self, seqs: &[u32]) -> Result<(), BenchError> {
        self.steps += 1;
        let step = self.steps;
        self.position = Some(step * u64::from(PLANES));
        self.ask(Request::Step { lane: 0, step, seqs })?;
        for plane in 0..PLANES {
            let use_pos = step * u64::from(PLANES) + u64::from(plane);
            self.position = Some(use_pos);
            for &seq in seqs {
                for index in 0..self.seqs[seq as usize].len() {
                    let id = page(self.seqs[seq as usize][index], plane);
                    while self.table[id] == ABSENT {
                        if !self.run_one()? {
                            self.ask(Request::Fault {
                                lane: 0,
                                use_pos,
                                seq,
                                index: index as u32,
                                plane,
                                whole: false,
                            })?;
                        }
                    }
                    self.used[id] = use_pos;
                }
            }
        }
        self.position = None;
        self.ask(Request::StepEnd { lane: 0, step })
    }
}
