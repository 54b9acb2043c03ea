//! What the disk writes of itself: regions for the first time, and its superblock.

use super::Runner;
use crate::io::health::errno_text;
use crate::io::thread::DiskEvent;
use crate::io::thread::device::{End, Owner};
use crate::io::thread::regions;
use kvtide_tiering::format::SUPERBLOCK_BYTES;

/// How often the superblock is written at most, while regions become ready.
const SUPERBLOCK_SOON_US: u64 = 1_000_000;
/// How often it is written while only its count of bytes changes.
const SUPERBLOCK_LATE_US: u64 = 60_000_000;
/// How often progress is told.
const PROGRESS_US: u64 = 5_000_000;

impl Runner {
    /// Writes more of the regions that were never written, when nobody else wants the device.
    pub(super) fn start_regions(&mut self, now_us: u64) {
        while let Some(regions::Part { region, offset, bytes }) = self.regions.next() {
            let Some(noise) = &self.regions.noise else { return };
            if !self.scheduler.is_idle_for(bytes, self.device.free()) {
                return;
            }
            // SAFETY: the noise is never written again, and is dropped, or leaked, after its last request.
            if !unsafe { self.device.start_own(Owner::Region(region, bytes), noise, bytes, offset, now_us) } {
                return;
            }
            self.scheduler.cap.begin(bytes);
            self.regions.begun();
        }
    }

    pub(super) fn complete_own(&mut self, owner: Owner, end: End, now_us: u64) {
        let (disk, error) = (self.status.number, if let End::Failed(errno) = end { errno } else { 0 });
        let why = errno_text(error);
        match (owner, end) {
            (Owner::Region(region, bytes), End::Whole) => {
                self.scheduler.cap.end(now_us, bytes);
                self.status.written.region_bytes += bytes;
                self.wrote(now_us, bytes);
                if self.regions.written(region) {
                    self.region_ready(now_us);
                }
            }
            (Owner::Region(region, bytes), End::Failed(errno)) => {
                self.scheduler.cap.end(now_us, bytes);
                if self.regions.errno == 0 {
                    tracing::error!(
                        "disk {disk}: region {region} cannot be written ({why}): no more regions will serve"
                    );
                    self.regions.failed(if errno == 0 { libc::EIO } else { errno });
                    self.health.tell(DiskEvent::Stopped { disk, errno: self.regions.errno });
                }
            }
            (_, End::Whole) => {
                self.superblock_busy = false;
                self.status.written.superblock_bytes += SUPERBLOCK_BYTES as u64;
            }
            (_, End::Failed(_)) => {
                self.superblock_busy = false;
                tracing::error!("disk {disk}: its superblock cannot be written: {why}");
            }
        }
    }

    pub(super) fn region_ready(&mut self, now_us: u64) {
        let (disk, ready, all) = (self.status.number, self.regions.ready, self.status.regions);
        self.store.superblock.regions_written = ready;
        self.health.tell(DiskEvent::Ready { disk, regions: ready });
        if self.regions.complete() {
            self.regions.noise = None;
            tracing::info!("disk {disk}: all {all} regions are written");
        } else if now_us - self.told_us >= PROGRESS_US {
            self.told_us = now_us;
            tracing::info!(
                "disk {disk}: {ready} of {all} regions are written ({} %)",
                u64::from(ready) * 100 / u64::from(all)
            );
        }
    }

    /// When the superblock should be written again; nothing if it says what is.
    pub(super) fn superblock_due_us(&self) -> Option<u64> {
        let (is, was) = (&self.store.superblock, &self.superblock_was);
        let after = if is.regions_written != was.regions_written {
            SUPERBLOCK_SOON_US
        } else if is.written_bytes != was.written_bytes {
            SUPERBLOCK_LATE_US
        } else {
            return None;
        };
        (!self.superblock_busy).then_some(self.superblock_us + after)
    }

    pub(super) fn start_superblock(&mut self, now_us: u64) {
        if self.superblock_due_us().is_none_or(|due_us| now_us < due_us) || self.device.free() == 0 {
            return;
        }
        let place = self.store.next_superblock();
        // SAFETY: the page is written again only when this request has come back, and is dropped, or leaked, after it.
        self.superblock_busy = unsafe {
            self.device.start_own(Owner::Superblock, &self.store.page, SUPERBLOCK_BYTES as u64, place, now_us)
        };
        (self.superblock_us, self.superblock_was) = (now_us, self.store.superblock);
    }
}
