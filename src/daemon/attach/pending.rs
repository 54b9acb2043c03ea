//! Connections that wait for their Hello. Their number is bounded, in total and per user; so is their time.

use super::Refusal;
use super::handshake::Handshake;
use kvtide_wire::status::Status;
use std::collections::VecDeque;
use std::time::Instant;

/// The connections, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    silent: VecDeque<Handshake>,
}

/// Maximum numbers of waiting connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// All users together.
    pub all: usize,
    /// The user of the new connection.
    pub user: usize,
}

impl Pending {
    /// Add a connection. At the user's limit, the user's oldest connection is dropped; at the total limit, the oldest of all. A
    /// working client has sent its Hello by then. Return the dropped connection and its refusal.
    pub fn add(&mut self, handshake: Handshake, places: Places) -> Option<(Handshake, Refusal)> {
        let uid = handshake.peer().uid;
        let taken = self.silent.iter().filter(|silent| silent.peer().uid == uid).count();
        let loser = if taken >= places.user {
            let text = format!("uid {uid} has {taken} connections in handshake, at most {} are allowed", places.user);
            Some((self.oldest(Some(uid)), text))
        } else if self.silent.len() >= places.all {
            let text =
                format!("{} connections are in handshake, at most {} are allowed", self.silent.len(), places.all);
            Some((self.oldest(None), text))
        } else {
            None
        };
        self.silent.push_back(handshake);
        let (oldest, text) = loser?;
        let text = format!("{text} (limits.handshakes_max); a newer connection replaced this one. Connect again");
        Some((oldest?, Refusal { status: Status::Again, text }))
    }

    fn oldest(&mut self, uid: Option<u32>) -> Option<Handshake> {
        let index = self.silent.iter().position(|silent| uid.is_none_or(|uid| silent.peer().uid == uid))?;
        self.silent.remove(index)
    }

    /// Take all connections out. The caller returns those that are still waiting with [`Pending::keep`], in order.
    pub fn take(&mut self) -> VecDeque<Handshake> {
        std::mem::take(&mut self.silent)
    }

    /// Return a connection taken by [`Pending::take`].
    pub fn keep(&mut self, silent: Handshake) {
        self.silent.push_back(silent);
    }

    /// Iterate over the connections.
    pub fn iter(&self) -> impl Iterator<Item = &Handshake> {
        self.silent.iter()
    }

    /// Return the earliest deadline.
    pub fn due(&self) -> Option<Instant> {
        self.silent.iter().map(Handshake::deadline).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_wire::os::socket::{Peer, Socket};
    use std::time::Duration;

    /// Create a connection of a user; also return its other end.
    fn connection(uid: u32) -> (Handshake, Socket) {
        let (ours, theirs) = Socket::pair().unwrap();
        let peer = Peer { uid, ..ours.peer().unwrap() };
        (Handshake::new(ours, peer, Instant::now(), Duration::from_secs(60)).unwrap(), theirs)
    }

    fn uids(pending: &Pending) -> Vec<u32> {
        pending.iter().map(|silent| silent.peer().uid).collect()
    }

    #[test]
    fn a_user_over_its_bound_loses_its_own_oldest_connection() {
        let (mut pending, mut others) = (Pending::default(), Vec::new());
        let mut add = |pending: &mut Pending, uid| {
            let (handshake, other) = connection(uid);
            others.push(other);
            pending.add(handshake, Places { all: 4, user: 2 }).map(|(loser, refusal)| (loser.peer().uid, refusal))
        };
        for uid in [7, 8, 7] {
            assert_eq!(add(&mut pending, uid), None);
        }
        let (uid, refusal) = add(&mut pending, 7).unwrap();
        assert_eq!((uid, refusal.status), (7, Status::Again));
        assert!(
            refusal.text.contains("uid 7 has 2 connections in handshake, at most 2 are allowed"),
            "{}",
            refusal.text
        );
        assert_eq!(uids(&pending), [8, 7, 7]);
        assert_eq!(add(&mut pending, 9), None);
        let (uid, refusal) = add(&mut pending, 10).unwrap();
        assert_eq!(
            (uid, refusal.status),
            (8, Status::Again),
            "at the total limit the oldest connection of all users is dropped"
        );
        assert_eq!(uids(&pending), [7, 7, 9, 10]);
    }
}
