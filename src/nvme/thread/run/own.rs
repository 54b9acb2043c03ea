//! Periodic writes of the superblock.

use super::Runner;
use crate::health::errno_text;
use crate::thread::device::{End, Owner};
use kvtide_format::SUPERBLOCK_BYTES;

/// Minimum interval between writes of the superblock: only its count of written bytes changes.
const SUPERBLOCK_US: u64 = 60_000_000;

impl Runner {
    pub(super) fn complete_own(&mut self, end: End) {
        self.superblock_busy = false;
        match end {
            End::Whole => self.status.written.superblock_bytes += SUPERBLOCK_BYTES as u64,
            End::Failed(errno) => {
                let (disk, why) = (self.status.number, errno_text(errno));
                tracing::error!("disk {disk}: cannot write the superblock: {why}");
            }
        }
    }

    /// Return when [`Runner::start_superblock`] writes the superblock again; None if it is up to date or cannot be written now. The thread
    /// sleeps until then, so a time at which nothing is written would keep it awake for ever.
    pub(super) fn superblock_due_us(&self) -> Option<u64> {
        let changed = self.store.superblock.written_bytes != self.superblock_was.written_bytes;
        let may = self.ends_us.is_none() && self.health.out().is_none() && self.device.free() > 0;
        (changed && may && !self.superblock_busy).then_some(self.superblock_us + SUPERBLOCK_US)
    }

    pub(super) fn start_superblock(&mut self, now_us: u64) {
        if self.superblock_due_us().is_none_or(|due_us| now_us < due_us) {
            return;
        }
        let place = self.store.next_superblock();
        // SAFETY: the page is rewritten only after this request's completion, and dropped, or leaked, after it.
        self.superblock_busy = unsafe {
            self.device.start_own(Owner::Superblock, &self.store.page, SUPERBLOCK_BYTES as u64, place, now_us)
        };
        (self.superblock_us, self.superblock_was) = (now_us, self.store.superblock);
    }
}
