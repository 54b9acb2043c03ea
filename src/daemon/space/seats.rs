//! The session slots of a space, including those of ended sessions with a process that has not exited.

use crate::session::Session;
use kvtide_tiering::api::SessionId;
use kvtide_wire::os::poll::readable;
use kvtide_wire::os::socket::Peer;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// A session slot.
#[derive(Debug)]
pub(crate) enum Seat {
    /// Unused.
    Free,
    /// A session, live or ended.
    Taken(Box<Guest>),
}

/// The peer of a slot.
#[derive(Debug)]
pub(crate) struct Guest {
    /// Number of the session.
    pub number: u32,
    /// Its process, user and group ids.
    pub peer: Peer,
    /// Its process. Until it exits, frames that its jobs may still write are quarantined.
    pub pidfd: OwnedFd,
    /// The core has received the exit.
    pub exited: bool,
    /// The session; None after it ended.
    pub session: Option<Session>,
}

impl Guest {
    /// Return true if its process has exited. If this cannot be determined, it counts as running and its frames stay quarantined.
    pub fn has_exited(&self) -> bool {
        matches!(readable(&[self.pidfd.as_fd()], Duration::ZERO), Ok(bits) if bits != 0)
    }
}

/// All slots, with a list of the live ones.
#[derive(Debug)]
pub(crate) struct Seats {
    seats: Vec<Seat>,
    /// Slots with a live session, in no order.
    live: Vec<SessionId>,
}

impl Seats {
    /// Create `count` free slots.
    pub fn new(count: u16) -> Seats {
        let seats = (0..count).map(|_| Seat::Free).collect();
        Seats { seats, live: Vec::with_capacity(usize::from(count)) }
    }

    /// Return the first free slot.
    pub fn free(&self) -> Option<SessionId> {
        self.seats.iter().position(|seat| matches!(seat, Seat::Free)).map(|slot| slot as SessionId)
    }

    /// Put a peer with a live session into a slot.
    pub fn take(&mut self, slot: SessionId, guest: Guest) {
        self.seats[usize::from(slot)] = Seat::Taken(Box::new(guest));
        self.live.push(slot);
    }

    /// Return the peer of a slot.
    pub fn guest(&mut self, slot: SessionId) -> Option<&mut Guest> {
        match self.seats.get_mut(usize::from(slot)) {
            Some(Seat::Taken(guest)) => Some(guest),
            Some(Seat::Free) | None => None,
        }
    }

    /// Return the live session of a slot.
    pub fn session(&mut self, slot: SessionId) -> Option<&mut Session> {
        self.guest(slot)?.session.as_mut()
    }

    /// End a slot's session and return it, so that a last message can be sent.
    pub fn lose(&mut self, slot: SessionId) -> Option<Session> {
        let session = self.guest(slot)?.session.take()?;
        self.live.retain(|live| *live != slot);
        Some(session)
    }

    /// Free a slot.
    pub fn vacate(&mut self, slot: SessionId) -> Option<Guest> {
        self.live.retain(|live| *live != slot);
        match std::mem::replace(self.seats.get_mut(usize::from(slot))?, Seat::Free) {
            Seat::Taken(guest) => Some(*guest),
            Seat::Free => None,
        }
    }

    /// Return the number of live sessions.
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// Return the n-th live slot; the order changes when one ends.
    pub fn live_slot(&self, n: usize) -> Option<SessionId> {
        self.live.get(n).copied()
    }

    /// Iterate over the live sessions.
    pub fn sessions(&mut self) -> impl Iterator<Item = (SessionId, &mut Session)> {
        self.seats.iter_mut().enumerate().filter_map(|(slot, seat)| match seat {
            Seat::Taken(guest) => Some((slot as SessionId, guest.session.as_mut()?)),
            Seat::Free => None,
        })
    }

    /// Iterate over the peers of all slots.
    pub fn guests(&self) -> impl Iterator<Item = &Guest> {
        self.seats.iter().filter_map(|seat| match seat {
            Seat::Taken(guest) => Some(&**guest),
            Seat::Free => None,
        })
    }

    /// Return true if all slots are free.
    pub fn is_empty(&self) -> bool {
        self.seats.iter().all(|seat| matches!(seat, Seat::Free))
    }

    /// Return the number of slots with an ended session that are not free yet.
    pub fn lingering(&self) -> usize {
        let lingers = |seat: &&Seat| matches!(seat, Seat::Taken(guest) if guest.session.is_none());
        self.seats.iter().filter(lingers).count()
    }
}
