//! One session in its space's core thread: rings, requests and jobs in flight, socket, pidfd. [`Registry`] holds the data of
//! sessions for the rest of the daemon.
//!
//! Input from an engine is not trusted. Mistakes that a correct engine can make are answered with an error completion. Input that
//! only a broken or hostile engine sends is a [`Violation`], which ends this session alone. Must not depend on the core's state,
//! other sessions, or threads.

mod channel;
mod jobs;
mod registry;
mod stats;
mod violation;

pub(crate) use channel::Channel;
pub(crate) use registry::{Outcome, Registry};
pub use registry::{SessionInfo, SessionTotals};
pub(crate) use stats::Way;
pub use stats::{JobTimes, RequestTimes, SessionStats};
pub(crate) use violation::{End, Violation};

use crate::answer::Answer;
use crate::trace::OpenSpan;
use channel::Answered;
use jobs::JobsInFlight;
use kvtide_tiering::api::{HostFrame, Job, Status};
use kvtide_wire::entry::{Job as WireJob, JobDone, Op};
use kvtide_wire::error::Error as WireError;
use kvtide_wire::hello::{Detach, Disconnect, HEAD_BYTES};
use kvtide_wire::job::{self, Ask};
use kvtide_wire::os::bell::Sleepable;
use kvtide_wire::os::memfd::Memfd;
use kvtide_wire::os::session::{DaemonSide, MappedScores, Receiver, Sender, Sleeper, Waker};
use kvtide_wire::os::socket::{Received, Socket};
use kvtide_wire::ring::PushError;
use kvtide_wire::score_areas::ScoreAreas;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

/// A live session.
#[derive(Debug)]
pub(crate) struct Session {
    /// Channels, in order.
    pub channels: Vec<Channel>,
    /// Announces that the core thread is going to sleep.
    pub sleeper: Sleeper,
    /// Signalled by the engine.
    pub bell: Sleepable,
    /// The session ends when the socket is closed.
    pub socket: Socket,
    jobs: Sender<WireJob>,
    done: Receiver<JobDone>,
    copy_loop: Waker,
    posted: bool,
    /// Attention scores written by its lanes.
    pub scores: ScoreAreas<MappedScores>,
    in_flight: JobsInFlight<Sent>,
    /// Its stats.
    pub stats: SessionStats,
    notices: VecDeque<Notice>,
    /// A Detach message was received; later reads find the socket closed.
    left: bool,
}

/// Data of a job in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    /// Bytes that the agent must have copied if the job succeeds.
    bytes: u32,
    way: Way,
    sent_us: u64,
    /// Check of the integrity sample, and the host frame that it is about.
    ask: Ask,
    host: Option<HostFrame>,
}

/// A job that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndedJob {
    /// Its id.
    pub id: u32,
    /// Its status.
    pub status: Status,
    /// Bytes copied.
    pub bytes: u64,
    /// Result for the integrity sample.
    pub comparison: Option<Comparison>,
}

/// Result of a job of the integrity sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// A page was copied out to this host frame; its digest in tier 0.
    Stored { at: HostFrame, digest: u32 },
    /// The loaded page equals the stored one.
    Same,
    /// The loaded page differs and was not published: the host frame was damaged, or the copy was wrong.
    Different { at: HostFrame, stored: u32, loaded: u32 },
}

impl Comparison {
    fn of(sent: &Sent, digest: Option<u32>) -> Option<Comparison> {
        let (at, digest) = (sent.host?, digest?);
        match sent.ask {
            Ask::Nothing => None,
            Ask::Digest => Some(Comparison::Stored { at, digest }),
            Ask::Compare(stored) if stored == digest => Some(Comparison::Same),
            Ask::Compare(stored) => Some(Comparison::Different { at, stored, loaded: digest }),
        }
    }
}

/// A message for the engine; messages are delivered in order.
#[derive(Clone, Debug)]
pub(crate) struct Notice {
    /// The datagram.
    pub message: Arc<[u8]>,
    /// Memory to pass with it.
    pub memfd: Option<Arc<Memfd>>,
}

impl Session {
    /// Create a session with empty rings; `jobs_max` bounds the jobs in flight.
    pub fn new(socket: Socket, side: DaemonSide, jobs_max: u32) -> Session {
        let DaemonSide { channels, jobs, done, copy_loop, sleeper, bell, lanes: _, scores } = side;
        let channels = channels.into_iter().zip(0..).map(|(channel, index)| Channel::new(index, channel)).collect();
        let in_flight = JobsInFlight::new(jobs_max);
        Session {
            channels,
            sleeper,
            bell,
            socket,
            jobs,
            done,
            copy_loop,
            posted: false,
            scores: ScoreAreas::new(scores),
            in_flight,
            notices: VecDeque::new(),
            left: false,
            stats: SessionStats::default(),
        }
    }

    /// Send a job with its check for the integrity sample. The ring has room for all jobs that may be in flight; if it is full, the
    /// agent has broken the protocol.
    pub fn post(
        &mut self,
        id: u32,
        job: &Job,
        ask: Ask,
        now_us: u64,
        page_bytes: impl Fn(u16) -> u32,
    ) -> Result<(), End> {
        let bytes = job::copied_bytes(*job, page_bytes) as u32;
        let sent = Sent { bytes, way: Way::of(job), sent_us: now_us, ask, host: job.host_frame() };
        if !self.in_flight.insert(id, sent) {
            return Err(End::System(format!("job {id} was sent twice, or more jobs than the ring can hold")));
        }
        self.jobs.push(&job::entry(id, *job, ask)).map_err(|error| match error {
            PushError::Full => End::Violation(Violation::JobsUnread),
            PushError::Broken(index) => End::Violation(index.into()),
        })?;
        self.posted = true;
        Ok(())
    }

    /// Return the next job that has ended; its duration is added to `times`.
    pub fn job_done(&mut self, now_us: u64, times: &mut JobTimes) -> Result<Option<EndedJob>, Violation> {
        let Some(done) = self.done.pop()? else { return Ok(None) };
        let sent = self.in_flight.remove(done.id).ok_or(Violation::NoSuchJob { id: done.id })?;
        let Sent { bytes, way, sent_us, ask, .. } = sent;
        let (status, digest) = job::job_done(&done, u64::from(bytes), ask)?;
        let bytes = if status == Status::Ok { u64::from(bytes) } else { 0 };
        self.stats.jobs += 1;
        match way {
            Way::Load => self.stats.loaded_bytes += bytes,
            Way::Store => self.stats.stored_bytes += bytes,
            Way::Copy | Way::Table => {}
        }
        if status == Status::Ok {
            times.add(way, now_us.saturating_sub(sent_us));
        }
        Ok(Some(EndedJob { id: done.id, status, bytes, comparison: Comparison::of(&sent, digest) }))
    }

    /// Answer a request and return it; its duration is added to `times`. `None`: no such request is in flight.
    pub fn answer(
        &mut self,
        answer: &Answer<'_>,
        now_us: u64,
        times: &mut RequestTimes,
    ) -> Result<Option<Answered>, Violation> {
        let Answer { channel, tag, status, value, words } = *answer;
        let Some(channel) = self.channels.get_mut(usize::from(channel)) else { return Ok(None) };
        let Some(answered) = channel.complete(tag, status, value, words)? else { return Ok(None) };
        let took_us = now_us.saturating_sub(answered.taken_us);
        times.add(answered.op, took_us);
        self.stats.requests += 1;
        match Op::from_code(answered.op) {
            Some(Op::Fault) => {
                self.stats.faults += 1;
                self.stats.stalled_us += took_us;
            }
            Some(Op::LoadBlocks) => self.stats.load_us += took_us,
            _ => {}
        }
        Ok(Some(answered))
    }

    /// Take the spans of the requests that are not answered.
    pub fn take_spans(&mut self) -> impl Iterator<Item = Box<OpenSpan>> {
        self.channels.iter_mut().flat_map(Channel::take_spans)
    }

    /// Return true if the engine has written anything that was not read yet.
    pub fn has_work(&mut self) -> bool {
        self.done.available().map_or(true, |count| count > 0)
            || self.channels.iter_mut().any(Channel::has_requests)
            || self.scores.has_some()
    }

    /// Wake the engine's threads that were sent something since the last call.
    pub fn wake(&mut self) {
        if std::mem::take(&mut self.posted) {
            self.copy_loop.wake();
        }
        for channel in &mut self.channels {
            channel.wake();
        }
    }

    /// Return the requests and jobs in flight.
    pub fn in_flight(&self) -> usize {
        self.requests_in_flight() + self.jobs_in_flight()
    }

    /// Return the requests in flight.
    pub fn requests_in_flight(&self) -> usize {
        self.channels.iter().map(|channel| channel.in_flight() as usize).sum()
    }

    /// Return the jobs in flight.
    pub fn jobs_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Queue a message. Waiting messages are bounded by the number of the space's slabs.
    pub fn notify(&mut self, notice: Notice) -> Result<(), End> {
        self.notices.push_back(notice);
        self.send_notices().map(|_| ())
    }

    /// Send waiting messages as far as the socket accepts them. Return true if none waits any more.
    pub fn send_notices(&mut self) -> Result<bool, End> {
        while let Some(notice) = self.notices.front() {
            let fds: Vec<_> = notice.memfd.iter().map(|memfd| memfd.as_fd()).collect();
            match self.socket.send(&notice.message, &fds) {
                Ok(()) => {}
                Err(error) if error.is_full() => return Ok(false),
                // A last message of the engine may still be unread.
                Err(WireError::Closed { .. }) => return Err(self.look_at_socket().unwrap_or(End::Closed)),
                Err(error) => return Err(End::System(format!("cannot send a message: {error}"))),
            }
            self.notices.pop_front();
        }
        Ok(true)
    }

    /// Return true if a message waits for room in the socket.
    pub fn has_notices(&self) -> bool {
        !self.notices.is_empty()
    }

    /// Read the socket; return why the session ends, if so.
    pub fn look_at_socket(&mut self) -> Option<End> {
        let mut bytes = [0u8; HEAD_BYTES];
        match self.socket.receive(&mut bytes, 0) {
            Ok(Received::Empty) => None,
            Ok(Received::Closed) => Some(if self.left { End::Left } else { End::Closed }),
            Ok(Received::Message(len, _)) if Detach::decode(&bytes[..len]).is_ok() => {
                self.left = true;
                Some(End::Left)
            }
            Ok(Received::Message(..)) => Some(End::Violation(Violation::Spoke)),
            // Longer than a Detach, the only message that an engine may send.
            Err(WireError::Os { errno, .. }) if is_cut(errno) => Some(End::Violation(Violation::Spoke)),
            Err(error) => Some(End::System(format!("the socket failed: {error}"))),
        }
    }

    /// Send the reason to the engine if possible. Messages queued before may be lost; the session ends anyway.
    pub fn send_disconnect(&self, end: &End) {
        if let Some((status, text)) = end.disconnect_message() {
            // If the socket is full or closed, the engine sees the end of the connection.
            let _ = self.socket.send(&Disconnect { status, text }.encode(), &[]);
        }
    }
}

fn is_cut(errno: i32) -> bool {
    [Errno::MSGSIZE, Errno::TOOMANYREFS].iter().any(|cut| cut.raw_os_error() == errno)
}
