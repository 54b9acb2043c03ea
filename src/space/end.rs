//! How sessions end: the lease first, the process perhaps later.

use super::letters::Report;
use super::serve::Space;
use crate::host::NodeLetter;
use crate::session::{End, Fate};
use kvtide_tiering::api::{Event, SessionId};

impl Space {
    /// Ends the sessions that shall end. False if there were none.
    pub fn end_all(&mut self, now_us: u64) -> bool {
        let mut any = false;
        while let Some((slot, end)) = self.ending.pop() {
            any = true;
            self.end(now_us, slot, &end);
        }
        any
    }

    /// Ends a session's lease; a slot without a live session is left as it is.
    pub fn end(&mut self, now_us: u64, slot: SessionId, end: &End) {
        let Some(session) = self.seats.lose(slot) else { return };
        if let Some(guest) = self.seats.guest(slot) {
            let (number, pid) = (guest.number, guest.peer.pid);
            self.registry.lost(number);
            match end {
                End::Violation(_) | End::Late { .. } | End::System(_) => {
                    self.registry.note(Fate::Expelled);
                    tracing::warn!("session {number} (pid {pid}) ends: {end}");
                }
                End::Left | End::Closed | End::Exited | End::Shutdown => {
                    tracing::info!("session {number} (pid {pid}) ends: {end}")
                }
            }
        }
        self.registry.note(Fate::Ended);
        session.say_bye(end);
        // Closed before the core may reuse what its loads read: an agent believes no copy that ends after the hang-up.
        drop(session);
        self.tell(now_us, Event::SessionLost { session: slot });
        if matches!(end, End::Left | End::Exited) {
            self.harmless(now_us, slot);
        }
        self.tell_left();
    }

    /// Says once that no session is left: host memory and the place of the space are others' to have then.
    fn tell_left(&mut self) {
        if self.told_left < self.attaches && self.seats.sessions().next().is_none() {
            self.told_left = self.attaches;
            self.node.send(NodeLetter::InUse { space: self.number, sessions: false });
            self.control.send(Report::Left { space: self.number, attaches: self.attaches });
        }
    }

    /// The process behind a slot has exited: the lease is over.
    pub fn exited(&mut self, now_us: u64, slot: SessionId) {
        self.end(now_us, slot, &End::Exited);
        // The lease may have been over before.
        self.harmless(now_us, slot);
    }

    /// Nothing of the guest on a slot touches host memory any more: it need not linger.
    fn harmless(&mut self, now_us: u64, slot: SessionId) {
        let Some(guest) = self.seats.guest(slot).filter(|guest| !guest.exited) else { return };
        guest.exited = true;
        self.tell(now_us, Event::SessionExited { session: slot });
    }
}
