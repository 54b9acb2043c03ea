//! The daemon's side. It creates the memory and the bells, and maps both regions writable.

use super::super::bell::{Ringer, Sleepable, bell, bell_of_the_engine};
use super::super::map::{Access, Map, Part, part, parts};
use super::super::memfd::Memfd;
use super::{FIXED_FDS, ListsIn, ListsOut, MappedScores, Receiver, RingAt, Sender, Sleeper, Waker, ring};
use crate::entry::{Completion, Job, JobDone, Submission};
use crate::error::Error;
use crate::layout::{LaneLine, Layout, SCORE_SLOTS, Shape};
use crate::ring::{Consumer, Producer, START, Slot};
use crate::score::ScoreReader;
use crate::sync::{AtomicU32, Ordering};
use crate::wake;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::vec::Vec;

/// The daemon's side of one channel.
#[derive(Debug)]
pub struct DaemonChannel {
    /// Requests; untrusted, to be validated.
    pub submissions: Receiver<Submission>,
    /// Answers.
    pub completions: Sender<Completion>,
    /// Lists of the requests, by tag.
    pub requests: ListsIn,
    /// Lists of the answers, by tag.
    pub answers: ListsOut,
    /// Wakes the engine's thread that owns the channel.
    pub waker: Waker,
}

/// Progress of the engine's lanes, readable at any time.
#[derive(Debug)]
pub struct Lanes(Part<[LaneLine]>);

/// The daemon's view of a session's shared memory.
#[derive(Debug)]
pub struct DaemonSide {
    /// The channels.
    pub channels: Vec<DaemonChannel>,
    /// Jobs for the agent.
    pub jobs: Sender<Job>,
    /// Jobs that ended.
    pub done: Receiver<JobDone>,
    /// Wakes the agent's copy loop.
    pub copy_loop: Waker,
    /// Announces that the daemon is about to sleep.
    pub sleeper: Sleeper,
    /// Readable when the engine has rung.
    pub bell: Sleepable,
    /// The lanes' positions.
    pub lanes: Lanes,
    /// Attention scores of each lane.
    pub scores: Vec<ScoreReader<MappedScores>>,
}

/// Descriptors for the engine, to be sent with the Welcome and then dropped.
#[derive(Debug)]
pub struct PeerFds {
    regions: [Memfd; 2],
    towards_daemon: Ringer,
    copy_loop: Sleepable,
    channels: Vec<Sleepable>,
}

impl PeerFds {
    /// Return the descriptors in the order in which they are sent.
    #[must_use]
    pub fn as_fds(&self) -> Vec<BorrowedFd<'_>> {
        let mut fds = Vec::with_capacity(FIXED_FDS + self.channels.len());
        fds.extend(self.regions.iter().map(Memfd::as_fd));
        fds.extend([self.towards_daemon.as_fd(), self.copy_loop.as_fd()]);
        fds.extend(self.channels.iter().map(Sleepable::as_fd));
        fds
    }
}

impl Lanes {
    /// Return a lane's position (step × planes + plane), steps begun and steps ended. The numbers are untrusted.
    #[must_use]
    pub fn read(&self, lane: u16) -> Option<(u64, u64, u64)> {
        let line = self.0.get(usize::from(lane))?;
        let load = |word: &crate::sync::AtomicU64| word.load(Ordering::Relaxed);
        Some((load(&line.position), load(&line.begun), load(&line.ended)))
    }
}

impl DaemonSide {
    /// Create the two regions, prefaulted and sealed, and the bells, for a session that uses this protocol version.
    pub fn create(shape: Shape, version: u32) -> Result<(DaemonSide, PeerFds), Error> {
        let layout = Layout::of(shape)?;
        let engine_memfd = Memfd::shared("kvtide-engine", layout.engine.bytes)?;
        let engine = Arc::new(engine_memfd.map(Access::ReadWrite)?);
        let (daemon_memfd, daemon) = Memfd::owned("kvtide-daemon", layout.daemon.bytes)?;
        let daemon = Arc::new(daemon);
        for (which, map) in [&engine, &daemon].into_iter().enumerate() {
            part::<Slot>(map, 0)?.store(layout.header(which, version));
            let region = if which == 0 { &layout.engine } else { &layout.daemon };
            let channels = (0..shape.channels).flat_map(|c| [region.tail(c), region.head(c)]);
            for index in channels.chain([region.job_tail, region.job_head]) {
                part::<AtomicU32>(map, index)?.store(START, Ordering::Relaxed);
            }
        }
        let (towards_daemon, daemon_bell) = bell_of_the_engine()?;
        let (copy_loop_ringer, copy_loop_bell) = bell()?;
        let mut channels = Vec::with_capacity(usize::from(shape.channels));
        let mut channel_bells = Vec::with_capacity(usize::from(shape.channels));
        for index in 0..shape.channels {
            let (ringer, sleepable) = bell()?;
            channels.push(channel(&layout, index, &engine, &daemon, ringer)?);
            channel_bells.push(sleepable);
        }
        let (e, d, entries) = (&layout.engine, &layout.daemon, shape.jobs as usize);
        let jobs = RingAt { slots: d.job_slots, tail: d.job_tail, head: e.job_head, entries };
        let done = RingAt { slots: e.job_slots, tail: e.job_tail, head: d.job_head, entries };
        let scores = (0..shape.lanes)
            .map(|lane| Ok(ScoreReader::new(parts(&engine, layout.scores(lane), SCORE_SLOTS as usize)?)))
            .collect::<Result<_, Error>>()?;
        let side = DaemonSide {
            scores,
            channels,
            jobs: Producer::new(ring(&daemon, &engine, jobs)?),
            done: Consumer::new(ring(&engine, &daemon, done)?),
            copy_loop: wake::Waker::new(part(&engine, e.sleeping)?, copy_loop_ringer),
            sleeper: wake::Sleeper::new(part(&daemon, d.sleeping)?),
            bell: daemon_bell,
            lanes: Lanes(parts(&engine, layout.lane(0), usize::from(shape.lanes))?),
        };
        let regions = [engine_memfd, daemon_memfd];
        Ok((side, PeerFds { regions, towards_daemon, copy_loop: copy_loop_bell, channels: channel_bells }))
    }
}

fn channel(
    layout: &Layout,
    index: u16,
    engine: &Arc<Map>,
    daemon: &Arc<Map>,
    ringer: Ringer,
) -> Result<DaemonChannel, Error> {
    let (e, d, entries) = (&layout.engine, &layout.daemon, usize::from(layout.shape.depth));
    let submissions = RingAt { slots: e.slots(index), tail: e.tail(index), head: d.head(index), entries };
    let completions = RingAt { slots: d.slots(index), tail: d.tail(index), head: e.head(index), entries };
    Ok(DaemonChannel {
        submissions: Consumer::new(ring(engine, daemon, submissions)?),
        completions: Producer::new(ring(daemon, engine, completions)?),
        requests: ListsIn(parts(engine, e.lists(index), entries)?),
        answers: ListsOut(parts(daemon, d.lists(index), entries)?),
        waker: wake::Waker::new(part(engine, layout.channel_sleeping(index))?, ringer),
    })
}
