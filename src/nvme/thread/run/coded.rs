//! Transfers of coded and encrypted slabs. A write goes through the coding pool and then to the device, a read to the device and
//! then through the pool. Otherwise they are handled like other transfers.

use super::Runner;
use crate::code::stored_bytes;
use crate::thread::coding::{AHEAD_BYTES, Stuck};
use kvtide_types::{IoClass, IoKind, Status};

impl Runner {
    /// Start a transfer.
    pub(super) fn begin_coded(&mut self, number: u32, now_us: u64) {
        match self.coding.open() {
            Ok(Some(memory)) => self.device.register(memory),
            Ok(None) => {}
            Err(error) => {
                let why = format!("cannot start the coding pool: {error}");
                return self.stuck(number, Stuck::Failed(why), now_us);
            }
        }
        self.place(number, now_us);
    }

    /// Allocate a job's memory between pool and device, and start it; if no memory is free, the job waits.
    fn place(&mut self, number: u32, now_us: u64) {
        let job = self.jobs.at(number);
        let transfer = job.transfers.first_mut().expect("the job has a transfer");
        match self.coding.place(transfer, &mut job.spans) {
            Ok(mut coded) => {
                let writes = transfer.kind == IoKind::Write;
                if writes {
                    let bytes = transfer.parts.iter().map(|part| u64::from(part.bytes)).sum();
                    if transfer.class == IoClass::WriteBack && self.coding.ahead_bytes + bytes <= AHEAD_BYTES {
                        self.scheduler.cap.later(bytes);
                        self.coding.ahead_bytes += bytes;
                        coded.ahead_bytes = bytes;
                    }
                    self.coding.send(number, transfer, &mut coded);
                }
                job.coded = Some(coded);
                if !writes {
                    self.plan(number, now_us);
                }
            }
            Err(stuck) => self.stuck(number, stuck, now_us),
        }
    }

    fn stuck(&mut self, number: u32, stuck: Stuck, now_us: u64) {
        let job = self.jobs.at(number);
        let transfer = job.transfers.first_mut().expect("the job has a transfer");
        let (disk, key) = (self.status.number, transfer.key);
        match stuck {
            Stuck::Later => return self.coding.waiting.push_back(number),
            Stuck::NoKey => {
                tracing::error!("disk {disk}: {key:?}: the encryption key is missing");
                transfer.parts.iter_mut().for_each(|part| part.ok = false);
            }
            Stuck::Failed(why) => {
                tracing::error!("disk {disk}: {key:?}: {why}");
                job.failed = Some((Status::Io, 0));
            }
        }
        self.finish(number, now_us);
    }

    /// Start the jobs that wait for memory, in order, while there is some.
    pub(super) fn place_waiting(&mut self, now_us: u64) {
        for _ in 0..self.coding.waiting.len() {
            let Some(number) = self.coding.waiting.pop_front() else { return };
            self.place(number, now_us);
            if self.coding.waiting.back() == Some(&number) {
                // It still waits: put it back to the front.
                self.coding.waiting.rotate_right(1);
                return;
            }
        }
    }

    /// Send a job's stored forms, read by the device, to the pool. Return false if there is nothing to decode.
    pub(super) fn decode(&mut self, number: u32, now_us: u64) -> bool {
        let job = self.jobs.at(number);
        let (Some(transfer), Some(coded)) = (job.transfers.first(), &mut job.coded) else { return false };
        if transfer.kind != IoKind::Read || job.failed.is_some() || coded.ended_us.is_some() {
            return false;
        }
        coded.ended_us = Some(now_us);
        self.coding.send(number, transfer, coded);
        true
    }

    /// Handle finished works of the pool.
    pub(super) fn take_coded(&mut self, now_us: u64) {
        while let Some(mut work) = self.coding.take() {
            let number = work.task.job;
            let job = self.jobs.at(number);
            let (Some(transfer), Some(coded)) = (job.transfers.first_mut(), &mut job.coded) else {
                self.coding.idle(work);
                continue;
            };
            for page in &work.pages {
                let part = &mut transfer.parts[page.part as usize];
                part.ok = page.ok;
                if work.task.loads {
                    part.digest = page.digest;
                } else {
                    (part.crc, part.sectors, part.tag) = (page.crc, page.sectors, page.tag);
                    self.status.sample_checked += u64::from(page.digest.is_some());
                    self.status.sample_failed += u64::from(page.strange);
                    if page.strange {
                        part.ok = false;
                        job.failed = Some((Status::Corrupt, 0));
                    }
                }
            }
            coded.works -= 1;
            let over = coded.works == 0;
            self.status.code.join(&std::mem::take(&mut work.task.done));
            self.coding.idle(work);
            if !over {
                continue;
            }
            if transfer.kind == IoKind::Read {
                self.coding.jobs -= 1;
                self.finish(number, now_us);
            } else {
                match std::mem::take(&mut coded.ahead_bytes) {
                    // The cap counts it already; behind a write that the cap does not admit it would wait forever.
                    0 => {
                        self.coding.jobs -= 1;
                        self.encoded(number, now_us);
                    }
                    ahead_bytes => self.coding.encoded.push_back((number, ahead_bytes)),
                }
            }
        }
        self.write_encoded(now_us);
    }

    /// Start writes that were encoded ahead, in order, as far as the cap admits them.
    fn write_encoded(&mut self, now_us: u64) {
        while let Some((number, bytes)) = self.coding.encoded.front().copied() {
            if !self.scheduler.cap.admits(bytes) {
                return;
            }
            self.scheduler.cap.begin(bytes);
            self.coding.ahead_bytes -= bytes;
            self.coding.encoded.pop_front();
            self.coding.jobs -= 1;
            self.encoded(number, now_us);
        }
    }

    /// Send an encoded write to the device.
    fn encoded(&mut self, number: u32, now_us: u64) {
        let job = self.jobs.at(number);
        let transfer = job.transfers.first().expect("the job has a transfer");
        if transfer.parts.iter().any(|part| !part.ok) {
            job.failed.get_or_insert((Status::Io, 0));
        }
        if job.failed.is_some() {
            return self.finish(number, now_us);
        }
        for (span, part) in job.spans.iter_mut().zip(&transfer.parts) {
            span.bytes = stored_bytes(part.bytes, part.sectors).into();
        }
        job.began_us = now_us;
        self.plan(number, now_us);
    }
}
