//! Frames on their way to free: Evict and Drop jobs.

use crate::actions::ActionBuf;
use crate::api::NONE;
use crate::counters::Reason;
use crate::pages::On;
use crate::sessions::{JobRec, Task};
use crate::space::Core;

impl Core {
    pub(crate) fn pump_drops(&mut self, s: u16, buf: &mut ActionBuf) {
        while self.can_send(s, buf) {
            let f = self.sessions[usize::from(s)].drops.head;
            if f == NONE {
                return;
            }
            self.unlist(s, f);
            let page = self.geo.page(self.geo.block_of(self.frame(s, f).page), 0);
            let job = JobRec { task: Task::Drop, reason: Reason::Clean, page, ..JobRec::default() };
            self.send_other(s, job, buf);
        }
    }

    pub(crate) fn pump_evicts(&mut self, s: u16, buf: &mut ActionBuf) {
        while self.can_send(s, buf) {
            let f = self.sessions[usize::from(s)].evicts.head;
            if f == NONE {
                return;
            }
            debug_assert!(self.frame(s, f).on == On::Evict);
            self.unlist(s, f);
            let page = self.frame(s, f).page;
            let job = JobRec { task: Task::Evict, reason: Reason::Clean, page, frame: f, ..JobRec::default() };
            self.frame_mut(s, f).job = self.send_other(s, job, buf);
        }
    }
}
