//! The session slots of a space: who sits where, and who has left but still lingers.

use crate::session::Session;
use kvtide_tiering::api::SessionId;
use kvtide_wire::os::poll::readable;
use kvtide_wire::os::socket::Peer;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// One slot.
#[derive(Debug)]
pub(crate) enum Seat {
    /// Nobody.
    Free,
    /// A session, live or on its way out.
    Taken(Box<Guest>),
}

/// Who sits on a seat.
#[derive(Debug)]
pub(crate) struct Guest {
    /// Number of the session.
    pub number: u32,
    /// Who it is.
    pub peer: Peer,
    /// Its process; until it exits, what jobs may still write stays in quarantine.
    pub pidfd: OwnedFd,
    /// Whether the core knows that it has exited.
    pub exited: bool,
    /// The session, while its lease holds.
    pub session: Option<Session>,
}

impl Guest {
    /// Whether its process has exited. One that cannot be asked is taken as running: it keeps its quarantine.
    pub fn has_exited(&self) -> bool {
        matches!(readable(&[self.pidfd.as_fd()], Duration::ZERO), Ok(bits) if bits != 0)
    }
}

/// All slots, with the live ones listed.
#[derive(Debug)]
pub(crate) struct Seats {
    seats: Vec<Seat>,
    /// Slots whose session is live, in no order.
    live: Vec<SessionId>,
}

impl Seats {
    /// So many free slots.
    pub fn new(count: u16) -> Seats {
        let seats = (0..count).map(|_| Seat::Free).collect();
        Seats { seats, live: Vec::with_capacity(usize::from(count)) }
    }

    /// The first free slot.
    pub fn free(&self) -> Option<SessionId> {
        self.seats.iter().position(|seat| matches!(seat, Seat::Free)).map(|slot| slot as SessionId)
    }

    /// Seats a guest with a live session.
    pub fn take(&mut self, slot: SessionId, guest: Guest) {
        self.seats[usize::from(slot)] = Seat::Taken(Box::new(guest));
        self.live.push(slot);
    }

    /// The guest on a slot.
    pub fn guest(&mut self, slot: SessionId) -> Option<&mut Guest> {
        match self.seats.get_mut(usize::from(slot)) {
            Some(Seat::Taken(guest)) => Some(guest),
            Some(Seat::Free) | None => None,
        }
    }

    /// The live session on a slot.
    pub fn session(&mut self, slot: SessionId) -> Option<&mut Session> {
        self.guest(slot)?.session.as_mut()
    }

    /// Ends the lease; the session, for its last words.
    pub fn lose(&mut self, slot: SessionId) -> Option<Session> {
        let session = self.guest(slot)?.session.take()?;
        self.live.retain(|live| *live != slot);
        Some(session)
    }

    /// Frees a slot.
    pub fn vacate(&mut self, slot: SessionId) -> Option<Guest> {
        self.live.retain(|live| *live != slot);
        match std::mem::replace(self.seats.get_mut(usize::from(slot))?, Seat::Free) {
            Seat::Taken(guest) => Some(*guest),
            Seat::Free => None,
        }
    }

    /// Number of live sessions.
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// The n-th live slot; they move when one ends.
    pub fn live_slot(&self, n: usize) -> Option<SessionId> {
        self.live.get(n).copied()
    }

    /// Every live session.
    pub fn sessions(&mut self) -> impl Iterator<Item = (SessionId, &mut Session)> {
        self.seats.iter_mut().enumerate().filter_map(|(slot, seat)| match seat {
            Seat::Taken(guest) => Some((slot as SessionId, guest.session.as_mut()?)),
            Seat::Free => None,
        })
    }

    /// Everybody on a slot.
    pub fn guests(&self) -> impl Iterator<Item = &Guest> {
        self.seats.iter().filter_map(|seat| match seat {
            Seat::Taken(guest) => Some(&**guest),
            Seat::Free => None,
        })
    }

    /// Whether nobody sits or lingers anywhere.
    pub fn is_empty(&self) -> bool {
        self.seats.iter().all(|seat| matches!(seat, Seat::Free))
    }

    /// Slots of those who have left and still linger.
    pub fn lingering(&self) -> usize {
        let lingers = |seat: &&Seat| matches!(seat, Seat::Taken(guest) if guest.session.is_none());
        self.seats.iter().filter(lingers).count()
    }
}
