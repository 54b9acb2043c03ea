//! The core with everything around it, which checks what the core asks for.

use crate::agent::installed;
use crate::{Agent, Disk, Log, Node, Recorded, Transfer};
use kvtide_tiering::api::*;
use kvtide_tiering::{ActionBuf, Core, Error, Recorder};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    pub status: Status,
    pub value: u64,
    pub list: Vec<u32>,
}

pub struct World {
    pub core: Core,
    pub recorder: Option<Recorder>,
    pub buf: ActionBuf,
    pub now: u64,
    pub agents: BTreeMap<SessionId, Agent>,
    pub host: BTreeMap<(u32, u32), u64>,
    /// Requests without a completion: session and tag.
    pub pending: BTreeSet<(SessionId, u16)>,
    /// The last completion of each tag.
    pub done: BTreeMap<(SessionId, u16), Done>,
    pub node: Node,
    pub disk: Disk,
    pub log: Log,
    /// Execute log requests when no other event is pending.
    pub eager_log: bool,
    /// Every grant of NVMe space changes the write budget, as in the daemon.
    pub rates: bool,
    pub gone: Vec<SessionId>,
    /// Sessions that the core asked the daemon to end.
    pub overdrawn: Vec<SessionId>,
    /// Execute jobs as soon as they are sent.
    pub eager: bool,
    /// Statuses with which the next jobs end without being executed.
    pub fail_next: VecDeque<Status>,
    /// Check the core's invariants after every event.
    pub checks: bool,
    /// Pages for which a step had to fault.
    pub faults: u64,
    tag: u16,
    content: u64,
}

impl World {
    pub fn new(cfg: SpaceConfig) -> World {
        let core = Core::new(cfg).unwrap();
        let classes = core.classes().len();
        World {
            core,
            recorder: None,
            buf: ActionBuf::new(64, 1024),
            now: 1,
            agents: BTreeMap::new(),
            host: BTreeMap::new(),
            pending: BTreeSet::new(),
            done: BTreeMap::new(),
            node: Node::new(vec![1 << 20; classes], 64),
            disk: Disk::default(),
            log: Log::default(),
            eager_log: true,
            rates: false,
            gone: Vec::new(),
            overdrawn: Vec::new(),
            eager: true,
            fail_next: VecDeque::new(),
            checks: true,
            faults: 0,
            tag: 0,
            content: 0,
        }
    }

    /// Create a world with one size class: host frames of the node and of a slab, NVMe slots of the node and of a slab.
    pub fn sized(cfg: SpaceConfig, host: (u32, u32), nvme: (u32, u32)) -> World {
        let mut w = World::new(cfg);
        w.node = Node::new(vec![host.0], host.1);
        (w.disk.node_slots, w.disk.slab_slots) = nvme;
        w
    }

    /// Record all inputs from here on.
    pub fn record(&mut self, bytes_max: usize) {
        self.recorder = Some(Recorder::new(&self.core, bytes_max));
    }

    pub fn dump(&self) -> Vec<u8> {
        self.recorder.as_ref().unwrap().dump(&self.core).unwrap()
    }

    /// End the `at`th transfer in flight as the disk does.
    pub fn run_io(&mut self, at: usize) -> bool {
        let Some(t) = self.disk.take(at) else { return false };
        let (status, bad) = self.disk.carry_out(&t, &mut self.host);
        self.end_io(t.id, status, &bad);
        true
    }

    /// End the `at`th log request in flight as its log does.
    pub fn run_log_request(&mut self, at: usize) -> bool {
        let Some(request) = self.log.flight.remove(at) else { return false };
        let dead = self.disk.dead.contains(&request.slab());
        let status = if dead { Status::Io } else { self.log.carry_out(&request) };
        self.end_log_request(request.id, status);
        true
    }

    pub fn end_log_request(&mut self, id: u32, status: Status) {
        self.handle(Event::LogDone { id, status }).unwrap();
        self.take_actions();
        self.check();
    }

    fn check(&self) {
        if self.checks {
            self.core.check().unwrap();
        }
    }

    /// Restart the daemon: the recorded blocks are restored, parents first.
    pub fn restart(&mut self, node_frames: Vec<u32>) {
        let cfg = self.core.config().clone();
        let disk = std::mem::take(&mut self.disk);
        let log = std::mem::take(&mut self.log);
        let (eager, slab_frames) = ((self.eager, self.eager_log), self.node.slab_frames);
        *self = World { buf: self.buf.clone(), now: self.now, tag: self.tag, content: self.content, ..World::new(cfg) };
        self.buf.clear();
        (self.eager, self.eager_log) = eager;
        (self.node, self.disk, self.log) = (Node::new(node_frames, slab_frames), disk, log);
        self.disk.flight.clear();
        self.disk.starts += 1;
        self.log.flight.clear();
        let generation = self.disk.starts << 16;
        for (slab, slots) in self.disk.slabs.clone() {
            let disk = self.disk.disk_of(slab);
            self.handle(Event::DiskAdopted { slab, slots, disk, generation }).unwrap();
        }
        let mut left: Vec<_> = self.log.records.clone().into_iter().collect();
        let mut told = BTreeSet::new();
        loop {
            let before = left.len();
            left.retain(|((slab, slot), r)| {
                let ready = r.parent == 0 || told.contains(&(r.shard, r.parent));
                if ready {
                    told.insert((r.shard, r.hash));
                    self.restore(*slab, *slot, r);
                }
                !ready
            });
            if left.len() == before {
                break;
            }
        }
        // Unreachable blocks come last.
        left.iter().for_each(|((slab, slot), r)| self.restore(*slab, *slot, r));
        self.settle();
    }

    fn restore(&mut self, slab: u32, slot: u32, r: &Recorded) {
        let at = DiskSlot { slab, slot, generation: r.generation };
        let (shard, hash, parent, planes) = (r.shard, r.hash, r.parent, &r.planes[..]);
        self.handle(Event::Restored { at, shard, hash, parent, planes }).unwrap();
        self.take_actions();
    }

    /// Take the disk of a slab out of service.
    pub fn kill_disk(&mut self, slab: u32) {
        self.disk.kill(slab);
        self.log.records.retain(|key, _| key.0 != slab);
        self.handle(Event::DiskGone { slab }).unwrap();
        self.disk.slabs.remove(&slab);
        self.settle();
    }

    pub fn end_io(&mut self, id: u32, status: Status, bad: &[u32]) {
        self.handle(Event::IoDone { id, status, bad }).unwrap();
        self.take_actions();
        self.check();
    }

    fn handle(&mut self, event: Event<'_>) -> Result<(), Error> {
        match event {
            Event::Request { session, tag, .. } => _ = self.pending.insert((session, tag)),
            Event::SessionLost { session } => self.pending.retain(|asked| asked.0 != session),
            _ => {}
        }
        match &mut self.recorder {
            Some(r) => r.handle(&mut self.core, self.now, event, &mut self.buf),
            None => self.core.handle(self.now, event, &mut self.buf),
        }
    }

    pub fn attach(&mut self, session: SessionId, lanes: u16, frames: &[u32]) {
        self.attach_shard(session, 0, lanes, frames).unwrap();
    }

    pub fn attach_shard(&mut self, session: SessionId, shard: u16, lanes: u16, frames: &[u32]) -> Result<(), Error> {
        self.handle(Event::Attach { session, shard, lanes, frames })?;
        let (frames, mapped) = frames.split_at(self.core.classes().len());
        let agent = Agent::new(self.core.config(), lanes, frames, mapped);
        self.agents.insert(session, agent);
        self.settle();
        Ok(())
    }

    pub fn event(&mut self, event: Event<'_>) -> Result<(), Error> {
        let r = self.handle(event);
        self.settle();
        r
    }

    /// Send a request; its tag identifies the completion.
    pub fn ask(&mut self, session: SessionId, request: Request<'_>) -> u16 {
        self.ask_for(session, request, 0)
    }

    pub fn ask_for(&mut self, session: SessionId, request: Request<'_>, timeout_us: u64) -> u16 {
        self.tag += 1;
        let tag = self.tag;
        let e = Event::Request { session, channel: 0, tag, timeout_us, request };
        self.handle(e).unwrap();
        self.settle();
        tag
    }

    /// Ask for a store of blocks with new contents, the engine's own from 0 on, after `first` blocks that end with `parent`.
    pub fn ask_store(
        &mut self,
        session: SessionId,
        (first, parent): (u32, u128),
        hashes: &[u128],
        level: Level,
        timeout_us: u64,
    ) -> u16 {
        let engine: Vec<u32> = (0..hashes.len() as u32).collect();
        engine.iter().for_each(|&block| _ = self.write_engine(session, block));
        self.ask_for(session, Request::StoreBlocks { first, parent, hashes, engine: &engine, level }, timeout_us)
    }

    /// Store blocks, which ends at once.
    pub fn store(&mut self, session: SessionId, after: (u32, u128), hashes: &[u128], level: Level) {
        let tag = self.ask_store(session, after, hashes, level, 0);
        assert_eq!(self.answer(session, tag).map(|done| done.status), Some(Status::Ok), "a store");
    }

    /// Let time pass.
    pub fn pass(&mut self, us: u64) {
        self.now += us;
        self.event(Event::Tick).unwrap();
    }

    /// Return the completion of a request, if there is one.
    pub fn answer(&self, session: SessionId, tag: u16) -> Option<Done> {
        self.done.get(&(session, tag)).cloned()
    }

    /// Let all timers fire that are due until then.
    pub fn run_timers(&mut self, end: u64) {
        while let Some(at) = self.core.next_deadline().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.event(Event::Tick).unwrap();
        }
    }

    /// Return how many blocks of a prefix a lookup finds.
    pub fn found(&mut self, session: SessionId, hashes: &[u128]) -> u64 {
        self.ok(session, Request::Lookup { hashes, asked: 0, range: 0 }).value & 0xffff
    }

    /// Send a request and expect its completion at once.
    pub fn call(&mut self, session: SessionId, request: Request<'_>) -> Done {
        let tag = self.ask(session, request);
        self.answer(session, tag).unwrap_or_else(|| panic!("no answer to {request:?}"))
    }

    pub fn ok(&mut self, session: SessionId, request: Request<'_>) -> Done {
        let done = self.call(session, request);
        assert_eq!(done.status, Status::Ok, "{request:?}");
        done
    }

    /// Process the core's actions and, when eager, execute jobs, until no event is pending.
    pub fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 100_000, "the core goes on for ever");
            self.take_actions();
            self.check();
            if self.eager && self.run_one_of_each() | self.run_io(0) || self.eager_log && self.run_log_request(0) {
                continue;
            }
            if !self.core.has_output() {
                return;
            }
            match &mut self.recorder {
                Some(r) => r.poll(&mut self.core, self.now, &mut self.buf),
                None => self.core.poll(self.now, &mut self.buf),
            }
        }
    }

    fn run_one_of_each(&mut self) -> bool {
        let sessions: Vec<_> = self.agents.keys().copied().collect();
        sessions.into_iter().filter(|&s| self.run_job(s)).count() > 0
    }

    fn take_actions(&mut self) {
        while !self.buf.is_empty() {
            let taken = self.buf.clone();
            self.buf.clear();
            taken.actions().iter().for_each(|&action| self.take(action, &taken));
        }
    }

    fn take(&mut self, action: Action, buf: &ActionBuf) {
        match action {
            Action::Job { session, id, job } => {
                let agent = self.agents.get_mut(&session).expect("jobs go to live sessions");
                assert!(agent.jobs.iter().all(|&(other, _)| other != id), "job ids are unique in flight");
                agent.jobs.push_back((id, job));
            }
            Action::Complete { session, tag, status, value, list, .. } => {
                assert!(self.pending.remove(&(session, tag)), "a request completes once");
                self.done.insert((session, tag), Done { status, value, list: buf.list(list).to_vec() });
            }
            Action::NeedSlab { class } => {
                let event = self.node.grant(class);
                self.handle(event).unwrap();
            }
            Action::ReturnSlab { slab } => self.node.take_back(slab),
            Action::NeedDisk { disk } => {
                let event = self.disk.grant(disk);
                self.handle(event).unwrap();
                if self.rates {
                    let Limits { host_bytes_max, nvme_bytes_max, .. } = self.core.config().limits;
                    let nvme_bytes_per_day = (1 << 40) + u64::from(self.disk.granted);
                    let policy = Policy { nvme_bytes_per_day, ..self.core.config().policy };
                    self.handle(Event::Reconfigure { policy, host_bytes_max, nvme_bytes_max }).unwrap();
                }
            }
            Action::ReturnDisk { slab } => self.disk.take_back(slab),
            Action::Io { id, kind, class, at, list } => {
                let transfer = Transfer::new(id, kind, class, at, buf.list(list));
                if kind == IoKind::Read {
                    transfer.pages.iter().for_each(|&(_, place)| self.written(place));
                    // The device may write from now on.
                    transfer.pages.iter().for_each(|&(_, place)| _ = self.host.insert(place, 0));
                }
                if kind == IoKind::Write {
                    self.log.written(at);
                }
                self.disk.begin(transfer);
            }
            Action::Record { list, .. } => self.log.begin(action, buf.list(list), &self.disk),
            Action::Erase { .. } | Action::Flush { .. } => self.log.begin(action, &[], &self.disk),
            Action::Urge { id, class } => self.disk.urge(id, class),
            Action::EndSession { session, .. } => self.overdrawn.push(session),
            Action::SessionGone { session } => self.gone.push(session),
        }
    }

    /// Execute the session's oldest job that need not wait for a lane.
    pub fn run_job(&mut self, s: SessionId) -> bool {
        let Some((id, job)) = self.agents.get_mut(&s).unwrap().next_job() else { return false };
        let status = match self.fail_next.pop_front() {
            Some(status) if status != Status::Ok => status,
            _ => match job {
                Job::Cancel { job } => self.cancel_job(s, job),
                _ => {
                    self.carry_out(s, job);
                    Status::Ok
                }
            },
        };
        self.end_job(s, id, status);
        true
    }

    /// Check, before a host frame gets other content, that no mapped frame shows it.
    fn written(&self, place: (u32, u32)) {
        for (s, agent) in &self.agents {
            assert!(
                agent.in_place().all(|at| at != place),
                "{place:?} is overwritten, session {s} shows it in a mapped frame"
            );
        }
    }

    /// Cancel a job that was not executed; its victim stays installed.
    fn cancel_job(&mut self, s: SessionId, id: u32) -> Status {
        if !self.agents.get_mut(&s).unwrap().withdraw(id) {
            return Status::Busy;
        }
        self.end_job(s, id, Status::Canceled);
        Status::Ok
    }

    pub fn end_job(&mut self, session: SessionId, job: u32, status: Status) {
        self.handle(Event::JobDone { session, job, status }).unwrap();
        self.take_actions();
        self.check();
    }

    pub fn carry_out(&mut self, s: SessionId, job: Job) {
        self.content += 1;
        if let Job::CopyOut { to, .. } | Job::Gather { to, .. } = job {
            self.written((to.slab, to.slot));
        }
        let agent = self.agents.get_mut(&s).unwrap();
        agent.check(job);
        let content = match job {
            Job::Install { .. } => self.content,
            Job::CopyIn { from, .. } | Job::CopyInAs { from, .. } | Job::Scatter { from, .. } => {
                self.host[&(from.slab, from.slot)]
            }
            Job::Copy { from: frame, .. } | Job::Move { from: frame, .. } | Job::CopyOut { frame, .. } => {
                agent.frames[&frame]
            }
            Job::Gather { engine, plane, .. } => {
                *agent.engine.get(&(engine, plane)).expect("an engine's block that is stored has content")
            }
            Job::Drop { .. } | Job::Evict { .. } | Job::Cancel { .. } => 0,
        };
        match job {
            Job::CopyIn { frame, from, .. } => _ = agent.aliases.insert(frame, (from.slab, from.slot)),
            Job::CopyOut { to, .. } | Job::Gather { to, .. } => _ = self.host.insert((to.slab, to.slot), content),
            Job::Scatter { engine, plane, .. } => _ = agent.engine.insert((engine, plane), content),
            _ => {}
        }
        let before = agent.table.apply(job);
        if let Some((_, _, frame)) = installed(job) {
            agent.frames.insert(frame, content);
            let moved = if let Job::Move { from, .. } = job { Some(from) } else { None };
            assert_eq!(before, moved, "{job:?} publishes a page that another frame shows");
        }
    }

    /// Fail a job after the frame's page was invalidated.
    pub fn fail(&mut self, s: SessionId, job: Job) {
        let agent = self.agents.get_mut(&s).unwrap();
        match job {
            Job::Install { frame, .. }
            | Job::CopyIn { frame, .. }
            | Job::Copy { frame, .. }
            | Job::CopyInAs { frame, .. } => {
                agent.table.empty(frame);
                agent.frames.insert(frame, 0);
            }
            Job::Move { frame, .. } => _ = agent.frames.insert(frame, 0),
            Job::CopyOut { to, .. } | Job::Gather { to, .. } => _ = self.host.insert((to.slab, to.slot), 0),
            Job::Scatter { engine, plane, .. } => _ = agent.engine.insert((engine, plane), 0),
            Job::Drop { .. } | Job::Evict { .. } | Job::Cancel { .. } => {}
        }
    }

    /// Write new content into a page that the engine is filling.
    pub fn write(&mut self, s: SessionId, block: BlockId, plane: u16) -> u64 {
        self.content += 1;
        let agent = self.agents.get_mut(&s).unwrap();
        let frame = agent.table.frame(block, plane).unwrap();
        agent.frames.insert(frame, self.content);
        self.content
    }

    /// Write new content into a block of the engine's own memory.
    pub fn write_engine(&mut self, s: SessionId, engine: u32) -> Vec<u64> {
        let planes = self.core.config().planes.len() as u16;
        let contents: Vec<u64> = (0..planes).map(|plane| self.content + 1 + u64::from(plane)).collect();
        self.content += u64::from(planes);
        self.put_engine(s, engine, &contents);
        contents
    }

    /// Set the contents of a block of the engine's own memory, by plane.
    pub fn put_engine(&mut self, s: SessionId, engine: u32, contents: &[u64]) {
        let memory = &mut self.agents.get_mut(&s).unwrap().engine;
        memory.extend((0..).zip(contents).map(|(plane, &content)| ((engine, plane), content)));
    }

    /// Return the content of a block of the engine's own memory; `None`: never written.
    pub fn read_engine(&self, s: SessionId, engine: u32, plane: u16) -> Option<u64> {
        self.agents[&s].engine.get(&(engine, plane)).copied()
    }

    /// Return the content that a lane would read.
    pub fn read(&self, s: SessionId, block: BlockId, plane: u16) -> Option<u64> {
        let agent = &self.agents[&s];
        let frame = agent.table.frame(block, plane)?;
        Some(if agent.is_mapped_frame(frame) { self.host[&agent.aliases[&frame]] } else { agent.frames[&frame] })
    }

    /// Reserve, fill and commit `blocks` blocks one after another; return their ids and contents by plane.
    pub fn fill(&mut self, s: SessionId, seq: SeqId, blocks: u32, planes: u16) -> Vec<(BlockId, Vec<u64>)> {
        let tokens = u64::from(self.core.config().page_tokens);
        let mut out = Vec::new();
        let before = self.core.seq_tokens(s, seq).unwrap();
        for i in 0..u64::from(blocks) {
            let done = self.ok(s, Request::Reserve { seq, count: 1 });
            let block = done.list[0];
            let contents = (0..planes).map(|p| self.write(s, block, p)).collect();
            self.ok(s, Request::Commit { seq, tokens: before + (i + 1) * tokens });
            out.push((block, contents));
        }
        out
    }

    /// Run the boundaries of one plane: each reads the readable pages; one without a new page faults for the first missing page.
    fn read_plane(
        &mut self,
        s: SessionId,
        lane: LaneId,
        use_pos: u64,
        seq: SeqId,
        pages: &[(BlockId, Vec<u64>)],
        plane: u16,
    ) {
        let mut left: BTreeSet<_> = (0..pages.len()).collect();
        while let Some(&first) = left.first() {
            let ready: Vec<_> = left.iter().copied().filter(|&i| self.read(s, pages[i].0, plane).is_some()).collect();
            if ready.is_empty() {
                self.faults += 1;
                self.ok(s, Request::Fault { lane, use_pos, seq, index: first as u32, plane, whole: false });
            }
            for i in ready {
                let (block, contents) = &pages[i];
                assert_eq!(self.read(s, *block, plane), Some(contents[usize::from(plane)]));
                self.agents.get_mut(&s).unwrap().mark_read(lane, *block, plane);
                left.remove(&i);
            }
            // The next boundary: pages that were read may be evicted.
            self.settle();
        }
    }

    /// Move a lane to a position of a step, or out of its step.
    pub fn enter(&mut self, s: SessionId, lane: LaneId, at: Option<u64>) {
        self.agents.get_mut(&s).unwrap().enter(lane, at);
    }

    /// Run one step of a lane: read every page in order of use, fault for missing ones, and check the contents. Return how many
    /// pages were loaded meanwhile.
    pub fn step(
        &mut self,
        s: SessionId,
        lane: u16,
        step: u64,
        seq: SeqId,
        pages: &[(BlockId, Vec<u64>)],
        planes: u16,
    ) -> u64 {
        let before = self.core.counters().host_to_tier0.total_pages();
        self.enter(s, lane, Some(step * u64::from(planes)));
        self.ok(s, Request::Step { lane, step, seqs: &[seq] });
        for plane in 0..planes {
            let use_pos = step * u64::from(planes) + u64::from(plane);
            self.enter(s, lane, Some(use_pos));
            self.read_plane(s, lane, use_pos, seq, pages, plane);
        }
        self.enter(s, lane, None);
        self.ok(s, Request::StepEnd { lane, step });
        self.core.counters().host_to_tier0.total_pages() - before
    }
}
