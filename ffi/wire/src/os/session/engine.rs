//! The engine's side. Maps region E writable and region D read-only; both are excluded from forked children and core dumps.

use super::super::bell::{Ringer, Sleepable};
use super::super::map::{Access, Map, Part, part};
use super::super::memfd::Memfd;
use super::super::socket::{FDS_MAX, Socket};
use super::{
    FIXED_FDS, ListsIn, ListsOut, MappedScores, Receiver, RingAt, Sender, Sleeper, Waker, check_header, parts, ring,
};
use crate::entry::{Completion, Job, JobDone, Submission};
use crate::error::Error;
use crate::hello::{FromDaemon, Hello, Limits, MESSAGE_MAX, Welcome};
use crate::layout::{LaneLine, Layout, SCORE_SLOTS};
use crate::ring::{Consumer, Producer};
use crate::score::ScoreWriter;
use crate::status::Status;
use crate::sync::Ordering;
use crate::wake;
use std::format;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::vec;
use std::vec::Vec;
use zeroize::Zeroizing;

/// The engine's side of one channel; one thread owns it.
#[derive(Debug)]
pub struct EngineChannel {
    /// Requests.
    pub submissions: Sender<Submission>,
    /// Answers.
    pub completions: Receiver<Completion>,
    /// Lists of the requests, by tag.
    pub requests: ListsOut,
    /// Lists of the answers, by tag.
    pub answers: ListsIn,
    /// Wakes the daemon.
    pub waker: Waker,
    /// Announces that the owner is about to sleep.
    pub sleeper: Sleeper,
    /// Readable when the daemon has rung for this channel.
    pub bell: Sleepable,
}

/// The job rings, owned by the thread that runs the copy loop.
#[derive(Debug)]
pub struct JobRings {
    /// Jobs from the daemon.
    pub jobs: Receiver<Job>,
    /// Jobs that ended.
    pub done: Sender<JobDone>,
    /// Wakes the daemon.
    pub waker: Waker,
    /// Announces that the copy loop is about to sleep.
    pub sleeper: Sleeper,
    /// Readable when the daemon has rung for the copy loop.
    pub bell: Sleepable,
}

/// A lane's words; one thread owns it.
#[derive(Debug)]
pub struct LaneWriter {
    line: Part<LaneLine>,
    /// Attention scores of the lane.
    pub scores: ScoreWriter<MappedScores>,
}

/// The engine's view of a session's shared memory.
#[derive(Debug)]
pub struct EngineSide {
    /// The channels.
    pub channels: Vec<EngineChannel>,
    /// The job rings.
    pub job_rings: JobRings,
    /// The lanes' words.
    pub lanes: Vec<LaneWriter>,
}

impl LaneWriter {
    /// Publish the lane's position: step × planes + plane.
    pub fn position(&self, position: u64) {
        self.line.position.store(position, Ordering::Relaxed);
    }

    /// Publish how many steps the lane has begun and ended.
    pub fn steps(&self, begun: u64, ended: u64) {
        self.line.begun.store(begun, Ordering::Relaxed);
        self.line.ended.store(ended, Ordering::Relaxed);
    }
}

/// Pause between attempts to attach to a daemon that is full: grows from the first to the second value.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

/// Connect, shake hands and map the memory that the daemon passes. If the daemon has no room for the connection, retry until
/// `timeout` has passed. A permanent refusal is [`Error::Refused`] at once; a path without a listening daemon is an error at once.
pub fn attach(path: &Path, hello: &Hello, timeout: Duration) -> Result<(Socket, Welcome, Limits, EngineSide), Error> {
    let message = Zeroizing::new(hello.encode()?);
    let deadline = Instant::now().checked_add(timeout);
    let left = || deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()));
    let mut pause = PAUSE.0;
    loop {
        let error = match attempt(path, &message, left()) {
            Err(error) if is_passing(&error) => error,
            ended => return ended,
        };
        if left().is_zero() {
            return Err(given_up(error, timeout));
        }
        // PACE: the timeout bounds the attempts.
        std::thread::sleep(pause.min(left()));
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Return true if another attempt may succeed: the queue of connections was full, or the daemon closed the connection or refused it
/// temporarily. The daemon answers `TimedOut` to a process that was stopped between its connection and its hello.
fn is_passing(error: &Error) -> bool {
    match error {
        Error::Os { .. } => error.is_full(),
        Error::Closed { .. } | Error::Refused { status: Status::Again | Status::TimedOut, .. } => true,
        _ => false,
    }
}

/// Return the error that the caller gets when time is up.
fn given_up(error: Error, timeout: Duration) -> Error {
    if error.is_full() {
        let text = format!("its queue of connections is still full after {} ms", timeout.as_millis());
        return Error::Refused { status: Status::Again, text };
    }
    error
}

fn attempt(path: &Path, message: &[u8], timeout: Duration) -> Result<(Socket, Welcome, Limits, EngineSide), Error> {
    let socket = Socket::connect(path)?;
    match socket.send(message, &[]) {
        // A daemon that refuses a connection before its hello closes it; the refusal can still be read.
        Ok(()) | Err(Error::Closed { .. }) => {}
        Err(error) => return Err(error),
    }
    let mut buffer = vec![0; MESSAGE_MAX];
    let (len, fds) = socket.receive_within(&mut buffer, FDS_MAX, timeout)?;
    let welcome = match FromDaemon::decode(&buffer[..len])? {
        FromDaemon::Welcome(welcome) => welcome,
        other => {
            let (found, expected) = (format!("{other:?}"), "a welcome".into());
            return Err(Error::Message { message: "handshake", field: "answer", found, expected });
        }
    };
    match welcome.limits {
        Some(limits) => {
            let side = EngineSide::new(&limits, welcome.protocol.version, fds)?;
            Ok((socket, welcome, limits, side))
        }
        None => {
            let status = if welcome.status == Status::Ok { Status::Protocol } else { welcome.status };
            Err(Error::Refused { status, text: welcome.text })
        }
    }
}

impl EngineSide {
    /// Map the regions and take the bells that came with a Welcome that agreed on this protocol version.
    pub fn new(limits: &Limits, version: u32, fds: Vec<OwnedFd>) -> Result<EngineSide, Error> {
        let shape = limits.shape;
        let layout = Layout::of(shape)?;
        let expected = FIXED_FDS + usize::from(shape.channels);
        if fds.len() != expected {
            let (found, expected) = (format!("{}", fds.len()), format!("{expected}"));
            return Err(Error::Message { message: "welcome", field: "descriptors", found, expected });
        }
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or(Error::Closed { tried: "take a descriptor of the welcome" });
        let (e, d) = (&layout.engine, &layout.daemon);
        let engine = region(next()?, "region E", e.bytes, Access::ReadWrite, layout.header(0, version))?;
        let daemon = region(next()?, "region D", d.bytes, Access::ReadOnly, layout.header(1, version))?;
        let waker: Waker = wake::Waker::new(part(&daemon, d.sleeping)?, Ringer::from_fd(next()?));
        let entries = shape.jobs as usize;
        let jobs = RingAt { slots: d.job_slots, tail: d.job_tail, head: e.job_head, entries };
        let done = RingAt { slots: e.job_slots, tail: e.job_tail, head: d.job_head, entries };
        let job_rings = JobRings {
            jobs: Consumer::new(ring(&daemon, &engine, jobs)?),
            done: Producer::new(ring(&engine, &daemon, done)?),
            waker: waker.clone(),
            sleeper: wake::Sleeper::new(part(&engine, e.sleeping)?),
            bell: Sleepable::from_fd(next()?),
        };
        let mut channels = Vec::with_capacity(usize::from(shape.channels));
        for index in 0..shape.channels {
            channels.push(channel(&layout, index, &engine, &daemon, waker.clone(), Sleepable::from_fd(next()?))?);
        }
        let lanes = (0..shape.lanes).map(|lane| {
            let scores = ScoreWriter::new(parts(&engine, layout.scores(lane), SCORE_SLOTS as usize)?);
            Ok(LaneWriter { line: part(&engine, layout.lane(lane))?, scores })
        });
        Ok(EngineSide { channels, job_rings, lanes: lanes.collect::<Result<_, Error>>()? })
    }
}

fn region(fd: OwnedFd, what: &'static str, bytes: u64, access: Access, header: [u64; 8]) -> Result<Arc<Map>, Error> {
    let map = Arc::new(Memfd::received(fd, what, bytes)?.map(access)?.private_to_this_process()?);
    check_header(&map, header, what)?;
    Ok(map)
}

fn channel(
    layout: &Layout,
    index: u16,
    engine: &Arc<Map>,
    daemon: &Arc<Map>,
    waker: Waker,
    bell: Sleepable,
) -> Result<EngineChannel, Error> {
    let (e, d, entries) = (&layout.engine, &layout.daemon, usize::from(layout.shape.depth));
    let submissions = RingAt { slots: e.slots(index), tail: e.tail(index), head: d.head(index), entries };
    let completions = RingAt { slots: d.slots(index), tail: d.tail(index), head: e.head(index), entries };
    Ok(EngineChannel {
        submissions: Producer::new(ring(engine, daemon, submissions)?),
        completions: Consumer::new(ring(daemon, engine, completions)?),
        requests: ListsOut(parts(engine, e.lists(index), entries)?),
        answers: ListsIn(parts(daemon, d.lists(index), entries)?),
        waker,
        sleeper: wake::Sleeper::new(part(engine, layout.channel_sleeping(index))?),
        bell,
    })
}
