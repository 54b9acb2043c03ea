//! New connections: check the uid, admit to the handshake, read the Hello. Also keeps the socket at its path.

use super::Control;
use crate::attach::{self, Handshake, Places, Progress, Refusal};
use kvtide_wire::hello::First;
use kvtide_wire::os::socket::{Listener, Socket};
use kvtide_wire::status::Status;
use std::time::{Duration, Instant};

/// Maximum connections accepted per round, so that signals, reports and handshakes are not delayed.
const ACCEPTS_A_ROUND: usize = 64;
/// Pause in accepting after descriptors or memory run out.
const PAUSE: Duration = Duration::from_millis(100);
/// Interval at which the socket's path is checked.
const LOOK: Duration = Duration::from_secs(1);

impl Control {
    /// Read the Hello messages that arrived since the last round, and drop connections past their deadline.
    pub(super) fn hear_silent(&mut self) {
        let now = Instant::now();
        for handshake in self.pending.take() {
            let Some(handshake) = self.hear(handshake) else { continue };
            if handshake.deadline() > now {
                self.pending.keep(handshake);
            } else {
                let limit = self.config.daemon.handshake;
                let text = format!("no handshake message within {limit:?} of connecting (daemon.handshake_ms)");
                handshake.refuse(&self.registry, &Refusal { status: Status::TimedOut, text });
            }
        }
    }

    /// Accept connections even when no handshake place is free: a silent connection in the kernel's queue would delay those behind
    /// it.
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
                    tracing::error!("cannot accept a connection: {error}; next attempt in {PAUSE:?}");
                    self.paused_until = Some(now + PAUSE);
                    return;
                }
            }
        }
    }

    /// Bind the socket again if its path was deleted or replaced. While binding fails, health is degraded.
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
            // Connections in the old socket's queue arrived before it was lost.
            self.accept();
            self.listener = None;
        }
        match attach::bind(&path, mode) {
            Ok(listener) => {
                let event = if lost_now { "was deleted or replaced; bound again" } else { "is bound again" };
                tracing::warn!("the socket {} {event}", path.display());
                self.listener = Some(listener);
                self.thread_registry.lose_socket(None);
            }
            // The health monitor reports and logs it.
            Err(error) => self.thread_registry.lose_socket(Some(error.to_string())),
        }
    }

    /// Receive a connection. Its uid is checked before it gets a handshake place; if its Hello has already arrived, it needs no
    /// place.
    fn receive(&mut self, socket: Socket, now: Instant) {
        let gone = |error| tracing::warn!("a connection failed during its handshake: {error}");
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
            // Its Hello may have arrived since it was last read.
            && let Some(loser) = self.hear(loser)
        {
            loser.refuse(&self.registry, &refusal);
        }
    }

    /// Read and handle a connection's Hello. Return the connection if no message has arrived.
    fn hear(&mut self, handshake: Handshake) -> Option<Handshake> {
        match handshake.progress() {
            Progress::Silent => return Some(handshake),
            Progress::Over => {}
            Progress::Nonsense(refusal) => handshake.refuse(&self.registry, &refusal),
            Progress::First(first) => match *first {
                First::Hello(hello) => self.admit(handshake, hello),
                First::Watch(watch) => self.watch(handshake, &watch),
            },
        }
        None
    }
}
