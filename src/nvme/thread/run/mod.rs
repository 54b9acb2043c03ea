//! Main loop of an I/O thread: read messages, submit requests, handle completions, sleep in the engine.
//!
//! It never waits for a single request: a device that does not respond delays only the transfers in flight. [`ends`] handles
//! completions, [`own`] the superblock, [`shutdown`] the end of the thread.

mod coded;
mod ends;
mod own;
mod shutdown;

use super::coding::Coding;
use super::device::Device;
use super::jobs::Jobs;
use super::{DiskEvent, DiskMessage};
use crate::cap::Cap;
use crate::checksum;
use crate::engine::{Done, Engine, Wait};
use crate::health::Health;
use crate::log::SharedLogStatus;
use crate::plan::{Rules, Span};
use crate::probe::Mode;
use crate::schedule::{Entry, Scheduler};
use crate::settings::Settings;
use crate::staging::{CHUNK_BYTES, Staging};
use crate::stats::DiskStatus;
use crate::store::Store;
use crate::transfer::Transfer;
use kvtide_format::{SECTOR, Superblock};
use kvtide_rt::mail::{Mailbox, Waker};
use kvtide_rt::published::Publisher;
use kvtide_types::{IoClass, IoKind, Status};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Maximum messages read per round.
const MESSAGES_A_ROUND: usize = 256;
/// Maximum transfers queued in the thread; others wait in the mailbox and with their senders.
const QUEUE_MAX: usize = 8192;
/// Maximum started transfers that wait for a free request or chunk.
const CROWD_MAX: usize = 8;
/// Interval for sending answers again that a full mailbox refused.
const OFFER_AGAIN: Duration = Duration::from_millis(1);
/// Maximum wait for the device at shutdown; also limited by the disk's timeout.
const END_US: u64 = 5_000_000;
/// Minimum and maximum interval of the check for stalled requests.
const LOOK_US: (u64, u64) = (10_000, 1_000_000);
/// With this many requests in flight, one ends soon.
const MANY: u32 = 16;
/// While many requests, including demand, are in flight and one ended within this time, senders do not signal the thread: it wakes
/// up anyway, at the latest after this time.
const UNRUNG_US: u64 = 5_000;
/// How long a completion waits for others to be handled together: this fraction of the usual latency of demand, at most `BATCH_US`,
/// ...
const BATCH_SHARE: u64 = 10;
const BATCH_US: u64 = 2_000;
/// ... and not at all below this: in a virtual machine a timer costs several µs, as much as the saved wake-ups (measured: batching
/// for 200 µs with 64 KiB reads of 2 ms took 10 to 30 % more CPU than waking up for each).
const BATCH_LEAST_US: u64 = 500;
/// Maximum completions to wait for.
const BATCH_MOST: u32 = 8;

/// Maximum bytes of adjacent slots in one job. Writes: requests of 256 KiB are the fastest on new and on old extents (decision 45).
/// Reads: the first block is needed at once, and a device serves several requests in parallel.
const TOGETHER_READ_BYTES: u64 = 64 << 10;
const TOGETHER_WRITE_BYTES: u64 = 256 << 10;

/// Return true if a transfer can join a job: its slot is adjacent to the job's contiguous slots, and the sum stays below the limit.
fn goes_with(transfers: &[Box<Transfer>], next: &Transfer) -> bool {
    let (Some(first), Some(last)) = (transfers.first(), transfers.last()) else { return false };
    let most = if next.kind == IoKind::Write { TOGETHER_WRITE_BYTES } else { TOGETHER_READ_BYTES };
    let end = last.offset + last.bytes;
    let neighbours = next.offset == end || next.offset + next.bytes == first.offset;
    neighbours && next.kind == first.kind && next.code.is_none() && end - first.offset + next.bytes <= most
}

/// State of an I/O thread.
pub(super) struct Runner {
    // Dropped before the memory that the device may still write to.
    device: Device,
    jobs: Jobs,
    scheduler: Scheduler<Box<Transfer>>,
    store: Store,
    messages: Mailbox<DiskMessage>,
    health: Arc<Health>,
    /// Status published by the log thread.
    log_status: Arc<SharedLogStatus>,
    rules: Rules,
    coding: Coding,
    /// Started jobs with requests still to start, in order.
    crowd: VecDeque<u32>,
    /// Boxes to answer. Those of one round are sent together, so that their owner is woken once; also those that a full mailbox
    /// refused.
    answers: VecDeque<Box<Transfer>>,
    /// How long checksums have delayed them.
    held_ns: u64,
    done: Vec<Done>,
    status: DiskStatus,
    figures: Publisher<DiskStatus>,
    clock: Instant,
    /// Microseconds from 1970 to the start of the clock.
    epoch_us: u64,
    day: u64,
    timeout_us: u64,
    /// Time of the last completion.
    moved_us: u64,
    /// Latency of demand, a moving average.
    usual_us: u64,
    /// Started transfers by class.
    begun: [u32; 3],
    looked_us: u64,
    stalled_since_us: Option<u64>,
    /// A write of the superblock is in flight.
    superblock_busy: bool,
    superblock_us: u64,
    /// The superblock as last written.
    superblock_was: Superblock,
    ends_us: Option<u64>,
}

impl Runner {
    pub fn new(
        engine: Box<dyn Engine>,
        settings: &Settings,
        store: Store,
        mode: Mode,
        messages: Mailbox<DiskMessage>,
        (health, log_status): (Arc<Health>, Arc<SharedLogStatus>),
        (waker, figures): (Waker, Publisher<DiskStatus>),
    ) -> io::Result<Runner> {
        let (block, depth) = (store.superblock, settings.depth);
        let timeout_us = u64::try_from(settings.timeout.as_micros()).unwrap_or(u64::MAX);
        let staging = Staging::new(settings.staging_bytes)?;
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let status = DiskStatus {
            number: settings.number,
            dir: settings.place.path().to_owned(),
            mode: mode.text.clone(),
            capacity_bytes: u64::from(block.regions) * block.region_bytes,
            file_bytes: block.file_bytes(),
            region_bytes: block.region_bytes,
            regions: block.regions,
            depth,
            ..DiskStatus::default()
        };
        Ok(Runner {
            device: Device::new(engine, settings, store.align, staging, &mode),
            jobs: Jobs::new(2 * depth + CROWD_MAX as u32),
            coding: Coding::new(settings.number, settings.codec_threads, waker),
            scheduler: Scheduler::new(depth, timeout_us, Cap::new(settings.writeback_bytes)),
            rules: Rules { align: store.align, chunk_bytes: CHUNK_BYTES as u64 },
            superblock_was: block,
            store,
            messages,
            health,
            log_status,
            crowd: VecDeque::new(),
            answers: VecDeque::new(),
            held_ns: 0,
            moved_us: 0,
            done: Vec::with_capacity(depth as usize),
            status,
            figures,
            clock: Instant::now(),
            epoch_us: u64::try_from(epoch.as_micros()).unwrap_or(0),
            day: 0,
            timeout_us,
            usual_us: 0,
            begun: [0; 3],
            looked_us: 0,
            stalled_since_us: None,
            superblock_busy: false,
            superblock_us: 0,
            ends_us: None,
        })
    }

    fn now_us(&self) -> u64 {
        self.clock.elapsed().as_micros() as u64
    }

    /// Run until the disk is stopped.
    pub fn run(&mut self) {
        loop {
            self.messages.awake();
            let now_us = self.now_us();
            self.read_messages(now_us);
            self.take_coded(now_us);
            self.expire(now_us);
            self.start(now_us);
            self.health.has(self.device.busy() + self.scheduler.len() as u32);
            self.deliver();
            if self.has_ended(now_us) {
                return self.deliver();
            }
            self.publish(now_us);
            let wait = self.wait(now_us);
            let entered = self.device.engine().enter(wait, &mut self.done);
            self.figures.round();
            if let Err(errno) = entered {
                self.fail_for_good(errno.raw_os_error(), "the I/O engine failed");
                return self.refuse_all(errno.raw_os_error());
            }
            let now_us = self.now_us();
            if !self.done.is_empty() {
                self.moved_us = now_us;
                self.figures.changed();
            }
            let mut done = std::mem::take(&mut self.done);
            for done in done.drain(..) {
                self.complete(now_us, done);
            }
            self.done = done;
            self.deliver();
            self.look(now_us);
        }
    }

    /// Publish the status if due. It changes as long as there is any work.
    fn publish(&mut self, now_us: u64) {
        if self.device.busy() > 0 || self.coding.jobs > 0 || self.scheduler.len() > 0 {
            self.figures.changed();
        }
        if self.figures.is_due() {
            let status = self.status(now_us);
            self.figures.publish(status);
        }
    }

    fn read_messages(&mut self, now_us: u64) {
        if !self.messages.is_empty() {
            self.figures.changed();
        }
        for _ in 0..MESSAGES_A_ROUND {
            if self.scheduler.len() >= QUEUE_MAX {
                return;
            }
            match self.messages.take() {
                Some(DiskMessage::Transfer(transfer)) => self.queue(now_us, transfer),
                Some(DiskMessage::Urge { space, id, class }) => {
                    self.scheduler.urge((space, id), class);
                }
                Some(DiskMessage::Register(memory)) => self.device.register(memory),
                Some(DiskMessage::Forget(memory)) => self.device.forget(&memory),
                Some(DiskMessage::End) => self.ends_us = Some(now_us + END_US.min(self.timeout_us)),
                None => return,
            }
        }
    }

    fn queue(&mut self, now_us: u64, mut transfer: Box<Transfer>) {
        transfer.errno = 0;
        if self.ends_us.is_some() {
            return self.answer(transfer, Status::Canceled);
        }
        if !self.is_valid(&transfer) {
            tracing::error!("disk {}: invalid transfer: {transfer:?}", self.status.number);
            return self.answer(transfer, Status::Invalid);
        }
        let bytes = transfer.parts.iter().map(|part| u64::from(part.bytes)).sum();
        let key = (transfer.space, transfer.id);
        self.scheduler.push(Entry {
            key,
            class: transfer.class,
            bytes,
            queued_us: now_us,
            alone: false,
            item: transfer,
        });
    }

    /// Return true if slot and frames exist, and no two pages overlap in the slot.
    fn is_valid(&self, transfer: &Transfer) -> bool {
        let (block, sector) = (&self.store.superblock, u64::from(SECTOR));
        let end = transfer.offset.checked_add(transfer.bytes);
        let slot = transfer.offset >= block.regions_offset
            && end.is_some_and(|end| end <= block.file_bytes())
            && transfer.offset.is_multiple_of(sector)
            && transfer.bytes.is_multiple_of(sector);
        let mut from = 0;
        let pages = transfer.parts.iter().all(|part| {
            let stored = transfer.kind == IoKind::Write
                || transfer.code.as_ref().is_none_or(|code| code.can_hold(part.bytes, part.sectors));
            let fits = part.at >= from && part.bytes > 0 && part.memory.holds(part.offset, part.bytes.into()) && stored;
            from = part.at.saturating_add(part.bytes.into());
            fits && from <= transfer.bytes
        });
        slot && pages && !transfer.parts.is_empty()
    }

    fn expire(&mut self, now_us: u64) {
        while let Some(Entry { mut item, queued_us, bytes, .. }) = self.scheduler.expired(now_us) {
            let waited_us = now_us - queued_us;
            (item.waited_us, item.device_us) = (waited_us as u32, 0);
            self.status.ended(item.class, item.kind, Status::TimedOut, bytes, waited_us, 0);
            self.answer(item, Status::TimedOut);
        }
    }

    /// Start requests as far as the device may take them.
    fn start(&mut self, now_us: u64) {
        for _ in 0..self.crowd.len() {
            let Some(job) = self.crowd.pop_front() else { break };
            self.go_on(job, now_us);
        }
        self.place_waiting(now_us);
        while self.crowd.len() < CROWD_MAX && self.ends_us.is_none() && self.may_begin() {
            let Some(entry) = self.scheduler.next(self.device.free()) else { break };
            self.begin(entry, now_us);
        }
        self.start_superblock(now_us);
    }

    /// Return true if any transfer can be started: a job is free, and no job waits for memory.
    fn may_begin(&self) -> bool {
        self.jobs.has_free() && self.coding.waiting.is_empty()
    }

    /// Start a transfer, together with queued transfers of adjacent slots.
    fn begin(&mut self, entry: Entry<Box<Transfer>>, now_us: u64) {
        let number = self.jobs.take().expect("`may_begin` saw a free job");
        self.jobs.at(number).clear(now_us);
        let (class, alone) = (entry.class, entry.alone);
        // From here on the box is in the job, where it is found however the thread ends.
        self.join(number, entry, now_us);
        let first = self.jobs.at(number).first();
        if let (IoKind::Write, Some(errno)) = (first.kind, self.health.out()) {
            self.jobs.at(number).failed = Some((Status::Io, errno));
            return self.finish(number, now_us);
        }
        if first.code.is_some() {
            return self.begin_coded(number, now_us);
        }
        if !alone {
            self.join_neighbours(number, class, now_us);
        }
        if !self.note_checksums(number, now_us) {
            return self.finish(number, now_us);
        }
        let (job, disk) = (self.jobs.at(number), self.status.number);
        let begin = job.transfers[0].offset;
        for transfer in &job.transfers {
            let at = transfer.offset - begin;
            job.spans.extend(transfer.parts.iter().map(|part| Span {
                at: at + part.at,
                bytes: part.bytes.into(),
                address: part.memory.at(part.offset) as usize,
                buffer: part.memory.buffer(disk, part.offset, part.bytes.into()),
            }));
        }
        self.plan(number, now_us);
    }

    /// Add queued transfers of the class to the job while the next one is adjacent to it.
    fn join_neighbours(&mut self, number: u32, class: IoClass, now_us: u64) {
        loop {
            let job = self.jobs.at(number);
            let Some(next) = self.scheduler.next_with(class, |next| goes_with(&job.transfers, next)) else { return };
            self.join(number, next, now_us);
        }
    }

    /// Add a transfer to a job, before or after its others.
    fn join(&mut self, number: u32, entry: Entry<Box<Transfer>>, now_us: u64) {
        let Entry { class, queued_us, mut item, .. } = entry;
        item.class = class;
        item.waited_us = u32::try_from(now_us - queued_us).unwrap_or(u32::MAX);
        self.begun[class as usize] += 1;
        let job = self.jobs.at(number);
        let before = job.transfers.first().is_some_and(|first| item.offset < first.offset);
        job.transfers.insert(if before { 0 } else { job.transfers.len() }, item);
    }

    /// Compute the checksums of the pages that a job writes. Return false if a page differs from its sampled digest; then nothing
    /// is written.
    fn note_checksums(&mut self, number: u32, now_us: u64) -> bool {
        let job = self.jobs.at(number);
        if !job.writes() {
            return true;
        }
        let (began, mut counts) = (Instant::now(), checksum::SampleCounts::default());
        for transfer in &mut job.transfers {
            let noted = checksum::note(self.store.superblock.store, transfer);
            counts.checked += noted.checked;
            counts.failed += noted.failed;
        }
        self.status.checksum_ns += began.elapsed().as_nanos() as u64;
        if counts.failed > 0 {
            (job.failed, job.began_us) = (Some((Status::Corrupt, 0)), now_us);
        }
        // If a job of several transfers fails, each is checked again alone, and counted then.
        if counts.failed == 0 || job.transfers.len() == 1 {
            self.status.sample_checked += counts.checked;
            self.status.sample_failed += counts.failed;
        }
        counts.failed == 0
    }

    /// Plan the requests of a job's spans, and start as many as possible.
    fn plan(&mut self, number: u32, now_us: u64) {
        let job = self.jobs.at(number);
        let (kind, whole) = (job.first().kind, job.transfers.iter().all(|transfer| transfer.whole));
        self.rules.plan(kind, whole, &job.spans, &mut job.runs);
        job.fills = job.runs.iter().any(|run| run.fill);
        self.status.staged += job.runs.iter().filter(|run| run.staged).count() as u64;
        self.status.filled += job.runs.iter().filter(|run| run.fill).count() as u64;
        self.go_on(number, now_us);
    }

    /// Start as many of a job's remaining requests as possible.
    fn go_on(&mut self, number: u32, now_us: u64) {
        if self.jobs.must_wait(number) {
            return self.crowd.push_back(number);
        }
        let job = self.jobs.at(number);
        while !job.is_started() {
            let (kind, offset) = (job.first().kind, job.first().offset);
            let (run, what) = (job.runs[job.started], (kind, offset));
            // SAFETY: `is_valid` checked that the pages lie in memory that the transfer keeps; the transfer is answered or leaked
            // only after its last run has ended.
            if !unsafe { self.device.start_run(number, run, what, &job.spans, now_us) } {
                return self.crowd.push_back(number);
            }
            job.started += 1;
            job.at_device += 1;
        }
        if job.is_over() {
            self.finish(number, now_us);
        }
    }

    /// Return how long a completion of demand waits for others.
    fn patience_us(&self) -> u64 {
        let us = (self.usual_us / BATCH_SHARE).min(BATCH_US);
        if us < BATCH_LEAST_US { 0 } else { us }
    }

    /// Return how many completions to wait for, and how long.
    fn wait(&mut self, now_us: u64) -> Wait {
        let busy = self.device.busy();
        let many = busy >= MANY && self.begun[IoClass::Demand as usize] > 0;
        let soon = many && now_us - self.moved_us < UNRUNG_US;
        if !soon {
            self.messages.announce();
        }
        // Required after the announcement by the wake-up protocol: check again.
        if !self.messages.is_empty() && self.scheduler.len() < QUEUE_MAX || self.coding.has_done() {
            return Wait::default();
        }
        let (want, batch_us) = match self.patience_us() {
            us if many && us > 0 => ((busy / 4).min(BATCH_MOST), us as u32),
            _ => (1, 0),
        };
        let mut until = self.scheduler.due_us();
        let mut also = |us: u64| until = Some(until.map_or(us, |until| until.min(us)));
        // Also while stalled, to report that the device responds again, since no other event may occur.
        if busy > 0 || self.status.stalled {
            also(self.looked_us + self.look_us());
        }
        if let Some(us) = self.superblock_due_us() {
            also(us);
        }
        if let Some(us) = self.ends_us {
            also(us);
        }
        // Rounded up: an early wake-up would find nothing to do.
        let mut most = until.map(|until| Duration::from_micros(until.saturating_sub(now_us) + 1));
        if !self.answers.is_empty() {
            most = Some(most.map_or(OFFER_AGAIN, |most| most.min(OFFER_AGAIN)));
        }
        if soon {
            let unrung = Duration::from_micros(UNRUNG_US);
            most = Some(most.map_or(unrung, |most| most.min(unrung)));
        }
        let most = most.into_iter().chain(self.figures.due()).min();
        self.figures.sleep(most);
        // After the announcement and the sleep: check again for readers.
        if self.figures.is_wanted() {
            return Wait::default();
        }
        Wait { want, batch_us, most }
    }

    fn look_us(&self) -> u64 {
        (self.timeout_us / 4).clamp(LOOK_US.0, LOOK_US.1)
    }

    /// Check for stalled requests.
    fn look(&mut self, now_us: u64) {
        if now_us - self.looked_us < self.look_us() {
            return;
        }
        self.looked_us = now_us;
        let logged = self.log_status.take_written();
        self.wrote(now_us, logged);
        let (mut overdue, mut oldest_us) = self.device.overdue(now_us, self.timeout_us);
        // The log thread's calls go to the same device.
        let inside_us = self.log_status.report().inside_us;
        overdue += u32::from(inside_us >= self.timeout_us);
        oldest_us = oldest_us.max(inside_us);
        (self.status.stalled_requests, self.status.oldest_us) = (overdue, oldest_us);
        if (overdue > 0) == self.status.stalled {
            return;
        }
        self.figures.changed();
        self.status.stalled = overdue > 0;
        self.stalled_since_us = self.status.stalled.then_some(now_us);
        let (disk, dir) = (self.status.number, self.status.dir.display());
        if self.status.stalled {
            tracing::error!(
                "disk {disk} ({dir}): stalled: {overdue} requests in flight for more than {} ms",
                self.timeout_us / 1000
            );
        } else {
            tracing::warn!("disk {disk} ({dir}): the device responds again");
        }
        self.health.tell(DiskEvent::Stalled { disk, stalled: self.status.stalled });
    }

    fn status(&mut self, now_us: u64) -> DiskStatus {
        let (overdue, oldest_us) = self.device.overdue(now_us, self.timeout_us);
        let status = &mut self.status;
        for class in [IoClass::Demand, IoClass::Prefetch, IoClass::WriteBack] {
            let of = &mut status.classes[class as usize];
            (of.queued, of.at_device) = (self.scheduler.waiting(class) as u64, self.begun[class as usize].into());
        }
        (status.stalled_requests, status.oldest_us) = (overdue, oldest_us);
        status.stalled_us = self.stalled_since_us.map_or(0, |since| now_us - since);
        (status.requests, status.short, status.at_device) =
            (self.device.started, self.device.short, self.device.busy());
        (status.registered_bytes, status.unregistered_bytes) =
            (self.device.registered_bytes, self.device.unregistered_bytes);
        (status.writeback_cap_bytes, status.writeback_bytes) =
            (self.scheduler.cap.bytes(), self.scheduler.cap.at_device());
        status.written_ever_bytes = self.store.superblock.written_bytes;
        (status.out_of_service, status.errors, status.log) =
            (self.health.out(), self.health.errors(), self.log_status.report());
        self.health.why().clone_into(&mut status.why_out);
        status.clone()
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        if self.device.busy() > 0 {
            // The drop of `Device` leaks the rest.
            self.jobs.leak();
            self.store.page.leak();
        }
    }
}
