//! The pump: takes the daemon's jobs from their ring, carries them through the mover and the memory, returns their ends.
//!
//! Whoever holds its lock pumps: the copy thread, or an engine's thread that waits for something and would rather do the work
//! itself than be woken after it.

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

/// Jobs that one round takes at most, so that a round stays short.
const ROUND_JOBS: usize = 32;
/// How long a job waits for the message that brings its slab. The daemon sends that first, so it is there already unless the
/// socket was full.
const SLAB_WAIT: Duration = Duration::from_secs(1);

/// What a round did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Round {
    /// Something moved.
    pub progress: bool,
    /// Jobs wait for lanes.
    pub waiting: bool,
    /// Something is left that nobody will ring for: copies under way, or rings that are full.
    pub pending: bool,
    /// Of that, copies that a device does.
    pub copying: bool,
}

/// The agent's half of the job rings, and what works on them.
pub(crate) struct Pump {
    jobs: Receiver<Job>,
    done: Sender<kvtide_wire::entry::JobDone>,
    waker: Waker,
    mover: Mover,
    memory: Box<dyn TierMemory>,
    shared: Arc<Shared>,
    /// A job that found no room.
    backlog: Option<Job>,
    /// An end that found no room in the ring.
    unsent: Option<Ended>,
    copies: Vec<CopyOp>,
    results: Vec<(CopyOp, Result<Copied, Status>)>,
    started: Instant,
    buffer: Vec<u8>,
}

impl Pump {
    pub fn new(
        rings: (Receiver<Job>, Sender<kvtide_wire::entry::JobDone>, Waker),
        mover: Mover,
        memory: Box<dyn TierMemory>,
        shared: Arc<Shared>,
    ) -> Pump {
        let (jobs, done, waker) = rings;
        let copies = Vec::with_capacity(shared.geometry().bounds().jobs_max as usize);
        let buffer = vec![0; MESSAGE_MAX];
        let started = Instant::now();
        let results = Vec::with_capacity(copies.capacity());
        Pump { jobs, done, waker, mover, memory, shared, backlog: None, unsent: None, copies, results, started, buffer }
    }

    pub fn mover(&mut self) -> &mut Mover {
        &mut self.mover
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// One round: new jobs, lanes that moved, copies, ends.
    ///
    /// # Errors
    /// `Protocol`, `Daemon`, `Device`: the session is over, and why.
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
        for _ in 0..ROUND_JOBS {
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

    /// Whether the host frame that a job names is mapped; reads the socket for its slab if not.
    fn host_frame_known(&mut self, socket: &Socket, job: &Job) -> Result<bool, Status> {
        let host = [JobKind::Load, JobKind::Store, JobKind::LoadCopy, JobKind::Gather, JobKind::Scatter];
        let host = host.map(|kind| kind as u16);
        let Some(class) = self.shared.geometry().class_of(job.plane).filter(|_| host.contains(&job.kind)) else {
            return Ok(true); // needs none, or is refused by the mover
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
            // A slab that is known but has no such frame will not get one.
            if left.is_zero() || self.memory.has_slab(job.slab) {
                return Ok(false);
            }
            kvtide_wire::os::poll::readable(&[std::os::fd::AsFd::as_fd(socket)], left).map_err(|e| e.status())?;
        }
    }

    /// Reads every message that is there.
    ///
    /// # Errors
    /// `Daemon`: the socket is closed, or the daemon says goodbye. `Protocol`: nonsense.
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
                Ok(FromDaemon::Bye(_)) => return Err(Status::Daemon),
                Ok(FromDaemon::Welcome(_)) | Err(_) => return Err(Status::Protocol),
            }
        }
    }

    /// Takes the copies that ended. Once the daemon has closed the socket, the host frames of our jobs may be another's: what
    /// was copied from them is believed only if the socket was open after the copy had ended.
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

    /// Waits until nothing that was started or enqueued so far touches tier 0 any more.
    ///
    /// # Errors
    /// `TimedOut`, `Device`.
    pub fn settle(&mut self, deadline: Instant) -> Result<(), Status> {
        self.memory.settle(deadline)
    }

    /// The engine's own memory, or none from now on.
    ///
    /// # Errors
    /// As [`TierMemory::set_blocks`].
    pub fn set_blocks(&mut self, blocks: Option<EngineBlocks>) -> Result<Option<EngineBlocks>, Status> {
        self.memory.set_blocks(blocks)
    }

    /// As [`TierMemory::own_block`].
    pub fn own_block(&mut self, block: u32, plane: u16) -> Option<&mut [u8]> {
        self.memory.own_block(block, plane)
    }

    /// How a device's copies are made.
    pub fn device_copies(&self) -> Option<DeviceCopies> {
        self.memory.device_copies()
    }

    /// Whether a round could do something now.
    pub fn has_work(&mut self) -> bool {
        self.jobs.available() != Ok(0) || self.memory.in_flight() > 0 || !self.copies.is_empty()
    }
}

/// Whether the daemon has closed the socket.
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
