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

    /// Return the next session with work to issue.
    pub(crate) fn next_woken(&mut self) -> Option<u16> {
        let s = self.woken.pop_front()?;
        self.sessions[s].woken = false;
        Some(s)
    }

    /// Return whether actions wait for room, or sessions for being served.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.actions_out.is_empty() || !self.woken.is_empty()
    }

    /// Return a pending request that is past its deadline.
    pub(crate) fn overdue(&self) -> Option<(u16, u32)> {
        self.deadlines.first().filter(|&(due, ..)| due <= self.now).map(|(_, s, op)| (s, op))
    }

    /// Return when the next deadline or timer is due.
    pub(crate) fn timer_us(&self) -> Option<u64> {
        [self.deadlines.first().map(|d| d.0), self.timer].into_iter().flatten().min()
    }

    /// Return whether the timer is due. Then it is not set any more.
    pub(crate) fn take_timer(&mut self) -> bool {
        self.timer.take_if(|at| *at <= self.now).is_some()
    }
}
