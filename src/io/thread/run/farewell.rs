//! The end: of the daemon, or of the engine alone.

use super::Runner;
use crate::io::thread::{DiskEvent, DiskLetter};
use crate::io::transfer::Transfer;
use kvtide_tiering::api::Status;

impl Runner {
    /// Whether the disk's end has come: everything that waited was sent back, and the device has nothing or its time is over.
    pub(super) fn has_ended(&mut self, now_us: u64) -> bool {
        let Some(ends_us) = self.ends_us else { return false };
        let waiting: Vec<Box<Transfer>> = self.scheduler.drain().map(|entry| entry.item).collect();
        for transfer in waiting {
            self.answer(transfer, Status::Canceled);
        }
        let busy = self.device.busy();
        if busy > 0 && now_us < ends_us {
            return false;
        }
        if busy > 0 {
            tracing::error!("disk {}: it did not end {busy} requests; their memory is left to it", self.status.number);
        } else if self.store.superblock != self.superblock_was
            && let Err(error) = self.store.write_superblock()
        {
            tracing::error!("disk {}: its superblock cannot be written: {error}", self.status.number);
        }
        true
    }

    /// The engine is gone: everything that comes is sent back.
    pub(super) fn refuse_all(&mut self, errno: i32) {
        (self.tell)(DiskEvent::Failed { disk: self.status.number, errno });
        let mut waiting: Vec<Box<Transfer>> = self.scheduler.drain().map(|entry| entry.item).collect();
        loop {
            for mut transfer in waiting.drain(..) {
                transfer.errno = errno;
                self.answer(transfer, Status::Io);
            }
            self.deliver();
            match self.letters.wait() {
                Some(DiskLetter::Transfer(transfer)) => waiting.push(transfer),
                Some(DiskLetter::Status(reply)) => drop(reply.try_send(self.status(self.now_us()))),
                Some(DiskLetter::End) | None => return,
                Some(DiskLetter::Urge { .. } | DiskLetter::Register(_) | DiskLetter::Forget(_)) => {}
            }
        }
    }
}
