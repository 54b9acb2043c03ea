//! The copy loop: takes the daemon's jobs from their ring, runs them through the mover and the memory, and returns their results.
//!
//! The thread that holds its lock runs it: the copy thread, or an engine thread that waits. Doing the work itself is faster for
//! a waiting thread than being woken after it.

use super::{
    counters::Counters,
    protocol::{Copied, CopyOp, Ended, Mover, Shared},
};
use crate::{
    client::DeviceCopies,
    memory::{EngineBlocks, TierMemory},
};
use kvtide_wire::{
    entry::{Job, JobKind},
    hello::{FromDaemon, MESSAGE_MAX},
    os::{
        session::{Receiver, Sender, Waker},
        socket::{Received, Socket},
    },
    ring::PushError,
    status::Status,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// How long a job waits for the message that brings its slab. The daemon sends that message first, so it has already arrived
/// unless the socket was full.
const SLAB_WAIT: Duration = Duration::from_secs(1);

/// Result of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Round {
    /// Something changed.
    pub progress: bool,
    /// Jobs wait for lanes.
    pub waiting: bool,
    /// Work is left for which no doorbell will ring: copies in flight, or full rings.
    pub pending: bool,
    /// Part of `pending`: a device has copies in flight.
    pub copying: bool,
}

/// The agent's end of the job rings, with the mover and the memory that work on them.
pub(crate) struct CopyLoop {
    jobs: Receiver<Job>,
    done: Sender<kvtide_wire::entry::JobDone>,
    waker: Waker,
    mover: Mover,
    memory: Box<dyn TierMemory>,
    shared: Arc<Shared>,
    /// A job that found no room in the mover.
    backlog: Option<Job>,
    /// A result that found no room in the ring.
    unsent: Option<Ended>,
    copies: Vec<CopyOp>,
    results: Vec<(CopyOp, Result<Copied, Status>)>,
    started: Instant,
    buffer: Vec<u8>,
}

impl CopyLoop {
    pub fn new(
        rings: (Receiver<Job>, Sender<kvtide_wire::entry::JobDone>, Waker),
        mover: Mover,
        memory: Box<dyn TierMemory>,
        shared: Arc<Shared>,
    ) -> CopyLoop {
        let (jobs, done, waker) = rings;
        let copies = Vec::with_capacity(shared.geometry().bounds().jobs_max as usize);
        let buffer = vec![0; MESSAGE_MAX];
        let started = Instant::now();
        let results = Vec::with_capacity(copies.capacity());
        CopyLoop {
            jobs,
            done,
            waker,
            mover,
            memory,
            shared,
            backlog: None,
            unsent: None,
            copies,
            results,
            started,
            buffer,
        }
    }

    pub fn mover(&mut self) -> &mut Mover {
        &mut self.mover
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Run one round: take new jobs, check lanes, start and end copies, send results.
    ///
    /// # Errors
    /// `Protocol`, `Daemon`, `Device`: the reason why the session is over.
    pub fn round(&mut self, socket: &Socket, counters: &Counters) -> Result<Round, Status> {
        let mut progress = self.take_jobs(socket)?;
        self.mover.poll();
        self.copies.extend(std::iter::from_fn(|| self.mover.next_copy()));
        if !self.copies.is_empty() {
            let started = self.memory.start(&self.copies)?;
            self.copies.drain(..started);
        }
        progress |= self.end_copies(socket)?;
        progress |= self.send_ends(counters)?;
        counters.memory(&self.memory.take_counts());
        let copying = self.memory.in_flight() > 0 || !self.copies.is_empty();
        let pending = copying || self.unsent.is_some() || self.backlog.is_some();
        Ok(Round { progress, waiting: self.mover.waiting(), pending, copying })
    }

    fn take_jobs(&mut self, socket: &Socket) -> Result<bool, Status> {
        let mut taken = false;
        for _ in 0..self.memory.round_jobs() {
            let job = match self.backlog.take() {
                Some(job) => job,
                None => match self.jobs.pop() {
                    Ok(Some(job)) => job,
                    Ok(None) => break,
                    Err(_) => return Err(Status::Protocol),
                },
            };
            let now = self.now_ns();
            let known = self.host_frame_known(socket, &job)?;
            let accepted = if known { self.mover.accept(&job, now) } else { self.mover.refuse(&job, now) };
            if accepted.is_err() {
                self.backlog = Some(job);
                break;
            }
            taken = true;
        }
        Ok(taken)
    }

    /// Report whether the host frame that a job names is mapped. If not, read the socket for its slab.
    fn host_frame_known(&mut self, socket: &Socket, job: &Job) -> Result<bool, Status> {
        let host = [JobKind::CopyIn, JobKind::CopyOut, JobKind::CopyInAs, JobKind::Gather, JobKind::Scatter];
        let host = host.map(|kind| kind as u16);
        let Some(class) = self.shared.geometry().class_of(job.plane).filter(|_| host.contains(&job.kind)) else {
            return Ok(true); // needs no host frame, or the mover rejects it
        };
        let class = usize::from(class);
        if self.memory.knows(class, job.slab, job.slot) {
            return Ok(true);
        }
        let deadline = Instant::now() + SLAB_WAIT;
        loop {
            self.read_socket(socket)?;
            if self.memory.knows(class, job.slab, job.slot) {
                return Ok(true);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            // A slab that is known but has no such frame never gets one.
            if left.is_zero() || self.memory.has_slab(job.slab) {
                return Ok(false);
            }
            kvtide_wire::os::poll::readable(&[std::os::fd::AsFd::as_fd(socket)], left).map_err(|e| e.status())?;
        }
    }

    /// Read every message that has arrived.
    ///
    /// # Errors
    /// `Daemon`: the socket is closed, or the daemon sent a disconnect message. `Protocol`: a malformed message.
    pub fn read_socket(&mut self, socket: &Socket) -> Result<(), Status> {
        loop {
            let (len, mut fds) = match socket.receive(&mut self.buffer, 1) {
                Ok(Received::Message(len, fds)) => (len, fds),
                Ok(Received::Empty) => return Ok(()),
                Ok(Received::Closed) => return Err(Status::Daemon),
                Err(_) => return Err(Status::Protocol),
            };
            match FromDaemon::decode(&self.buffer[..len]) {
                Ok(FromDaemon::Slab(slab)) => {
                    let fd = fds.pop().ok_or(Status::Protocol)?;
                    self.memory.add_slab(&slab, fd).map_err(|e| e.status())?;
                }
                Ok(FromDaemon::SlabGone(gone)) => self.memory.remove_slab(gone.slab),
                Ok(FromDaemon::Disconnect(_)) => return Err(Status::Daemon),
                Ok(FromDaemon::Welcome(_)) | Err(_) => return Err(Status::Protocol),
            }
        }
    }

    /// Take the copies that ended. After the daemon closed the socket, the host frames of our jobs may belong to another
    /// session. So a copy from them counts only if the socket was still open after the copy ended.
    fn end_copies(&mut self, socket: &Socket) -> Result<bool, Status> {
        let results = &mut self.results;
        self.memory.poll(&mut |op, result| results.push((*op, result)))?;
        if results.is_empty() {
            return Ok(false);
        }
        if hung_up(socket) {
            return Err(Status::Daemon);
        }
        for (op, result) in results.drain(..) {
            self.mover.copied(&op, result);
        }
        Ok(true)
    }

    fn send_ends(&mut self, counters: &Counters) -> Result<bool, Status> {
        let mut sent = false;
        loop {
            let now = self.now_ns();
            let Some(ended) = self.unsent.take().or_else(|| self.mover.next_ended(now)) else { break };
            match self.done.push(&ended.done) {
                Ok(()) => {
                    counters.job(&ended);
                    sent = true;
                }
                Err(PushError::Full) => {
                    self.unsent = Some(ended);
                    break;
                }
                Err(PushError::Broken(_)) => return Err(Status::Protocol),
            }
        }
        if sent {
            self.waker.wake();
        }
        Ok(sent)
    }

    /// Wait until no copy that was started or enqueued so far accesses tier 0.
    ///
    /// # Errors
    /// `TimedOut`, `Device`.
    pub fn settle(&mut self, deadline: Instant) -> Result<(), Status> {
        self.memory.settle(deadline)
    }

    /// Set the engine's own memory; `None` removes it.
    ///
    /// # Errors
    /// As [`TierMemory::set_blocks`].
    pub fn set_blocks(&mut self, blocks: Option<EngineBlocks>) -> Result<Option<EngineBlocks>, Status> {
        self.memory.set_blocks(blocks)
    }

    /// Return the block as [`TierMemory::own_block`] does.
    pub fn own_block(&mut self, block: u32, plane: u16) -> Option<&mut [u8]> {
        self.memory.own_block(block, plane)
    }

    /// Return how a device's copies are made.
    pub fn device_copies(&self) -> Option<DeviceCopies> {
        self.memory.device_copies()
    }

    /// Report whether a round could do something now.
    pub fn has_work(&mut self) -> bool {
        self.jobs.available() != Ok(0) || self.memory.in_flight() > 0 || !self.copies.is_empty()
    }
}

/// Report whether the daemon has closed the socket.
pub(crate) fn hung_up(socket: &Socket) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::RDHUP)];
    loop {
        match rustix::event::poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return true,
            Ok(_) => return !polled[0].revents().is_empty(),
        }
    }
}
