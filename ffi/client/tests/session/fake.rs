//! The small daemon: one session, one size class, no policy. It runs on its own thread and takes commands over a channel.

use kvtide_client::{Channel, Client, Options, SpaceSpec};
use kvtide_wire::{
    entry::{Completion, Job, JobDone, JobKind, NONE_U16, NONE_U32, Op, SAMPLED, Submission},
    geometry::Plane,
    hello::{Hello, Limits, MESSAGE_MAX, Protocol, Slab, SlabGone, Welcome},
    layout::Shape,
    lists::List,
    os::{
        memfd::Memfd,
        poll,
        session::DaemonSide,
        socket::{Listener, Socket},
    },
    score::Scores,
    status::Status,
};
use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    os::{fd::AsFd, unix::fs::FileExt},
    path::PathBuf,
    sync::mpsc::{Receiver, Sender, TryRecvError, channel},
    thread::JoinHandle,
    time::Duration,
};

pub const PLANES: u16 = 2;
pub const PAGE: usize = 1000;
pub const TOKENS: u64 = 16;
pub const FRAMES: u32 = 24;
const STRIDE: u32 = 1024;
pub const SLOTS: u32 = 64;
const SLAB: u32 = 3;
/// Bytes of the slab.
#[allow(dead_code)] // for tests on a device
pub const SLAB_BYTES: u64 = (SLOTS * STRIDE) as u64;
/// Limit of every wait in a test.
pub const LONG: Duration = Duration::from_secs(20);

/// Command of a test to the daemon.
pub enum Command {
    /// Store a page to host memory, then evict it from tier 0. Waits for the end of its load. Answers with the status of the eviction.
    Evict { block: u32, plane: u16, answer: Sender<Status> },
    /// Flip a bit of a page in host memory.
    Flip { block: u32, plane: u16, byte: u64, answer: Sender<()> },
    /// Store a page to host memory. Answers with the job's status.
    #[allow(dead_code)] // for tests on a device
    Store { block: u32, plane: u16, answer: Sender<Status> },
    /// Load a page from host memory into a frame that shows another. Answers with the job's status.
    #[allow(dead_code)] // for tests on a device
    LoadOver { block: u32, plane: u16, frame: u32, victim: (u32, u16), answer: Sender<Status> },
    /// Send a job unchanged. Answers with its status.
    Job { job: Job, answer: Sender<Status> },
    /// Return lane 0's attention scores.
    Scores(Sender<Vec<Scores>>),
    /// Answer the next request of this kind with this script.
    Answer { op: Op, with: Script },
    /// Grant the slab of host frames, of which nothing is used yet.
    #[allow(dead_code)] // for tests on a device
    Slab,
    /// Take the slab of host frames away.
    #[allow(dead_code)] // for tests on a device
    SlabGone,
    /// Push a completion that matches no request.
    Stray(Completion),
    /// Close everything at once.
    Die,
}

/// Answer that the daemon gives to a request in place of the correct one.
#[derive(Clone, Debug)]
pub enum Script {
    /// Reject the request with this status.
    Status(Status),
    /// Send this completion and list, whatever they mean.
    Raw(Completion, Vec<u32>),
    /// Never answer.
    Silence,
}

pub struct Fake {
    pub socket: PathBuf,
    commands: Sender<Command>,
    hellos: Receiver<Hello>,
    thread: Option<JoinHandle<Vec<Submission>>>,
    _dir: tempfile::TempDir,
}

fn planes() -> Vec<Plane> {
    vec![Plane::full(PAGE as u32); usize::from(PLANES)]
}

pub fn options(socket: PathBuf) -> Options {
    let space = SpaceSpec::new("test", [1; 32], TOKENS as u32, planes());
    Options {
        lanes: 2,
        depth: 8,
        seqs_max: 8,
        timeout: Duration::from_secs(5),
        ..Options::new(socket, space, vec![FRAMES])
    }
}

/// Start a daemon and attach to it.
pub fn attached() -> (Fake, Client, Channel) {
    let fake = Fake::start();
    let client = fake.attach();
    let channel = client.channel(0).expect("channel");
    (fake, client, channel)
}

impl Fake {
    pub fn start() -> Fake {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("socket");
        let listener = Listener::bind(&socket, 0o600).expect("listen");
        let ((commands, inbox), (greeted, hellos)) = (channel(), channel());
        let thread = std::thread::spawn(move || Core::serve(&listener, inbox, &greeted));
        Fake { socket, commands, hellos, thread: Some(thread), _dir: dir }
    }

    pub fn attach(&self) -> Client {
        Client::attach(options(self.socket.clone())).expect("attach")
    }

    /// Return the client's Hello.
    pub fn hello(&self) -> Hello {
        self.hellos.recv_timeout(LONG).expect("a client attached")
    }

    pub fn tell(&self, command: Command) {
        self.commands.send(command).expect("the daemon listens");
    }

    pub fn evict(&self, block: u32, plane: u16) -> Status {
        let (answer, ended) = channel();
        self.tell(Command::Evict { block, plane, answer });
        ended.recv_timeout(LONG).expect("the eviction ends")
    }

    pub fn flip(&self, block: u32, plane: u16, byte: usize) {
        let (answer, flipped) = channel();
        self.tell(Command::Flip { block, plane, byte: byte as u64, answer });
        flipped.recv_timeout(LONG).expect("the bit is flipped");
    }

    /// Store a page to host memory. Does not wait for the job's end.
    #[allow(dead_code)] // for tests on a device
    pub fn store(&self, block: u32, plane: u16) -> Receiver<Status> {
        let (answer, ended) = channel();
        self.tell(Command::Store { block, plane, answer });
        ended
    }

    /// Load a page from host memory into a frame that shows another. Does not wait for the job's end.
    #[allow(dead_code)] // for tests on a device
    pub fn load_over(&self, block: u32, plane: u16, frame: u32, victim: (u32, u16)) -> Receiver<Status> {
        let (answer, ended) = channel();
        self.tell(Command::LoadOver { block, plane, frame, victim, answer });
        ended
    }

    /// Return the attention scores that lane 0 has sent since the last call.
    pub fn scores(&self) -> Vec<Scores> {
        let (answer, read) = channel();
        self.tell(Command::Scores(answer));
        read.recv_timeout(LONG).expect("scores are read")
    }

    pub fn job(&self, job: Job) -> Status {
        let (answer, ended) = channel();
        self.tell(Command::Job { job, answer });
        ended.recv_timeout(LONG).expect("the job ends")
    }

    /// End the daemon. Return the requests that the engine had sent until then.
    pub fn die(&mut self) -> Vec<Submission> {
        let _ = self.commands.send(Command::Die); // it may have ended already
        self.thread.take().map(|thread| thread.join().expect("the daemon does not panic")).unwrap_or_default()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.die();
    }
}

/// Build a job with all optional fields unset.
pub fn job(kind: JobKind, block: u32, plane: u16, frame: u32) -> Job {
    Job {
        kind: kind as u16,
        block,
        plane,
        frame,
        victim_block: NONE_U32,
        use_lane: NONE_U16,
        slab: SLAB,
        ..Job::default()
    }
}

/// Continuation after a job's end.
enum Then {
    /// One of the jobs of this request.
    Request(u16, u16),
    Evict(u32, u16, Sender<Status>),
    Tell(Sender<Status>),
}

struct Pending {
    jobs: usize,
    completion: Completion,
    list: Vec<u32>,
}

struct Core {
    side: DaemonSide,
    socket: Socket,
    seen: Vec<Submission>,
    frames: BTreeMap<(u32, u16), u32>,
    free: Vec<u32>,
    host: HashMap<(u32, u16), u32>,
    /// Digest of the page in each host frame when it was stored.
    digests: HashMap<u32, u32>,
    seqs: HashMap<u32, Vec<u32>>,
    next_block: u32,
    next_slot: u32,
    next_job: u32,
    jobs: HashMap<u32, (Job, Then)>,
    pending: HashMap<(u16, u16), Pending>,
    scripts: Vec<(Op, Script)>,
    slab: Option<Memfd>,
    inbox: Receiver<Command>,
    /// Evictions that wait for the end of a load.
    later: Vec<Command>,
    dead: bool,
}

impl Core {
    fn serve(listener: &Listener, inbox: Receiver<Command>, greeted: &Sender<Hello>) -> Vec<Submission> {
        let socket = loop {
            if poll::readable(&[listener.as_fd()], Duration::from_millis(20)).expect("poll") != 0
                && let Some(socket) = listener.accept().expect("accept")
            {
                break socket;
            }
            if let Ok(Command::Die) = inbox.try_recv() {
                return Vec::new();
            }
        };
        let mut buffer = vec![0; MESSAGE_MAX];
        let (len, _) = socket.receive_within(&mut buffer, 0, LONG).expect("hello");
        let hello = Hello::decode(&buffer[..len]).expect("decode");
        let _ = greeted.send(hello.clone()); // the test may have ended
        let shape = Shape { channels: hello.channels, depth: hello.depth, jobs: 16, lanes: hello.lanes };
        let limits = Limits {
            shape,
            blocks_max: 40,
            seqs_max: hello.seqs_max,
            seq_blocks_max: 20,
            request_timeout_us: 5_000_000,
        };
        let protocol = Protocol::ours(0).common(hello.protocol);
        let (side, fds) = DaemonSide::create(shape, protocol.version).expect("daemon's side");
        socket.send(&Welcome::accept(1, protocol, limits).expect("welcome").encode(), &fds.as_fds()).expect("send");
        drop(fds);
        let mut core = Core {
            side,
            socket,
            seen: Vec::new(),
            frames: BTreeMap::new(),
            free: (0..FRAMES).rev().collect(),
            host: HashMap::new(),
            digests: HashMap::new(),
            seqs: HashMap::new(),
            next_block: 0,
            next_slot: 0,
            next_job: 1,
            jobs: HashMap::new(),
            pending: HashMap::new(),
            scripts: Vec::new(),
            slab: None,
            inbox,
            later: Vec::new(),
            dead: false,
        };
        loop {
            core.commands();
            if core.dead {
                return core.seen;
            }
            if !core.turn() {
                let fds = [core.side.bell.as_fd(), core.socket.as_fd()];
                core.side.sleeper.announce();
                kvtide_wire::wake::announced();
                // Commands come without a doorbell, so sleep only briefly; requests ring it.
                poll::readable(&fds, Duration::from_millis(1)).expect("poll");
                core.side.sleeper.awake();
                core.side.bell.quiet();
            }
        }
    }

    /// Take the test's commands.
    fn commands(&mut self) {
        loop {
            match self.inbox.try_recv() {
                Ok(command) => self.command(command),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.dead = true;
                    return;
                }
            }
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Evict { block, plane, answer } => {
                let Some(frame) = self.frames.get(&(block, plane)).copied() else {
                    // The engine may read a page before the end of its load is reported.
                    match self.loads(block, plane) {
                        true => self.later.push(Command::Evict { block, plane, answer }),
                        false => drop(answer.send(Status::NotFound)),
                    }
                    return;
                };
                let slot = self.slot();
                self.host.insert((block, plane), slot);
                let store = Job { slot, flags: SAMPLED, ..job(JobKind::CopyOut, block, plane, frame) };
                self.send(store, Then::Evict(block, plane, answer));
            }
            Command::Flip { block, plane, byte, answer } => {
                let memfd = self.slab.as_ref().expect("a slab");
                let file = File::from(memfd.as_fd().try_clone_to_owned().expect("a descriptor"));
                let (at, mut flipped) = (u64::from(self.host[&(block, plane)] * STRIDE) + byte, [0]);
                file.read_exact_at(&mut flipped, at).expect("read");
                flipped[0] ^= 1 << (byte % 8);
                file.write_all_at(&flipped, at).expect("write");
                answer.send(()).expect("the test waits");
            }
            Command::Store { block, plane, answer } => {
                let slot = self.slot();
                let frame = self.frames[&(block, plane)];
                self.send(Job { slot, ..job(JobKind::CopyOut, block, plane, frame) }, Then::Tell(answer));
            }
            Command::LoadOver { block, plane, frame, victim, answer } => {
                let slot = self.host[&(block, plane)];
                let load = Job {
                    slot,
                    flags: SAMPLED,
                    digest: self.digests[&slot],
                    ..job(JobKind::CopyIn, block, plane, frame)
                };
                self.frames.remove(&victim);
                self.send(Job { victim_block: victim.0, victim_plane: victim.1, ..load }, Then::Tell(answer));
            }
            Command::Job { job, answer } => self.send(job, Then::Tell(answer)),
            Command::Scores(answer) => {
                let scores = &mut self.side.scores[0];
                let _ = answer.send(std::iter::from_fn(|| scores.read()).collect());
            }
            Command::Answer { op, with } => self.scripts.push((op, with)),
            Command::Slab => self.grant(),
            Command::SlabGone => {
                self.socket.send(&SlabGone { slab: SLAB }.encode(), &[]).expect("send");
            }
            Command::Stray(completion) => {
                self.side.channels[0].completions.push(&completion).expect("room");
                self.side.channels[0].waker.wake();
            }
            Command::Die => self.dead = true,
        }
    }

    /// Report whether a page is being loaded.
    fn loads(&self, block: u32, plane: u16) -> bool {
        self.jobs
            .values()
            .any(|(job, _)| job.kind == JobKind::CopyIn as u16 && (job.block, job.plane) == (block, plane))
    }

    /// Grant the slab of host frames, unless it is granted.
    fn grant(&mut self) {
        if self.slab.is_none() {
            let memfd = Memfd::shared("fake-slab", SLAB_BYTES).expect("memfd");
            let slab = Slab { slab: SLAB, class: 0, frames: SLOTS, stride: STRIDE, bytes: SLAB_BYTES };
            self.socket.send(&slab.encode().expect("slab"), &[memfd.as_fd()]).expect("send");
            self.slab = Some(memfd);
        }
    }

    /// Return a host frame. The slab is granted with the first one.
    fn slot(&mut self) -> u32 {
        self.grant();
        self.next_slot += 1;
        self.next_slot - 1
    }

    fn send(&mut self, job: Job, then: Then) {
        let job = Job { id: self.next_job, ..job };
        self.next_job += 1;
        self.jobs.insert(job.id, (job, then));
        self.side.jobs.push(&job).expect("room for a job");
        self.side.copy_loop.wake();
    }

    fn turn(&mut self) -> bool {
        let mut any = false;
        while let Some(done) = self.side.done.pop().expect("index") {
            any = true;
            self.job_done(&done);
            std::mem::take(&mut self.later).into_iter().for_each(|command| self.command(command));
        }
        for channel in 0..self.side.channels.len() {
            // The job ring of 16 holds the jobs of a few requests.
            while self.jobs.len() < 8
                && let Some(request) = self.side.channels[channel].submissions.pop().expect("index")
            {
                any = true;
                self.commands(); // commands that the test sent before this request
                if self.dead {
                    return true;
                }
                self.seen.push(request);
                self.request(channel as u16, &request);
            }
        }
        any
    }

    fn complete(&mut self, channel: u16, mut completion: Completion, list: &[u32]) {
        let side = &mut self.side.channels[usize::from(channel)];
        if completion.list_len == 0 {
            completion.list_len = side.answers.write(completion.tag, list).expect("list");
        }
        side.completions.push(&completion).expect("a slot for every request");
        side.waker.wake();
    }

    fn job_done(&mut self, done: &JobDone) {
        let (job, then) = self.jobs.remove(&done.id).expect("a job of ours");
        let status = Status::from_code(done.status).expect("a status");
        let kind = JobKind::from_code(job.kind);
        let page = (job.block, job.plane);
        if status == Status::Ok {
            match kind {
                Some(JobKind::Install | JobKind::CopyIn) => {
                    self.frames.insert(page, job.frame);
                }
                Some(JobKind::CopyOut) => {
                    assert_eq!(done.flags, job.flags, "a digest is reported if it was requested");
                    self.digests.insert(job.slot, done.digest);
                }
                Some(JobKind::Evict) => {
                    self.frames.remove(&page);
                    self.free.push(job.frame);
                }
                _ => {}
            }
        }
        if status == Status::Corrupt {
            assert_eq!((done.flags, job.digest == done.digest), (SAMPLED, false));
            self.free.push(job.frame); // the frame shows nothing
        }
        match then {
            Then::Tell(answer) => drop(answer.send(status)),
            Then::Evict(block, plane, answer) if kind == Some(JobKind::CopyOut) && status == Status::Ok => {
                let evict = super::fake::job(JobKind::Evict, block, plane, job.frame);
                self.send(evict, Then::Evict(block, plane, answer));
            }
            Then::Evict(_, _, answer) => drop(answer.send(status)),
            Then::Request(channel, tag) => {
                let pending = self.pending.get_mut(&(channel, tag)).expect("a request of ours");
                pending.jobs -= 1;
                if status != Status::Ok {
                    pending.completion.status = status.code();
                }
                if pending.jobs == 0 {
                    let Pending { completion, list, .. } = self.pending.remove(&(channel, tag)).expect("just seen");
                    self.complete(channel, completion, &list);
                }
            }
        }
    }

    fn wait_for(&mut self, channel: u16, completion: Completion, list: Vec<u32>, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return self.complete(channel, completion, &list);
        }
        let tag = completion.tag;
        self.pending.insert((channel, tag), Pending { jobs: jobs.len(), completion, list });
        for job in jobs {
            self.send(job, Then::Request(channel, tag));
        }
    }

    fn load(&mut self, block: u32, plane: u16) -> Option<Job> {
        if self.frames.contains_key(&(block, plane)) {
            return None;
        }
        let slot = self.host[&(block, plane)];
        let frame = self.free.pop().expect("a free frame");
        Some(Job { slot, flags: SAMPLED, digest: self.digests[&slot], ..job(JobKind::CopyIn, block, plane, frame) })
    }

    fn request(&mut self, channel: u16, request: &Submission) {
        let op = Op::from_code(request.op).expect("an operation");
        let ok = Completion::new(request.op, request.tag, Status::Ok);
        if let Some(at) = self.scripts.iter().position(|(wanted, _)| *wanted == op) {
            match self.scripts.remove(at).1 {
                Script::Silence => {}
                Script::Status(status) => self.complete(channel, Completion::new(request.op, request.tag, status), &[]),
                Script::Raw(completion, list) => {
                    match op {
                        Op::AttachPrefix => self.seqs.entry(request.seq).or_default().extend(&list),
                        Op::Fork => {
                            let shared = self.seqs.get(&request.seq).cloned().unwrap_or_default();
                            self.seqs.insert(request.block, shared);
                        }
                        _ => {}
                    }
                    self.complete(channel, Completion { tag: request.tag, ..completion }, &list);
                }
            }
            return;
        }
        match op {
            Op::Reserve => {
                let blocks: Vec<u32> = (self.next_block..self.next_block + request.count).collect();
                self.next_block += request.count;
                self.seqs.entry(request.seq).or_default().extend(&blocks);
                let pages = blocks.iter().flat_map(|block| (0..PLANES).map(|plane| (*block, plane)));
                let jobs: Vec<Job> = pages
                    .map(|(block, plane)| job(JobKind::Install, block, plane, self.free.pop().expect("a free frame")))
                    .collect();
                self.wait_for(channel, Completion { value: blocks.len() as u64, ..ok }, blocks, jobs);
            }
            Op::SeqDrop => {
                self.seqs.remove(&request.seq);
                self.complete(channel, ok, &[]);
            }
            Op::Fault => {
                let block = self.seqs[&request.seq][request.first as usize];
                let jobs = self.load(block, request.flags).into_iter().collect();
                self.wait_for(channel, ok, Vec::new(), jobs);
            }
            Op::Acquire => {
                let blocks = self.seqs[&request.seq].clone();
                let range = request.first as usize..(request.first + request.count) as usize;
                let planes = request.lane..request.lane + request.flags;
                let pages: Vec<(u32, u16)> =
                    blocks[range].iter().flat_map(|block| planes.clone().map(|plane| (*block, plane))).collect();
                let jobs = pages.into_iter().filter_map(|(block, plane)| self.load(block, plane)).collect();
                self.wait_for(channel, ok, Vec::new(), jobs);
            }
            Op::Tier0Resize => {
                self.free.retain(|frame| *frame < request.count);
                let held = |frame: &u32| self.frames.values().any(|held| held == frame) || self.free.contains(frame);
                let fresh: Vec<u32> = (0..request.count).filter(|frame| !held(frame)).collect();
                self.free.extend(fresh);
                self.complete(channel, Completion { value: request.count.into(), ..ok }, &[]);
            }
            Op::Declare => {
                let mut list = List::default();
                let requests = &self.side.channels[usize::from(channel)].requests;
                requests.copy_out(request.tag, request.list_len, &mut list).expect("list");
                let block = self.next_block + 7; // other ids than before
                self.next_block += 1;
                for (plane, frame) in list.words().iter().enumerate().filter(|(_, frame)| **frame != NONE_U32) {
                    self.frames.insert((block, plane as u16), *frame);
                    self.free.retain(|free| free != frame);
                }
                self.seqs.entry(request.seq).or_default().push(block);
                self.complete(channel, ok, &[block]);
            }
            _ => self.complete(channel, ok, &[]),
        }
    }
}

/// Create a sequence of `blocks` committed blocks, each page filled with [`byte`].
pub fn filled(client: &Client, channel: &mut Channel, lane: u16, blocks: u32) -> u32 {
    let seq = channel.create_seq().expect("create");
    let tokens = u64::from(blocks) * TOKENS;
    channel.reserve(seq, tokens, LONG).expect("reserve");
    let mut lane = client.lane(lane).expect("lane");
    lane.begin(&[kvtide_client::StepSeq { seq, tokens }]).expect("begin");
    for index in 0..blocks {
        for plane in 0..PLANES {
            lane.page_mut(seq, index, plane).expect("unsealed and resident").fill(byte(seq, index, plane));
        }
    }
    lane.end().expect("end");
    channel.commit(seq, tokens).expect("commit");
    seq
}

/// Return the byte that fills a page.
pub fn byte(seq: u32, index: u32, plane: u16) -> u8 {
    (seq * 97 + index * 13 + u32::from(plane) * 5 + 1) as u8
}
