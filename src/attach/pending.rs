//! Connections that have not said hello: bounded in number, in all and for each user, and in time.

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

/// How many places there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// For all users.
    pub all: usize,
    /// For the uid of the new connection.
    pub user: usize,
}

impl Pending {
    /// Adds a connection. If its user has no free place, or if there is none at all, the oldest one goes, of this user or of all: a client
    /// that works has sent its hello by then. Returns the oldest one and its refusal.
    pub fn add(&mut self, newcomer: Handshake, places: Places) -> Option<(Handshake, Refusal)> {
        let uid = newcomer.peer().uid;
        let taken = self.silent.iter().filter(|silent| silent.peer().uid == uid).count();
        let loser = if taken >= places.user {
            let text = format!("{taken} connections of uid {uid} wait for a hello, at most {} may", places.user);
            Some((self.oldest(Some(uid)), text))
        } else if self.silent.len() >= places.all {
            let text = format!("{} connections wait for a hello, at most {} may", self.silent.len(), places.all);
            Some((self.oldest(None), text))
        } else {
            None
        };
        self.silent.push_back(newcomer);
        let (oldest, text) = loser?;
        let text = format!("{text} (limits.handshakes_max), and a newer one took the place of this one: connect again");
        Some((oldest?, Refusal { status: Status::Again, text }))
    }

    fn oldest(&mut self, uid: Option<u32>) -> Option<Handshake> {
        let index = self.silent.iter().position(|silent| uid.is_none_or(|uid| silent.peer().uid == uid))?;
        self.silent.remove(index)
    }

    /// Takes all of them out. Those that are still silent go back, in order, by [`Pending::keep`].
    pub fn take(&mut self) -> VecDeque<Handshake> {
        std::mem::take(&mut self.silent)
    }

    /// Puts one back.
    pub fn keep(&mut self, silent: Handshake) {
        self.silent.push_back(silent);
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Handshake> {
        self.silent.iter()
    }

    /// When the next one is late.
    pub fn due(&self) -> Option<Instant> {
        self.silent.iter().map(Handshake::deadline).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_wire::os::socket::{Peer, Socket};
    use std::time::Duration;

    /// A connection of a user, and its other end.
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
        assert!(refusal.text.contains("2 connections of uid 7 wait for a hello, at most 2 may"), "{}", refusal.text);
        assert_eq!(uids(&pending), [8, 7, 7]);
        assert_eq!(add(&mut pending, 9), None);
        let (uid, refusal) = add(&mut pending, 10).unwrap();
        assert_eq!((uid, refusal.status), (8, Status::Again), "all places are taken: the oldest of all goes");
        assert_eq!(uids(&pending), [7, 7, 9, 10]);
    }
}
