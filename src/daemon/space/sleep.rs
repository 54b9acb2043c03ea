//! Sleep of a core thread on its mailboxes and on each session's eventfd, socket and process.
//!
//! Reported events are only hints: an entry may have a new session by the time it is checked.

use super::messages::SpaceMessage;
use super::sessions::Sessions;
use crate::error::Error;
use kvtide_nvme::{LogRequest, Transfer};
use kvtide_rt::mail::Mailbox;
use kvtide_tiering::api::SessionId;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Maximum events per wait; the rest is reported by the next.
const EVENTS: usize = 64;
/// The mailboxes.
const MAIL: u64 = u64::MAX;
const BELL: u64 = 0;
const SOCKET: u64 = 1;
const PROCESS: u64 = 2;
/// Kinds of descriptors of an entry.
const KINDS: u64 = 4;

/// An event to handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wake {
    /// The engine signalled.
    Bell(SessionId),
    /// The engine sent a message, closed its socket, or made room for the next message by reading one.
    Socket(SessionId),
    /// The engine's process has exited.
    Process(SessionId),
}

/// The descriptors of a space.
#[derive(Debug)]
pub(super) struct Sleeper {
    epoll: OwnedFd,
    /// Events of the last wait that are not handled yet.
    seen: Vec<u64>,
    /// Slots with a socket that is also watched for room to send.
    crowded: Vec<SessionId>,
}

impl Sleeper {
    /// Create the sleeper; it watches only the mailboxes.
    pub fn new(
        messages: &Mailbox<SpaceMessage>,
        transfers: &Mailbox<Box<Transfer>>,
        log_requests: &Mailbox<Box<LogRequest>>,
    ) -> Result<Sleeper, Error> {
        let failed = |e: Errno| Error::system("create a space's epoll", e);
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        epoll::add(&epoll, messages, EventData::new_u64(MAIL), EventFlags::IN).map_err(failed)?;
        epoll::add(&epoll, transfers, EventData::new_u64(MAIL), EventFlags::IN).map_err(failed)?;
        epoll::add(&epoll, log_requests, EventData::new_u64(MAIL), EventFlags::IN).map_err(failed)?;
        Ok(Sleeper { epoll, seen: Vec::with_capacity(EVENTS), crowded: Vec::new() })
    }

    /// Watch new sessions, and the sockets of sessions with waiting messages.
    pub fn watch(&mut self, sessions: &mut Sessions) {
        for (session_id, process, session) in sessions.take_new() {
            self.add(process, session_id, PROCESS);
            if let Some(session) = session {
                self.add(&session.bell, session_id, BELL);
                self.add(&session.socket, session_id, SOCKET);
            }
        }
        for (session_id, session) in sessions.sessions() {
            let (wanted, known) =
                (session.has_notices(), self.crowded.iter().position(|crowded| *crowded == session_id));
            let flags = match (wanted, known) {
                (true, None) => {
                    self.crowded.push(session_id);
                    EventFlags::IN | EventFlags::OUT
                }
                (false, Some(place)) => {
                    self.crowded.swap_remove(place);
                    EventFlags::IN
                }
                (true, Some(_)) | (false, None) => continue,
            };
            let data = EventData::new_u64(u64::from(session_id) * KINDS + SOCKET);
            if let Err(errno) = epoll::modify(&self.epoll, &session.socket, data, flags) {
                tracing::error!("session entry {session_id}: cannot watch the socket: {errno}");
            }
        }
    }

    fn add(&self, fd: impl AsFd, session_id: SessionId, kind: u64) {
        let data = EventData::new_u64(u64::from(session_id) * KINDS + kind);
        if let Err(errno) = epoll::add(&self.epoll, fd, data, EventFlags::IN) {
            tracing::error!("session entry {session_id}: cannot watch descriptor {kind}: {errno}");
        }
    }

    /// Wait for events, at most `timeout`.
    pub fn look(&mut self, timeout: Option<Duration>) {
        let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS];
        self.seen.clear();
        let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((ready, _)) => self.seen.extend(ready.iter().map(|event| event.data.u64())),
            Err(Errno::INTR) => {}
            Err(errno) => tracing::error!("epoll_wait failed in a core thread: {errno}"),
        }
    }

    /// Return true if events of the last wait are not handled yet.
    pub fn has_seen(&self) -> bool {
        !self.seen.is_empty()
    }

    /// Return the next event.
    pub fn next(&mut self) -> Option<Wake> {
        loop {
            let data = self.seen.pop()?;
            let session_id = (data / KINDS) as SessionId;
            match data % KINDS {
                _ if data == MAIL => {}
                BELL => return Some(Wake::Bell(session_id)),
                SOCKET => return Some(Wake::Socket(session_id)),
                _ => return Some(Wake::Process(session_id)),
            }
        }
    }
}
