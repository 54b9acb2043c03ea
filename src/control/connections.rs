//! New connections: the uid first, then a place until the hello comes, then the handshake. And the socket itself, kept at its path.

use super::Control;
use crate::attach::{self, Handshake, Places, Progress, Refusal};
use kvtide_wire::os::socket::{Listener, Socket};
use kvtide_wire::status::Status;
use std::time::{Duration, Instant};

/// Connections accepted in one round, at most: signals, reports and hellos wait no longer than these take.
const ACCEPTS_A_ROUND: usize = 64;
/// How long nothing is accepted after descriptors or memory ran out.
const PAUSE: Duration = Duration::from_millis(100);
/// How often the socket is looked for at its path.
const LOOK: Duration = Duration::from_secs(1);

impl Control {
    /// Read the hellos that arrived since the last round, and end connections past their deadline.
    pub(super) fn hear_silent(&mut self) {
        let now = Instant::now();
        for handshake in self.pending.take() {
            let Some(handshake) = self.hear(handshake) else { continue };
            if handshake.deadline() > now {
                self.pending.keep(handshake);
            } else {
                let text = format!("no hello within {:?} of the connection", self.config.daemon.handshake);
                handshake.refuse(&self.registry, &Refusal { status: Status::TimedOut, text });
            }
        }
    }

    /// Accepts connections, even with no place free: a silent one in the kernel's queue would hold up those behind it.
    pub(super) fn accept(&mut self) {
        let now = Instant::now();
        if self.paused_until.is_some_and(|until| until > now) {
            return;
        }
        self.paused_until = None;
        for _ in 0..ACCEPTS_A_ROUND {
            let Some(listener) = &self.listener else { return };
            match listener.accept() {
                Ok(Some(socket)) => self.receive(socket, now),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!("{error}; accepting again in {PAUSE:?}");
                    self.paused_until = Some(now + PAUSE);
                    return;
                }
            }
        }
    }

    /// Bind the socket again if its path was deleted or replaced. While that fails, health is degraded.
    pub(super) fn keep_socket(&mut self) {
        if Instant::now() < self.look_at {
            return;
        }
        self.look_at = Instant::now() + LOOK;
        if self.listener.as_ref().is_some_and(Listener::is_in_place) {
            return;
        }
        let daemon = &self.config.daemon;
        let (path, mode) = (daemon.socket.clone(), daemon.socket_mode);
        let lost_now = self.listener.is_some();
        if lost_now {
            // The connections in its queue came before.
            self.accept();
            self.listener = None;
        }
        match attach::bind(&path, mode) {
            Ok(listener) => {
                let event = if lost_now { "was deleted or replaced; it is bound again" } else { "is bound again" };
                tracing::warn!("the socket {} {event}", path.display());
                self.listener = Some(listener);
                self.roll.lose_socket(None);
            }
            // Health reports it, and the watch logs that.
            Err(error) => self.roll.lose_socket(Some(error.to_string())),
        }
    }

    /// Takes a connection. Its uid is checked before it gets a place; if its hello is there already, it needs no place.
    fn receive(&mut self, socket: Socket, now: Instant) {
        let gone = |error| tracing::warn!("a connection ended during its handshake: {error}");
        let peer = match socket.peer() {
            Ok(peer) => peer,
            Err(error) => return gone(error),
        };
        let all = self.config.limits.handshakes_max as usize;
        let user = match attach::places(&self.config.domains, &self.tokens, peer.uid, all) {
            Ok(user) => user,
            Err(refusal) => return attach::refuse(&self.registry, &socket, peer, &refusal),
        };
        let handshake = match Handshake::new(socket, peer, now, self.config.daemon.handshake) {
            Ok(handshake) => handshake,
            Err(error) => return gone(error),
        };
        if let Some(silent) = self.hear(handshake)
            && let Some((loser, refusal)) = self.pending.add(silent, Places { all, user })
            // Its hello may have come since it was last heard.
            && let Some(loser) = self.hear(loser)
        {
            loser.refuse(&self.registry, &refusal);
        }
    }

    /// Reads a connection's hello and acts on it. Returns the connection if no hello is there.
    fn hear(&mut self, handshake: Handshake) -> Option<Handshake> {
        match handshake.progress() {
            Progress::Silent => return Some(handshake),
            Progress::Over => {}
            Progress::Nonsense(refusal) => handshake.refuse(&self.registry, &refusal),
            Progress::Hello(hello) => self.admit(handshake, *hello),
        }
        None
    }
}
