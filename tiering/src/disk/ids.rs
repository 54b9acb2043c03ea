//! Block ids for requests: which entries give theirs up.

use crate::api::Status;
use crate::disk::DiskTier;

/// Decision about the start of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admit {
    Yes,
    /// Work in flight may make room.
    Wait,
    No(Status),
}

impl DiskTier {
    /// Decide whether `count` block ids are free for the session, now or soon.
    pub(crate) fn admit_ids(&mut self, s: u16, count: u32) -> Admit {
        let beyond_guarantee = count.saturating_sub(self.unclaimed(s));
        if beyond_guarantee > 0 && !self.ids_suffice(beyond_guarantee) {
            // Evicting all cached blocks would not free enough ids.
            return Admit::No(Status::NoSpace);
        }
        if self.ids_wanted > 0 && self.ids_short(count) > 0 && self.is_writing_entries() {
            // An earlier search found too few ids, and the blocks that it waits for are not recorded yet. Another search would
            // find no more.
            return Admit::Wait;
        }
        while self.ids_short(count) > 0 && self.drop_idle_blocks(count) {}
        if self.ids_short(count) > 0 && self.is_writing_entries() {
            // A recorded block gives its id up, so nothing has to be dropped unwritten.
            self.ids_wanted = self.ids_short(count);
            return Admit::Wait;
        }
        while self.ids_short(count) > 0 && self.drop_entry_with_block() {}
        if self.blocks().free_ids() >= count {
            Admit::Yes
        } else if self.ids_short(count) == 0 {
            Admit::Wait
        } else {
            Admit::No(Status::NoSpace)
        }
    }

    /// Return whether blocks are being written to NVMe, by disks that accept writes.
    fn is_writing_entries(&self) -> bool {
        let room = self.disk.free_slots() > 0 || self.disk.slots_to_come();
        let some = self.disk.writes() + self.disk.log_requests_in_flight() + self.blocks().to_record.len > 0
            || room && self.blocks().to_write_count() > 0;
        self.disk.exists() && some && self.disk.failing().is_none()
    }

    /// Count a block that was recorded or failed to be written. Retry the requests that wait for ids once enough ids can be free,
    /// or nothing more is being written.
    pub(crate) fn ids_may_be_free(&mut self) {
        if self.ids_wanted == 0 {
            return;
        }
        self.ids_wanted -= 1;
        if self.ids_wanted == 0 || !self.is_writing_entries() {
            self.ids_wanted = 0;
            self.wake_admission();
        }
    }
}
