//! Completion of requests and transfers, and the answers.

use super::Runner;
use crate::checksum;
use crate::engine::Done;
use crate::schedule::Entry;
use crate::stats::DiskStatus;
use crate::thread::device::{End, Owner};
use crate::transfer::Transfer;
use crossbeam::channel::TrySendError;
use kvtide_types::{IoClass, IoKind, Status};
use std::time::Instant;

/// How long answers are delayed by the checksums of others in their round.
const HELD_US: u64 = 50;
/// Microseconds per day.
const DAY_US: u64 = 86_400_000_000;

impl Runner {
    pub(super) fn complete(&mut self, now_us: u64, done: Done) {
        let Some((token, owner, end)) = self.device.take(done) else { return };
        if let End::Failed(errno) = end {
            self.health.error(errno, Instant::now());
        }
        let Owner::Job(number) = owner else {
            self.device.settle(token, end, &[], now_us);
            return self.complete_own(end);
        };
        let job = self.jobs.at(number);
        if !self.device.settle(token, end, &job.spans, now_us) {
            return;
        }
        job.at_device -= 1;
        if let End::Failed(errno) = end {
            let status = if errno == libc::ENOSPC { Status::NoSpace } else { Status::Io };
            job.failed.get_or_insert((status, errno));
        }
        // A job in the crowd is finished when its turn comes.
        if job.is_over() && !self.crowd.contains(&number) {
            self.finish(number, now_us);
        }
    }

    /// Take the disk out of service.
    pub(in crate::thread) fn fail_for_good(&self, errno: i32, why: &str) {
        self.health.fail(errno, why);
    }

    pub(super) fn finish(&mut self, number: u32, now_us: u64) {
        if self.decode(number, now_us) {
            return;
        }
        let job = self.jobs.at(number);
        let ended_us = job.coded.as_ref().and_then(|coded| coded.ended_us).unwrap_or(now_us);
        let (failed, device_us) = (job.failed, ended_us - job.began_us);
        let moved: u64 = job.runs.iter().map(|run| run.bytes).sum();
        let (class, kind) = (job.first().class, job.first().kind);
        if let Some(coded) = job.coded.take() {
            self.coding.give(coded);
        }
        if failed.is_none() && kind == IoKind::Write {
            self.status.written.request_bytes += moved;
            self.wrote(now_us, moved);
        }
        if class == IoClass::Demand && kind == IoKind::Read {
            self.scheduler.cap.demand(now_us, device_us);
        }
        if class == IoClass::Demand {
            self.usual_us = (self.usual_us * 7 + device_us) / 8;
        }
        if failed.is_some() && self.jobs.at(number).transfers.len() > 1 {
            return self.part(number, now_us);
        }
        // Each box stays in the job until it is answered.
        while let Some(transfer) = self.jobs.at(number).transfers.last_mut() {
            let bytes =
                end(transfer, failed, device_us, &mut self.status, self.store.superblock.store, &mut self.held_ns);
            if class == IoClass::WriteBack {
                self.scheduler.cap.end(now_us, bytes);
            }
            self.begun[class as usize] -= 1;
            let transfer = self.jobs.at(number).transfers.pop().expect("the loop saw a transfer");
            let status = transfer.status;
            self.status.ended(class, kind, status, bytes, transfer.waited_us.into(), device_us);
            self.answer(transfer, status);
            if self.held_ns / 1000 >= HELD_US.max(self.patience_us()) {
                self.deliver();
            }
        }
        self.jobs.give(number);
    }

    /// Retry each transfer of a failed job alone, so that a bad sector fails only one block.
    fn part(&mut self, number: u32, now_us: u64) {
        while let Some(item) = self.jobs.at(number).transfers.pop() {
            let (class, key) = (item.class, (item.space, item.id));
            let bytes = moved_bytes(&item);
            if class == IoClass::WriteBack {
                self.scheduler.cap.end(now_us, bytes);
            }
            self.begun[class as usize] -= 1;
            self.scheduler.put_back(Entry { key, class, bytes, queued_us: now_us, alone: true, item });
        }
        self.jobs.give(number);
    }

    pub(super) fn wrote(&mut self, now_us: u64, bytes: u64) {
        let day = (self.epoch_us + now_us) / DAY_US;
        if day != self.day {
            (self.day, self.status.written_today_bytes) = (day, 0);
        }
        self.status.written_today_bytes += bytes;
        self.store.superblock.written_bytes += bytes;
    }

    /// Queue a box for the answers at the end of the round.
    pub(super) fn answer(&mut self, mut transfer: Box<Transfer>, status: Status) {
        transfer.status = status;
        self.answers.push_back(transfer);
    }

    /// Send the answers that their mailboxes accept.
    pub(super) fn deliver(&mut self) {
        self.held_ns = 0;
        for _ in 0..self.answers.len() {
            let Some(transfer) = self.answers.pop_front() else { return };
            let reply = transfer.reply.clone();
            // If the mailbox of an answer is gone, the answer is dropped with its memory; the device no longer uses it.
            if let Err(TrySendError::Full(transfer)) = reply.offer(transfer) {
                self.answers.push_back(transfer);
            }
        }
    }
}

/// Return the bytes of a transfer's pages.
fn moved_bytes(transfer: &Transfer) -> u64 {
    transfer.parts.iter().map(|part| u64::from(part.bytes)).sum()
}

/// Set the results of a transfer, verifying the checksums of a read. Return the bytes of its pages.
fn end(
    transfer: &mut Transfer,
    failed: Option<(Status, i32)>,
    device_us: u64,
    counts: &mut DiskStatus,
    store: u128,
    held_ns: &mut u64,
) -> u64 {
    let bytes = moved_bytes(transfer);
    (transfer.status, transfer.errno) = failed.unwrap_or((Status::Ok, 0));
    transfer.device_us = u32::try_from(device_us).unwrap_or(u32::MAX);
    if transfer.status != Status::Ok {
        return bytes;
    }
    if transfer.kind == IoKind::Write {
        counts.written.page_bytes += bytes;
        return bytes;
    }
    let began = Instant::now();
    let bad = if transfer.code.is_some() {
        transfer.parts.iter().filter(|part| !part.ok).count() as u64
    } else {
        checksum::compare(store, transfer)
    };
    let took_ns = began.elapsed().as_nanos() as u64;
    counts.checksum_ns += took_ns;
    *held_ns += took_ns;
    if bad > 0 {
        counts.checksum_failures += bad;
        let (disk, offset) = (counts.number, transfer.offset);
        tracing::error!("disk {disk}: checksum mismatch in {bad} pages of the slot at offset {offset}");
    }
    bytes
}
