//! End of sessions: the session ends first; its process may exit later.

use super::messages::Report;
use super::serve::Space;
use crate::host::NodeMessage;
use crate::session::{End, Outcome};
use kvtide_tiering::api::{Event, SessionId};

impl Space {
    /// End the queued sessions. Return false if there were none.
    pub fn end_all(&mut self, now_us: u64) -> bool {
        let mut any = false;
        while let Some((session_id, end)) = self.ending.pop() {
            any = true;
            self.end(now_us, session_id, &end);
        }
        any
    }

    /// End a session; an entry without a live session is not changed.
    pub fn end(&mut self, now_us: u64, session_id: SessionId, end: &End) {
        let Some(mut session) = self.session_entries.lose(session_id) else { return };
        if let Some(peer) = self.session_entries.peer(session_id) {
            let (number, pid) = (peer.number, peer.credentials.pid);
            self.registry.lost(number);
            match end {
                End::Violation(_) | End::Late { .. } | End::System(_) => {
                    self.registry.count_outcome(Outcome::Expelled);
                    tracing::warn!("session {number} (pid {pid}) ended: {end}");
                }
                End::Left | End::Closed | End::Exited | End::Shutdown | End::SpaceCloses => {
                    tracing::info!("session {number} (pid {pid}) ended: {end}")
                }
            }
        }
        self.registry.count_outcome(Outcome::Ended);
        session.send_disconnect(end);
        if let Some(tracer) = &self.tracer {
            session.take_spans().for_each(|span| tracer.finish(&span, None, None));
        }
        // Closed before the core may reuse frames read by the session's loads: an agent discards copies that end after the hang-up.
        drop(session);
        self.tell(now_us, Event::SessionLost { session: session_id });
        if matches!(end, End::Left | End::Exited) {
            self.harmless(now_us, session_id);
        }
        self.tell_left();
    }

    /// Report once that no engine is left, so that the space's host memory and its place can be used by others.
    pub(super) fn tell_left(&mut self) {
        if self.told_left < self.attaches && !self.session_entries.has_engines() {
            self.told_left = self.attaches;
            self.node.send(NodeMessage::InUse { space: self.number, sessions: false });
            self.control.send(Report::Left { space: self.number, attaches: self.attaches });
        }
    }

    /// End the sessions of relays: the space closes.
    pub(super) fn end_relays(&mut self) {
        let relays: Vec<SessionId> = self.session_entries.relays().collect();
        self.ending.extend(relays.into_iter().map(|relay| (relay, End::SpaceCloses)));
    }

    /// Handle the exit of an entry's process: the session ends too.
    pub fn exited(&mut self, now_us: u64, session_id: SessionId) {
        self.end(now_us, session_id, &End::Exited);
        // The session may have ended before.
        self.harmless(now_us, session_id);
    }

    /// Record that the peer of an entry does not access host memory any more; its entry need not be kept for it.
    fn harmless(&mut self, now_us: u64, session_id: SessionId) {
        let Some(peer) = self.session_entries.peer(session_id).filter(|peer| !peer.exited) else { return };
        peer.exited = true;
        self.tell(now_us, Event::SessionExited { session: session_id });
    }
}
