//! Stores of pages from tier 0 to host.

use crate::actions::ActionBuf;
use crate::api::{Cause, NONE};
use crate::blocks::FrameState;
use crate::counters::Reason;
use crate::host::{For, HostTier};
use crate::sessions::{JobRec, Task};

impl HostTier {
    /// Store the page shown in a frame, unless it is being stored already or no host frame is available. The caller checked that a
    /// job can be sent.
    pub(crate) fn copy_out(&mut self, s: u16, f: u32, reason: Reason, op: u32, to: For, buf: &mut ActionBuf) -> bool {
        let page = self.frame(s, f).page;
        if self.page(page).copying_out() || self.page(page).below() {
            return false;
        }
        let Some(host) = self.take_host(s, page, to) else { return false };
        // Taking a host frame may have dropped cached blocks, including this page.
        if self.frame(s, f).page != page || !self.block(self.geo().block_of(page)).live() {
            self.host.free(host);
            return false;
        }
        self.set_copying_out(page, true);
        let b = self.geo().block_of(page);
        self.add_in_flight(b);
        let slot = self.send_other(
            s,
            JobRec { task: Task::CopyOut, reason, page, frame: f, host, op, ..JobRec::default() },
            buf,
        );
        self.begin_copy_out(s, f, slot);
        if op != NONE {
            self.job_begins(s, op);
        }
        self.settle(s, f);
        true
    }

    /// Provide a page that is in no host frame: store it from another session's tier 0, or mark it as lost if no copy exists.
    pub(crate) fn fetch_from_elsewhere(&mut self, page: u32, buf: &mut ActionBuf) {
        if self.page(page).copying_out() {
            return;
        }
        let (s, f) = (self.page(page).session, self.page(page).frame);
        if f == NONE {
            return self.lose_if_nowhere(page, Cause::EngineLost);
        }
        if self.frame(s, f).state == FrameState::Present && self.frame(s, f).job == NONE && self.can_send_last(s, buf) {
            self.copy_out(s, f, Reason::Demand, NONE, For::Waiting, buf);
        }
    }
}
