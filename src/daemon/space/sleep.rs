//! Sleep of a core thread on its mailboxes and on each session's eventfd, socket and process.
//!
//! Reported events are only hints: a slot may have a new session by the time it is checked.

use super::letters::Letter;
use super::seats::Seats;
use crate::error::Error;
use kvtide_nvme::{Note, Transfer};
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
/// Kinds of descriptors of a slot.
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
        letters: &Mailbox<Letter>,
        transfers: &Mailbox<Box<Transfer>>,
        notes: &Mailbox<Box<Note>>,
    ) -> Result<Sleeper, Error> {
        let failed = |e: Errno| Error::system("create a space's epoll", e);
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        epoll::add(&epoll, letters, EventData::new_u64(MAIL), EventFlags::IN).map_err(failed)?;
        epoll::add(&epoll, transfers, EventData::new_u64(MAIL), EventFlags::IN).map_err(failed)?;
        epoll::add(&epoll, notes, EventData::new_u64(MAIL), EventFlags::IN).map_err(failed)?;
        Ok(Sleeper { epoll, seen: Vec::with_capacity(EVENTS), crowded: Vec::new() })
    }

    /// Watch new sessions, and the sockets of sessions with waiting messages.
    pub fn watch(&mut self, seats: &mut Seats, seated: &mut Vec<SessionId>) {
        for slot in seated.drain(..) {
            let Some(guest) = seats.guest(slot) else { continue };
            self.add(&guest.pidfd, slot, PROCESS);
            if let Some(session) = &guest.session {
                self.add(&session.bell, slot, BELL);
                self.add(&session.socket, slot, SOCKET);
            }
        }
        for (slot, session) in seats.sessions() {
            let (wanted, known) = (session.has_notices(), self.crowded.iter().position(|crowded| *crowded == slot));
            let flags = match (wanted, known) {
                (true, None) => {
                    self.crowded.push(slot);
                    EventFlags::IN | EventFlags::OUT
                }
                (false, Some(place)) => {
                    self.crowded.swap_remove(place);
                    EventFlags::IN
                }
                (true, Some(_)) | (false, None) => continue,
            };
            let data = EventData::new_u64(u64::from(slot) * KINDS + SOCKET);
            if let Err(errno) = epoll::modify(&self.epoll, &session.socket, data, flags) {
                tracing::error!("session slot {slot}: cannot watch the socket: {errno}");
            }
        }
    }

    fn add(&self, fd: impl AsFd, slot: SessionId, kind: u64) {
        let data = EventData::new_u64(u64::from(slot) * KINDS + kind);
        if let Err(errno) = epoll::add(&self.epoll, fd, data, EventFlags::IN) {
            tracing::error!("session slot {slot}: cannot watch descriptor {kind}: {errno}");
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
            let slot = (data / KINDS) as SessionId;
            match data % KINDS {
                _ if data == MAIL => {}
                BELL => return Some(Wake::Bell(slot)),
                SOCKET => return Some(Wake::Socket(slot)),
                _ => return Some(Wake::Process(slot)),
            }
        }
    }
}
