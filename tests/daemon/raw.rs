//! An engine that speaks the wire itself, so that it can say what no client library would.

use crate::BOUND;
use kvtide_wire::entry::{Completion, Job, JobDone, JobKind, NONE_U32, Op, Submission};
use kvtide_wire::error::Error;
use kvtide_wire::geometry::PlaneSpec;
use kvtide_wire::hello::{Bye, FromDaemon, Hello, MESSAGE_MAX, Slab};
use kvtide_wire::lists::List;
use kvtide_wire::os::poll::readable;
use kvtide_wire::os::session::{EngineSide, attach};
use kvtide_wire::os::socket::{FDS_MAX, Received, Socket};
use kvtide_wire::status::Status;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of the one plane's page.
pub const PAGE_BYTES: u32 = 4096;
/// Frames of the raw engine's tier 0.
pub const FRAMES: u32 = 32;
/// Depth of its channels.
pub const DEPTH: u16 = 8;
/// How long a thread of this engine sleeps at most before it looks again on its own.
const NAP: Duration = Duration::from_millis(50);

/// What such an engine says first.
pub fn hello() -> Hello {
    Hello {
        features: 0,
        name: "raw".into(),
        fingerprint: [1; 32],
        page_tokens: 16,
        planes: vec![PlaneSpec { page_bytes: PAGE_BYTES, ..PlaneSpec::default() }],
        shards: 1,
        shard: 0,
        lanes: 1,
        channels: 2,
        depth: DEPTH,
        seqs_max: 8,
        tier0_frames: vec![FRAMES],
        host_windows: 0,
        token: None,
    }
}

/// A raw engine. Its agent ends every job at once, with success, and copies nothing: contents are others' business.
pub struct Raw {
    pub socket: Socket,
    pub side: EngineSide,
    pub slabs: Vec<Slab>,
    /// Their memory, kept whatever the daemon says of it later.
    pub memory: Vec<OwnedFd>,
    /// Jobs that it has seen, by kind.
    pub jobs: Vec<(JobKind, Job)>,
    pub bye: Option<Bye>,
    closed: bool,
}

impl Raw {
    /// Attaches with the usual hello.
    pub fn attach(path: &Path) -> Raw {
        Raw::attach_as(path, &hello()).unwrap()
    }

    /// Attaches with any hello.
    pub fn attach_as(path: &Path, hello: &Hello) -> Result<Raw, Error> {
        let (socket, _, _, side) = attach(path, hello, BOUND)?;
        Ok(Raw { socket, side, slabs: Vec::new(), memory: Vec::new(), jobs: Vec::new(), bye: None, closed: false })
    }

    /// Attaches as an engine that is about to fork: children inherit everything it shares with the daemon, as they do from a
    /// fork without exec. The copies are to be kept until the child has started.
    pub fn attach_inheritable(path: &Path) -> (Raw, Vec<OwnedFd>) {
        let socket = Socket::connect(path).unwrap();
        socket.send(&hello().encode().unwrap(), &[]).unwrap();
        let mut buffer = vec![0; MESSAGE_MAX];
        let (len, fds) = socket.receive_within(&mut buffer, FDS_MAX, BOUND).unwrap();
        let FromDaemon::Welcome(welcome) = FromDaemon::decode(&buffer[..len]).unwrap() else { panic!("no welcome") };
        // A plain dup is not close-on-exec.
        let mut copies: Vec<OwnedFd> = fds.iter().map(|fd| rustix::io::dup(fd).unwrap()).collect();
        copies.push(rustix::io::dup(&socket).unwrap());
        let side = EngineSide::new(&welcome.limits.unwrap(), fds).unwrap();
        (
            Raw { socket, side, slabs: Vec::new(), memory: Vec::new(), jobs: Vec::new(), bye: None, closed: false },
            copies,
        )
    }

    /// Hands a submission over and wakes the daemon.
    pub fn submit(&mut self, channel: usize, submission: &Submission) {
        let channel = &mut self.side.channels[channel];
        channel.submissions.push(submission).unwrap();
        channel.waker.wake();
    }

    /// Waits for the next completion of a channel, ending jobs meanwhile; `None` if the session ended first.
    pub fn completion(&mut self, channel: usize) -> Option<Completion> {
        self.wait(channel, true)
    }

    /// The same, with jobs left lying.
    pub fn completion_without_jobs(&mut self, channel: usize) -> Option<Completion> {
        self.wait(channel, false)
    }

    fn wait(&mut self, channel: usize, with_jobs: bool) -> Option<Completion> {
        let deadline = Instant::now() + BOUND;
        while Instant::now() < deadline {
            self.read_socket();
            if with_jobs {
                self.pump();
            }
            if let Some(completion) = self.side.channels[channel].completions.pop().unwrap() {
                return Some(completion);
            }
            if self.closed {
                return None;
            }
            let EngineSide { channels, pump, .. } = &mut self.side;
            let channel = &mut channels[channel];
            channel.sleeper.announce();
            pump.sleeper.announce();
            kvtide_wire::wake::announced();
            let jobs = with_jobs && pump.jobs.available().unwrap() > 0;
            if channel.completions.available().unwrap() == 0 && !jobs {
                readable(&[channel.bell.as_fd(), pump.bell.as_fd(), self.socket.as_fd()], NAP).unwrap();
            }
            channel.sleeper.awake();
            pump.sleeper.awake();
            channel.bell.quiet();
            pump.bell.quiet();
        }
        panic!("no completion on channel {channel} within {BOUND:?}");
    }

    /// A request and its answer.
    pub fn call(&mut self, submission: Submission) -> Completion {
        self.submit(0, &submission);
        let completion = self.completion(0).unwrap_or_else(|| panic!("the session ended: {:?}", self.bye));
        assert_eq!((completion.op, completion.tag), (submission.op, submission.tag));
        completion
    }

    /// The status of a request's answer.
    pub fn status(&mut self, submission: Submission) -> Status {
        Status::from_code(self.call(submission).status).unwrap()
    }

    /// The words of the last answer of a tag.
    pub fn answer(&self, completion: &Completion) -> Vec<u32> {
        let mut list = List::default();
        self.side.channels[0].answers.copy_out(completion.tag, completion.list_len, &mut list).unwrap();
        list.words().to_vec()
    }

    /// Waits until the daemon ends the session; what it said.
    pub fn expelled(&mut self) -> Option<Bye> {
        let deadline = Instant::now() + BOUND;
        while !self.closed {
            assert!(Instant::now() < deadline, "the daemon did not end the session within {BOUND:?}");
            self.read_socket();
            readable(&[self.socket.as_fd()], NAP).unwrap();
        }
        self.bye.clone()
    }

    /// Ends every job that has come.
    fn pump(&mut self) {
        let mut any = false;
        while let Some(job) = self.side.pump.jobs.pop().unwrap() {
            any = true;
            let kind = JobKind::from_code(job.kind).unwrap();
            self.jobs.push((kind, job));
            let copies = matches!(kind, JobKind::Load | JobKind::Store | JobKind::Copy | JobKind::LoadCopy);
            let bytes = if copies { PAGE_BYTES.into() } else { 0 };
            // It has no bytes to hash: whatever it says of a page's, it says again.
            let (flags, digest) = (job.flags, job.digest);
            let done = JobDone { id: job.id, status: Status::Ok.code(), bytes, flags, digest, ..JobDone::default() };
            self.side.pump.done.push(&done).unwrap();
        }
        if any {
            self.side.pump.waker.wake();
        }
    }

    fn read_socket(&mut self) {
        let mut buffer = vec![0; MESSAGE_MAX];
        while !self.closed {
            match self.socket.receive(&mut buffer, 1) {
                Ok(Received::Empty) => return,
                Ok(Received::Closed) => self.closed = true,
                Ok(Received::Message(len, fds)) => match FromDaemon::decode(&buffer[..len]).unwrap() {
                    FromDaemon::Slab(slab) => {
                        self.slabs.push(slab);
                        self.memory.extend(fds);
                    }
                    FromDaemon::SlabGone(gone) => self.slabs.retain(|slab| slab.slab != gone.slab),
                    FromDaemon::Bye(bye) => self.bye = Some(bye),
                    FromDaemon::Welcome(_) => panic!("a second welcome"),
                },
                Err(error) => panic!("receive: {error}"),
            }
        }
    }
}

/// A submission of this operation with tag 0.
pub fn sub(op: Op) -> Submission {
    Submission { op: op as u16, seq: 0, block: NONE_U32, ..Submission::default() }
}
