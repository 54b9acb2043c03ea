//! An engine that uses the wire protocol directly, so that it can send messages that the client library never sends.

use crate::BOUND;
use kvtide_wire::entry::{Completion, Job, JobDone, JobKind, NONE_U32, Op, Submission};
use kvtide_wire::error::Error;
use kvtide_wire::geometry::Plane;
use kvtide_wire::hello::{Disconnect, FromDaemon, Hello, MESSAGE_MAX, Protocol, Slab};
use kvtide_wire::lists::List;
use kvtide_wire::os::poll::readable;
use kvtide_wire::os::session::{EngineSide, attach};
use kvtide_wire::os::socket::{FDS_MAX, Received, Socket};
use kvtide_wire::status::Status;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Page size of the only plane.
pub const PAGE_BYTES: u32 = 4096;
/// Frames of the raw engine's tier 0.
pub const FRAMES: u32 = 32;
/// Depth of its channels.
pub const DEPTH: u16 = 8;
/// Maximum time between two polls of this engine without a wake-up.
const NAP: Duration = Duration::from_millis(50);

/// Return the usual handshake message of a raw engine.
pub fn hello() -> Hello {
    Hello {
        protocol: Protocol::ours(0),
        name: "raw".into(),
        fingerprint: [1; 32],
        identity: String::new(),
        page_tokens: 16,
        planes: vec![Plane::full(PAGE_BYTES)],
        shards: 1,
        shard: 0,
        lanes: 1,
        channels: 2,
        depth: DEPTH,
        seqs_max: 8,
        tier0_frames: vec![FRAMES],
        mapped_frames: 0,
        numa_node: None,
        relay: false,
        local: false,
        token: None,
    }
}

/// A raw engine. Its agent ends every job at once with success and copies nothing; other tests verify contents.
pub struct Raw {
    pub socket: Socket,
    pub side: EngineSide,
    pub slabs: Vec<Slab>,
    /// Host memory received from the daemon, kept even after the daemon has taken it back.
    pub memory: Vec<OwnedFd>,
    /// Jobs received, with their kinds.
    pub jobs: Vec<(JobKind, Job)>,
    pub disconnect: Option<Disconnect>,
    closed: bool,
}

impl Raw {
    /// Attach with the usual handshake message.
    pub fn attach(path: &Path) -> Raw {
        Raw::attach_as(path, &hello()).unwrap()
    }

    /// Attach with a given handshake message.
    pub fn attach_as(path: &Path, hello: &Hello) -> Result<Raw, Error> {
        let (socket, _, _, side) = attach(path, hello, BOUND)?;
        Ok(Raw {
            socket,
            side,
            slabs: Vec::new(),
            memory: Vec::new(),
            jobs: Vec::new(),
            disconnect: None,
            closed: false,
        })
    }

    /// Attach as an engine that is about to fork: children inherit all descriptors shared with the daemon, as with a fork
    /// without exec. Keep the returned copies until the child has started.
    pub fn attach_inheritable(path: &Path) -> (Raw, Vec<OwnedFd>) {
        let socket = Socket::connect(path).unwrap();
        socket.send(&hello().encode().unwrap(), &[]).unwrap();
        let mut buffer = vec![0; MESSAGE_MAX];
        let (len, fds) = socket.receive_within(&mut buffer, FDS_MAX, BOUND).unwrap();
        let FromDaemon::Welcome(welcome) = FromDaemon::decode(&buffer[..len]).unwrap() else { panic!("no welcome") };
        // A plain `dup` is not close-on-exec.
        let mut copies: Vec<OwnedFd> = fds.iter().map(|fd| rustix::io::dup(fd).unwrap()).collect();
        copies.push(rustix::io::dup(&socket).unwrap());
        let side = EngineSide::new(&welcome.limits.unwrap(), welcome.protocol.version, fds).unwrap();
        (
            Raw {
                socket,
                side,
                slabs: Vec::new(),
                memory: Vec::new(),
                jobs: Vec::new(),
                disconnect: None,
                closed: false,
            },
            copies,
        )
    }

    /// Submit a request and wake the daemon.
    pub fn submit(&mut self, channel: usize, submission: &Submission) {
        let channel = &mut self.side.channels[channel];
        channel.submissions.push(submission).unwrap();
        channel.waker.wake();
    }

    /// Wait for the next completion of a channel, and end jobs meanwhile. Return `None` if the session ended first.
    pub fn completion(&mut self, channel: usize) -> Option<Completion> {
        self.wait(channel, true)
    }

    /// Do the same without ending jobs.
    pub fn completion_without_jobs(&mut self, channel: usize) -> Option<Completion> {
        self.wait(channel, false)
    }

    fn wait(&mut self, channel: usize, with_jobs: bool) -> Option<Completion> {
        let deadline = Instant::now() + BOUND;
        while Instant::now() < deadline {
            self.read_socket();
            if with_jobs {
                self.run_copy_loop();
            }
            if let Some(completion) = self.side.channels[channel].completions.pop().unwrap() {
                return Some(completion);
            }
            if self.closed {
                return None;
            }
            let EngineSide { channels, job_rings, .. } = &mut self.side;
            let channel = &mut channels[channel];
            channel.sleeper.announce();
            job_rings.sleeper.announce();
            kvtide_wire::wake::announced();
            let jobs = with_jobs && job_rings.jobs.available().unwrap() > 0;
            if channel.completions.available().unwrap() == 0 && !jobs {
                readable(&[channel.bell.as_fd(), job_rings.bell.as_fd(), self.socket.as_fd()], NAP).unwrap();
            }
            channel.sleeper.awake();
            job_rings.sleeper.awake();
            channel.bell.quiet();
            job_rings.bell.quiet();
        }
        panic!("no completion on channel {channel} within {BOUND:?}");
    }

    /// Submit a request and return its completion.
    pub fn call(&mut self, submission: Submission) -> Completion {
        self.submit(0, &submission);
        let completion = self.completion(0).unwrap_or_else(|| panic!("the session ended: {:?}", self.disconnect));
        assert_eq!((completion.op, completion.tag), (submission.op, submission.tag));
        completion
    }

    /// Submit a request and return the status of its completion.
    pub fn status(&mut self, submission: Submission) -> Status {
        Status::from_code(self.call(submission).status).unwrap()
    }

    /// Return the list of the last completion of a tag.
    pub fn answer(&self, completion: &Completion) -> Vec<u32> {
        let mut list = List::default();
        self.side.channels[0].answers.copy_out(completion.tag, completion.list_len, &mut list).unwrap();
        list.words().to_vec()
    }

    /// Wait until the daemon ends the session; return its message, if it sent one.
    pub fn expelled(&mut self) -> Option<Disconnect> {
        let deadline = Instant::now() + BOUND;
        while !self.closed {
            assert!(Instant::now() < deadline, "the daemon did not end the session within {BOUND:?}");
            self.read_socket();
            readable(&[self.socket.as_fd()], NAP).unwrap();
        }
        self.disconnect.clone()
    }

    /// End all received jobs.
    fn run_copy_loop(&mut self) {
        let mut any = false;
        while let Some(job) = self.side.job_rings.jobs.pop().unwrap() {
            any = true;
            let kind = JobKind::from_code(job.kind).unwrap();
            self.jobs.push((kind, job));
            let copies = matches!(kind, JobKind::CopyIn | JobKind::CopyOut | JobKind::Copy | JobKind::CopyInAs);
            let bytes = if copies { PAGE_BYTES.into() } else { 0 };
            // This engine has no bytes to hash, so it returns the digest of the job.
            let (flags, digest) = (job.flags, job.digest);
            let done = JobDone { id: job.id, status: Status::Ok.code(), bytes, flags, digest, ..JobDone::default() };
            self.side.job_rings.done.push(&done).unwrap();
        }
        if any {
            self.side.job_rings.waker.wake();
        }
    }

    pub fn read_socket(&mut self) {
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
                    FromDaemon::Disconnect(disconnect) => self.disconnect = Some(disconnect),
                    FromDaemon::Welcome(_) => panic!("a second handshake answer"),
                },
                Err(error) => panic!("receive: {error}"),
            }
        }
    }
}

/// Return a submission of this operation with tag 0.
pub fn sub(op: Op) -> Submission {
    Submission { op: op as u16, seq: 0, block: NONE_U32, ..Submission::default() }
}
