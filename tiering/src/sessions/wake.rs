//! Sessions with work to issue, and the time of the next due work.

use crate::sessions::{Life, Sessions};

impl Sessions {
    /// Schedule the session for this call, or for the next one if there is no room.
    pub(crate) fn wake(&mut self, s: u16) {
        let session = &mut self.sessions[s];
        if !session.woken {
            session.woken = true;
            self.woken.push_back(s);
        }
    }

    /// Schedule the session before the other scheduled ones.
    pub(crate) fn wake_next(&mut self, s: u16) {
        let session = &mut self.sessions[s];
        if !session.woken {
            session.woken = true;
            self.woken.push_front(s);
        }
    }

    pub(crate) fn wake_all(&mut self) {
        for s in 0..self.sessions.len() {
            if self.sessions[s].life == Life::Live {
                self.wake(s);
            }
        }
    }

    /// Retry the requests that wait for admission, since capacity changed.
    pub(crate) fn wake_admission(&mut self) {
        for s in 0..self.sessions.len() {
            if !self.sessions[s].ops.admission.is_empty() {
                self.wake(s);
            }
        }
    }

    /// Schedule `timers_due` for that time.
    pub(crate) fn set_timer(&mut self, at: u64) {
        self.timer = Some(self.timer.map_or(at, |timer| timer.min(at)));
    }
}
