//! A simulated engine with its devices: jobs end in order, each once the last use of its victim is over.

use super::super::BenchError;
use super::{PLANES, SpaceConfig};
use kvtide_fake::{Agent, Node};
use kvtide_tiering::api::{Action, Event, Request, Status};
use kvtide_tiering::{ActionBuf, Core};

/// Frames of one simulated slab.
const SLAB_FRAMES: u32 = 1 << 14;

/// The core and its simulated environment.
pub(super) struct World {
    pub(super) core: Core,
    buf: ActionBuf,
    now_us: u64,
    agent: Agent,
    node: Node,
    /// Blocks of each sequence.
    seqs: Vec<Vec<u32>>,
    steps: u64,
    /// Status of the last reply, and the first blocks of its list.
    answer: Option<Status>,
    granted: Vec<u32>,
}

impl World {
    pub(super) fn new(config: SpaceConfig, frames: u32) -> Result<World, BenchError> {
        let (seqs, seq_blocks) = (config.limits.seqs_max as usize, config.limits.seq_blocks_max as usize);
        let mut world = World {
            agent: Agent::new(&config, 1, &[frames], &[]),
            node: Node::new(vec![u32::MAX], SLAB_FRAMES),
            core: Core::new(config)?,
            buf: ActionBuf::new(512, 4096),
            now_us: 1,
            seqs: (0..seqs).map(|_| Vec::with_capacity(seq_blocks)).collect(),
            steps: 0,
            answer: None,
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
                    Action::Job { id, job, .. } => self.agent.jobs.push_back((id, job)),
                    Action::Complete { status, list, .. } => {
                        self.answer = Some(status);
                        self.granted.clear();
                        self.granted.extend_from_slice(self.buf.list(list));
                    }
                    Action::NeedSlab { class } => needed = Some(class),
                    // The benchmark's space has no NVMe tier.
                    _ => {}
                }
            }
            self.buf.clear();
            if let Some(class) = needed {
                self.core.handle(self.now_us, self.node.grant(class), &mut self.buf)?;
            } else if self.core.has_output() {
                self.core.poll(self.now_us, &mut self.buf);
            } else {
                return Ok(());
            }
        }
    }

    /// Finish the oldest job that may run. Return false if none may.
    fn run_one(&mut self) -> Result<bool, BenchError> {
        let Some((id, job)) = self.agent.next_job() else { return Ok(false) };
        self.agent.table.apply(job);
        self.event(Event::JobDone { session: 0, job: id, status: Status::Ok })?;
        Ok(true)
    }

    /// Send a request and run the devices until its reply.
    fn ask(&mut self, request: Request<'_>) -> Result<(), BenchError> {
        self.answer = None;
        self.event(Event::Request { session: 0, channel: 0, tag: 0, timeout_us: 0, request })?;
        while self.answer.is_none() {
            if !self.run_one()? {
                return Err(BenchError::Odd(format!("no job is left, but {request:?} has no reply")));
            }
        }
        match self.answer {
            Some(Status::Ok) => Ok(()),
            status => Err(BenchError::Odd(format!("{request:?} ended with {status:?}"))),
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
        self.agent.enter(0, Some(step * u64::from(PLANES)));
        self.ask(Request::Step { lane: 0, step, seqs })?;
        for plane in 0..PLANES {
            let use_pos = step * u64::from(PLANES) + u64::from(plane);
            self.agent.enter(0, Some(use_pos));
            for &seq in seqs {
                for index in 0..self.seqs[seq as usize].len() {
                    let block = self.seqs[seq as usize][index];
                    while self.agent.table.frame(block, plane).is_none() {
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
                    self.agent.mark_read(0, block, plane);
                }
            }
        }
        self.agent.enter(0, None);
        self.ask(Request::StepEnd { lane: 0, step })
    }
}
