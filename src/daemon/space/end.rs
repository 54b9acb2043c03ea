//! End of sessions: the session ends first; its process may exit later.

use super::letters::Report;
use super::serve::Space;
use crate::host::NodeLetter;
use crate::session::{End, Fate};
use kvtide_tiering::api::{Event, SessionId};

impl Space {
    /// End the queued sessions. Return false if there were none.
    pub fn end_all(&mut self, now_us: u64) -> bool {
        let mut any = false;
        while let Some((slot, end)) = self.ending.pop() {
            any = true;
            self.end(now_us, slot, &end);
        }
        any
    }

    /// End a session; a slot without a live session is not changed.
    pub fn end(&mut self, now_us: u64, slot: SessionId, end: &End) {
        let Some(session) = self.seats.lose(slot) else { return };
        if let Some(guest) = self.seats.guest(slot) {
            let (number, pid) = (guest.number, guest.peer.pid);
            self.registry.lost(number);
            match end {
                End::Violation(_) | End::Late { .. } | End::System(_) => {
                    self.registry.note(Fate::Expelled);
                    tracing::warn!("session {number} (pid {pid}) ended: {end}");
                }
                End::Left | End::Closed | End::Exited | End::Shutdown => {
                    tracing::info!("session {number} (pid {pid}) ended: {end}")
                }
            }
        }
        self.registry.note(Fate::Ended);
        session.say_bye(end);
        // Closed before the core may reuse frames read by the session's loads: an agent discards copies that end after the hang-up.
        drop(session);
        self.tell(now_us, Event::SessionLost { session: slot });
        if matches!(end, End::Left | End::Exited) {
            self.harmless(now_us, slot);
        }
        self.tell_left();
    }

    /// Report once that no session is left, so that the space's host memory and its place can be used by others.
    fn tell_left(&mut self) {
        if self.told_left < self.attaches && self.seats.sessions().next().is_none() {
            self.told_left = self.attaches;
            self.node.send(NodeLetter::InUse { space: self.number, sessions: false });
            self.control.send(Report::Left { space: self.number, attaches: self.attaches });
        }
    }

    /// Handle the exit of a slot's process: the session ends too.
    pub fn exited(&mut self, now_us: u64, slot: SessionId) {
        self.end(now_us, slot, &End::Exited);
        // The session may have ended before.
        self.harmless(now_us, slot);
    }

    /// Record that the peer of a slot does not access host memory any more; its slot need not be kept for it.
    fn harmless(&mut self, now_us: u64, slot: SessionId) {
        let Some(guest) = self.seats.guest(slot).filter(|guest| !guest.exited) else { return };
        guest.exited = true;
        self.tell(now_us, Event::SessionExited { session: slot });
    }
}
