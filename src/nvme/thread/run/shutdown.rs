//! Shutdown: of the daemon, or of a disk after its engine failed.

use super::Runner;
use crate::engine::Wait;
use crate::thread::DiskMessage;
use crate::thread::device::{End, Owner};
use crate::transfer::Transfer;
use kvtide_rt::mail::Waited;
use kvtide_types::Status;
use std::time::{Duration, Instant};

/// Interval at which a disk out of service checks for completions of its device.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

impl Runner {
    /// Return true if the shutdown is complete: all waiting transfers were answered, and the device is idle or the deadline has
    /// passed.
    pub(super) fn has_ended(&mut self, now_us: u64) -> bool {
        let Some(ends_us) = self.ends_us else { return false };
        let waiting: Vec<Box<Transfer>> = self.scheduler.drain().map(|entry| entry.item).collect();
        for transfer in waiting {
            self.answer(transfer, Status::Canceled);
        }
        let busy = self.device.busy();
        if (busy > 0 || self.coding.jobs > 0) && now_us < ends_us {
            return false;
        }
        if self.coding.jobs > 0 {
            tracing::error!("disk {}: encoding did not finish in time; its transfers are canceled", self.status.number);
            // The coding threads may be using frames that are answered below.
            self.coding.rest();
        }
        // Transfers with nothing at the device.
        for transfer in self.jobs.take_all().0 {
            self.answer(transfer, Status::Canceled);
        }
        if busy > 0 {
            tracing::error!(
                "disk {}: {busy} requests did not finish in time; their memory is not freed",
                self.status.number
            );
        } else if self.health.out().is_none()
            && self.store.superblock != self.superblock_was
            && let Err(error) = self.store.write_superblock()
        {
            tracing::error!("disk {}: cannot write the superblock: {error}", self.status.number);
        }
        true
    }

    /// The engine failed, or this thread panicked: refuse all transfers. Transfers at the device are answered when their
    /// completions arrive, if the engine still delivers them; until then their memory is not reused.
    pub(in crate::thread) fn refuse_all(&mut self, errno: i32) {
        let failed = |mut transfer: Box<Transfer>| {
            transfer.errno = errno;
            transfer
        };
        // The coding threads may be using frames that are answered below.
        self.coding.rest();
        let waiting: Vec<Box<Transfer>> = self.scheduler.drain().map(|entry| entry.item).collect();
        let (idle, at_device) = self.jobs.take_all();
        for transfer in waiting.into_iter().chain(idle) {
            self.answer(failed(transfer), Status::Io);
        }
        if at_device > 0 {
            tracing::error!(
                "{}: {at_device} transfers are still at the device and end with its completions",
                self.health.name()
            );
        }
        loop {
            self.figures.round();
            self.bury(errno);
            self.deliver();
            self.figures.changed();
            if self.figures.is_due() || self.messages.is_empty() {
                let status = self.status(self.now_us());
                self.figures.publish(status);
            }
            let again = !self.answers.is_empty() || self.device.busy() > 0;
            let again = again.then_some(LOOK_AGAIN);
            self.figures.sleep_unrung(again);
            match self.messages.wait_until(again.map(|after| Instant::now() + after)) {
                Waited::Message(DiskMessage::Transfer(transfer)) => self.answer(failed(transfer), Status::Io),
                Waited::Message(DiskMessage::End) | Waited::Gone => return,
                Waited::Message(DiskMessage::Urge { .. } | DiskMessage::Register(_) | DiskMessage::Forget(_))
                | Waited::Due => {}
            }
        }
    }

    /// Fail transfers that have received all their completions.
    fn bury(&mut self, errno: i32) {
        if self.device.busy() == 0 || self.device.engine().enter(Wait::default(), &mut self.done).is_err() {
            return;
        }
        let now_us = self.now_us();
        for done in std::mem::take(&mut self.done) {
            let Some((token, owner, _)) = self.device.take(done) else { continue };
            let Owner::Job(number) = owner else {
                self.device.settle(token, End::Failed(errno), &[], now_us);
                continue;
            };
            let job = self.jobs.at(number);
            // As failed, so that read data is not used and nothing more is written.
            self.device.settle(token, End::Failed(errno), &job.spans, now_us);
            job.at_device = job.at_device.saturating_sub(1);
            if job.at_device > 0 {
                continue;
            }
            while let Some(mut transfer) = self.jobs.at(number).transfers.pop() {
                transfer.errno = errno;
                self.answer(transfer, Status::Io);
            }
        }
    }
}
