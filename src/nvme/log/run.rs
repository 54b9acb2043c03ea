//! Main loop of a log thread: receive requests, write records in batches, flush in batches, answer.
//!
//! * Urgent puts are written at once, together with all requests that arrived meanwhile (group commit). Others are delayed by at
//!   most [`PUTS`] to be batched. A put is answered when its record is written.
//! * Erases and grants are answered when they are flushed; erases that are not urgent within [`ERASES`].
//! * A failed write is retried, since nothing was acknowledged yet. A failed flush takes the disk out of service, since a later
//!   flush would not show which data was lost. So does the last failed retry of a write.
//! * Nothing counts as stored or durable if the file is no longer at its path: a restart would not find it.
//! * A box is always in one of the lists, from its arrival to its answer, so that it is found however the thread ends.

use super::discard::Discards;
use super::report::SharedLogStatus;
use super::{DiskLog, EraseKeys, LogMessage, LogRequest, LogRequestKind};
use crate::DiskEvent;
use crate::code::{KeyError, Keyring};
use crate::health::{Health, errno};
use crate::settings::Discard;
use crate::store::{Absence, Presence};
use crossbeam::channel::TrySendError;
use kvtide_format::log::{LogError, Salt, SlabHeader};
use kvtide_rt::mail::{Mailbox, Waited};
use kvtide_types::Status;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum delay of records that are not urgent, to batch them. Only whole sectors are written, so one record costs as much as ten.
const PUTS: Duration = Duration::from_millis(50);
/// The same for erases, each of which costs a share of a device flush.
const ERASES: Duration = Duration::from_millis(100);
/// Maximum number of delayed requests.
const HELD_MAX: usize = 1024;
/// Maximum bytes of delayed records.
const HELD_BYTES: u64 = 256 << 10;
/// Maximum messages read per round.
const MESSAGES_A_ROUND: usize = 1024;
/// Number of tries of a write, and the pause between them.
const TRIES: u32 = 3;
const TRY_AGAIN: Duration = Duration::from_millis(20);
/// Delay after a flush until it is marked in the log, unless a later record marks it.
const MARK: Duration = Duration::from_secs(1);
/// Interval for sending answers again that a full mailbox refused.
const OFFER_AGAIN: Duration = Duration::from_millis(1);
/// Interval for checking that the store is at its path. It is also checked after each write and flush.
const LOOK: Duration = Duration::from_secs(1);

/// State of a log thread.
pub(super) struct Runner {
    log: DiskLog,
    keyring: Arc<Keyring>,
    /// A salt that the full log could not take yet.
    salt: Option<Salt>,
    number: u16,
    messages: Mailbox<LogMessage>,
    health: Arc<Health>,
    log_status: Arc<SharedLogStatus>,
    /// Puts without a written record, in order.
    #[expect(clippy::vec_box, reason = "boxes are sent between threads")]
    puts: Vec<Box<LogRequest>>,
    /// Erases and flushes that wait for a flush of the device, in order.
    #[expect(clippy::vec_box, reason = "boxes are sent between threads")]
    settles: Vec<Box<LogRequest>>,
    /// Grants that wait for a flush, as region and number.
    grants: Vec<(u32, u64)>,
    /// Freed regions with a record that is not flushed yet.
    freed: Vec<u32>,
    answers: VecDeque<Box<LogRequest>>,
    write_by: Option<Instant>,
    flush_by: Option<Instant>,
    mark_by: Option<Instant>,
    tries: u32,
    compacting: bool,
    /// Allocates a region in the file.
    allocate: Allocate,
    has_room: HasRoom,
    discarding: Discarding,
    /// Earliest time of the next discard.
    discard_at: Instant,
    presence: Presence,
    /// Time of the next path check.
    look_at: Instant,
    /// A full log was reported since the last successful write.
    full: bool,
    /// A region that the file system had no room for, while no other one has been allocated since.
    no_room: Option<u32>,
}

/// Allocate the range of a region, by number, so that writes to it succeed even when the file system fills up.
pub(super) type Allocate = Box<dyn FnMut(u32) -> Result<(), Errno> + Send>;

/// Return true if the file system has as many free bytes as a region.
pub(super) type HasRoom = Box<dyn FnMut() -> bool + Send>;

/// Discard of free regions: what and how.
pub(super) struct Discarding {
    /// Free regions; empty for a file.
    pub regions: Discards,
    pub pace: Discard,
    /// Arguments: offset and bytes.
    pub tell: Box<dyn FnMut(u64, u64) -> Result<(), Errno> + Send>,
}

impl Runner {
    pub fn new(
        number: u16,
        (log, keyring): (DiskLog, Arc<Keyring>),
        messages: Mailbox<LogMessage>,
        (health, log_status): (Arc<Health>, Arc<SharedLogStatus>),
        (allocate, has_room): (Allocate, HasRoom),
        discarding: Discarding,
        presence: Presence,
    ) -> Runner {
        log_status.take(&log.status(), 0);
        Runner {
            log,
            keyring,
            salt: None,
            number,
            messages,
            health,
            log_status,
            puts: Vec::new(),
            settles: Vec::new(),
            grants: Vec::new(),
            freed: Vec::new(),
            answers: VecDeque::new(),
            write_by: None,
            flush_by: None,
            mark_by: None,
            tries: 0,
            compacting: false,
            allocate,
            has_room,
            discarding,
            discard_at: Instant::now(),
            presence,
            look_at: Instant::now() + LOOK,
            full: false,
            no_room: None,
        }
    }

    /// Run until the daemon stops or the disk is out of service.
    pub fn run(&mut self) {
        // Senders need not signal the eventfd: the queue itself wakes the thread.
        self.messages.awake();
        loop {
            if let Some(errno) = self.health.out() {
                return self.refuse_all(errno);
            }
            let ends = self.read_messages();
            if ends {
                return self.shut_down();
            }
            let now = Instant::now();
            if self.look_at <= now {
                if !self.is_there() {
                    continue;
                }
                self.look_for_room();
            }
            if self.flush_by.is_some_and(|by| by <= now) {
                self.flush();
            } else if self.write_by.is_some_and(|by| by <= now) {
                self.write();
            } else if self.mark_by.is_some_and(|by| by <= now) {
                self.mark();
            } else if self.messages.is_empty() {
                self.idle(now);
            }
            self.deliver();
            match self.wait() {
                Waited::Message(message) => {
                    if self.take(message) {
                        return self.shut_down();
                    }
                }
                Waited::Gone => return self.shut_down(),
                Waited::Due => {}
            }
        }
    }

    /// Handle the queued messages. Return true after the last one.
    fn read_messages(&mut self) -> bool {
        for _ in 0..MESSAGES_A_ROUND {
            let Some(message) = self.messages.take() else { break };
            if self.take(message) {
                return true;
            }
        }
        false
    }

    /// Handle a message. Return true if it is the last one.
    fn take(&mut self, message: LogMessage) -> bool {
        match message {
            LogMessage::LogRequest(request) => self.log_request(request),
            LogMessage::Grant(header) => self.grant(&header),
            LogMessage::Free { region, grant } => self.free(region, grant),
            LogMessage::EraseKeys(request) => self.erase_keys(request),
            LogMessage::End => return true,
        }
        false
    }

    fn log_request(&mut self, mut request: Box<LogRequest>) {
        (request.status, request.errno) = (Status::Ok, 0);
        let (kind, urgent) = (request.kind, request.urgent);
        let salted = if request.salt == 0 { Ok(()) } else { self.record_salts() };
        let list = if kind == LogRequestKind::Record { &mut self.puts } else { &mut self.settles };
        list.push(request);
        let Some(request) = list.last() else { return };
        let log_ended = salted.and_then(|()| match kind {
            LogRequestKind::Record => self.log.put(&request.put()),
            LogRequestKind::Erase => self.log.erase(request.key.region, request.key.slot, request.key.generation),
            LogRequestKind::Flush => Ok(()),
        });
        match (log_ended, kind) {
            (Err(error), LogRequestKind::Record) => {
                let request = self.puts.pop();
                self.refuse(request, &error);
            }
            (Err(error), _) => {
                let request = self.settles.pop();
                self.refuse(request, &error);
            }
            (Ok(()), LogRequestKind::Record) => {
                let many = self.puts.len() >= HELD_MAX || self.log.pending() >= HELD_BYTES;
                self.write_by = sooner(self.write_by, if urgent || many { Duration::ZERO } else { PUTS });
            }
            (Ok(()), _) => {
                let now = urgent || kind == LogRequestKind::Flush || self.settles.len() >= HELD_MAX;
                self.flush_by = sooner(self.flush_by, if now { Duration::ZERO } else { ERASES });
            }
        }
    }

    /// Record new salts, before the records that use them.
    fn record_salts(&mut self) -> Result<(), LogError> {
        while let Some(salt) = self.salt.or_else(|| self.keyring.unrecorded()) {
            self.salt = Some(salt);
            self.log.salt(&salt)?;
            self.salt = None;
        }
        Ok(())
    }

    /// Answer a request that the log refused.
    fn refuse(&mut self, request: Option<Box<LogRequest>>, error: &LogError) {
        let Some(mut request) = request else { return };
        request.status = match error {
            LogError::Full { .. } | LogError::NotGranted { .. } => {
                self.is_full(error);
                Status::NoSpace
            }
            LogError::Failed | LogError::Io { .. } => {
                self.failed(error);
                Status::Io
            }
            _ => {
                self.log_status.count(|report| report.refused += 1);
                tracing::error!("{}: cannot record a request of space {}: {error}", self.health.name(), request.space);
                Status::Invalid
            }
        };
        self.answers.push_back(request);
    }

    fn is_full(&mut self, error: &LogError) {
        self.log_status.count(|report| report.full += 1);
        if !self.full {
            self.full = true;
            tracing::warn!("{}: new blocks will not survive a restart: {error}", self.health.name());
        }
    }

    fn grant(&mut self, header: &SlabHeader) {
        let (region, grant) = (header.region, header.grant);
        self.discarding.regions.granted(region);
        self.freed.retain(|freed| *freed != region);
        if let Err(error) = self.keyring.grant(header, self.log.storage()) {
            tracing::error!(
                "{}: cannot grant region {region} to domain {:?}: {error}",
                self.health.name(),
                header.domain
            );
            return self.granted(region, grant, Status::Io);
        }
        let allocated = (self.allocate)(region);
        let is_full = matches!(allocated, Err(Errno::NOSPC | Errno::DQUOT));
        self.set_no_room(is_full.then_some(region));
        if let Err(errno) = allocated {
            tracing::error!(
                "{}: cannot allocate region {region} in the file: {errno}. Free space on the file \
                 system, or reduce the disk's capacity",
                self.health.name()
            );
            self.health.error(errno.raw_os_error(), Instant::now());
            let status = if is_full { Status::NoSpace } else { Status::Io };
            return self.granted(region, grant, status);
        }
        self.grants.push((region, grant));
        match self.log.grant(header) {
            Ok(()) => self.flush_by = sooner(self.flush_by, Duration::ZERO),
            Err(error) => {
                self.grants.pop();
                let status = if matches!(error, LogError::Full { .. }) {
                    self.is_full(&error);
                    Status::NoSpace
                } else {
                    tracing::error!("{}: cannot grant region {region}: {error}", self.health.name());
                    Status::Io
                };
                self.granted(region, grant, status);
            }
        }
    }

    fn set_no_room(&mut self, region: Option<u32>) {
        self.no_room = region;
        self.log_status.count(|report| report.no_room = region.is_some());
    }

    /// Report a full file system until there is room again. The region is not granted by this; the next grant finds it allocated. A
    /// failed allocation may keep what it got, so it is not tried before enough is free.
    fn look_for_room(&mut self) {
        let Some(region) = self.no_room else { return };
        if (self.has_room)() && (self.allocate)(region).is_ok() {
            tracing::info!("{}: the file system has room again", self.health.name());
            self.set_no_room(None);
        }
    }

    fn granted(&self, region: u32, grant: u64, status: Status) {
        self.health.tell(DiskEvent::Granted { disk: self.number, region, grant, status });
    }

    fn free(&mut self, region: u32, grant: u64) {
        if let Err(error) = self.log.free(region) {
            return tracing::warn!(
                "{}: cannot record the end of grant {grant} of region {region}: {error}",
                self.health.name()
            );
        }
        self.freed.push(region);
        self.flush_by = sooner(self.flush_by, ERASES);
    }

    fn erase_keys(&mut self, EraseKeys { domain, answer }: EraseKeys) {
        self.log_status.inside(true);
        let erased = self.keyring.erase(&domain, self.log.storage());
        self.log_status.inside(false);
        // So are the ends of its grants: they came before.
        self.flush();
        let is_flushed = self.flush_by.is_none() && self.health.out().is_none();
        let erased = if is_flushed { erased } else { erased.and(Err(KeyError::Unflushed)) };
        match &erased {
            Ok(keys) => tracing::info!("{}: {keys} keys of tenant {domain:?} erased", self.health.name()),
            Err(error) => tracing::error!("{}: tenant {domain:?} is not purged: {error}", self.health.name()),
        }
        answer(erased);
    }

    /// Write the delayed records; their puts are then stored.
    fn write(&mut self) {
        self.log_status.inside(true);
        let written = self.log.write();
        self.log_status.inside(false);
        match written {
            Ok(()) if self.is_there() => self.written(),
            // The disk is out of service, so these writes end as failed.
            Ok(()) => {}
            Err(error) => self.failed(&error),
        }
        self.report();
    }

    fn written(&mut self) {
        (self.write_by, self.mark_by, self.tries, self.full) = (None, None, 0, false);
        let puts = self.puts.len() as u64;
        if puts > 0 {
            self.log_status.count(|report| report.puts += puts);
            self.answers.extend(self.puts.drain(..));
        }
    }

    /// Write and flush; erases, grants and flush requests are then durable.
    fn flush(&mut self) {
        self.log_status.inside(true);
        let flushed = self.log.flush();
        self.log_status.inside(false);
        match flushed {
            Ok(()) if !self.is_there() => {}
            Ok(()) => {
                self.written();
                (self.flush_by, self.mark_by) = (None, Some(Instant::now() + MARK));
                let erases = self.settles.iter().filter(|request| request.kind == LogRequestKind::Erase).count() as u64;
                self.log_status.count(|report| report.erases += erases);
                self.answers.extend(self.settles.drain(..));
                for (region, grant) in std::mem::take(&mut self.grants) {
                    self.granted(region, grant, Status::Ok);
                }
                for region in self.freed.drain(..) {
                    self.discarding.regions.freed(region);
                }
            }
            Err(error) => self.failed(&error),
        }
        self.report();
    }

    /// Return true if the store is still at its path, else take the disk out of service.
    fn is_there(&mut self) -> bool {
        self.look_at = Instant::now() + LOOK;
        self.log_status.inside(true);
        let looked = self.presence.look();
        self.log_status.inside(false);
        match looked {
            Ok(()) => true,
            Err(Absence::Gone(errno, why)) => {
                self.health.give_up(errno, why);
                false
            }
            // Its absence is not certain. Too many such errors take the disk out of service, as other errors do.
            Err(Absence::Unknown(errno)) => {
                self.health.error(errno.raw_os_error(), Instant::now());
                true
            }
        }
    }

    /// Mark the last flush in the log.
    fn mark(&mut self) {
        self.mark_by = None;
        self.log_status.inside(true);
        let marked = self.log.mark();
        self.log_status.inside(false);
        if let Err(error) = marked {
            self.failed(&error);
        }
        self.report();
    }

    /// Handle a failed device call.
    fn failed(&mut self, error: &LogError) {
        let name = self.health.name();
        tracing::error!("{name}: {error}");
        let errno = match error {
            LogError::Io { source, .. } => errno(source),
            _ => libc::EIO,
        };
        self.health.error(errno, Instant::now());
        self.tries += 1;
        if self.log.status().failed {
            self.health.fail(errno, "the index log cannot be flushed");
        } else if self.tries >= TRIES {
            self.health.fail(errno, "the index log cannot be written");
        }
        let again = Some(Instant::now() + TRY_AGAIN);
        if self.flush_by.is_some() {
            self.flush_by = again;
        } else {
            self.write_by = again;
        }
    }

    fn report(&self) {
        self.log_status.take(&self.log.status(), self.puts.len() + self.settles.len() + self.grants.len());
    }

    /// Background work while idle: compaction, then discard.
    fn idle(&mut self, now: Instant) {
        if self.compacting || self.log.wants_compaction() {
            self.log_status.inside(true);
            let more = self.log.compact_step();
            self.log_status.inside(false);
            match more {
                Ok(more) => self.compacting = more,
                // The live records do not fit into the other half. Records that find no room report this.
                Err(LogError::Full { .. }) => self.compacting = false,
                Err(error) => {
                    self.compacting = false;
                    self.failed(&error);
                }
            }
            self.report();
        } else if !self.discarding.regions.is_empty() && now >= self.discard_at {
            match self.discarding.pace.idle.checked_sub(self.health.idle()) {
                None | Some(Duration::ZERO) => self.discard_some(now),
                Some(busy) => self.discard_at = now + busy,
            }
        }
    }

    fn discard_some(&mut self, now: Instant) {
        let Some(piece) = self.discarding.regions.next() else { return };
        self.log_status.inside(true);
        let told = (self.discarding.tell)(piece.offset, piece.bytes);
        self.log_status.inside(false);
        match told {
            Ok(()) => {
                let nanos =
                    u128::from(piece.bytes) * 1_000_000_000 / u128::from(self.discarding.pace.bytes_per_s.max(1));
                self.discard_at = now + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
                self.log_status.count(|report| report.discarded_bytes += piece.bytes);
            }
            Err(errno) => {
                tracing::info!("{}: discard is not supported: BLKDISCARD: {errno}", self.health.name());
                self.discarding.regions.stop();
            }
        }
    }

    /// Wait for a message or a deadline.
    fn wait(&mut self) -> Waited<LogMessage> {
        let now = Instant::now();
        let discard = (!self.discarding.regions.is_empty()).then_some(self.discard_at);
        let offer = (!self.answers.is_empty()).then(|| now + OFFER_AGAIN);
        let compact = (self.compacting || self.log.wants_compaction()).then_some(now);
        let due = [self.write_by, self.flush_by, self.mark_by, discard, offer, compact, Some(self.look_at)]
            .into_iter()
            .flatten()
            .min();
        self.messages.wait_until(due)
    }

    /// Send the answers that their mailboxes accept.
    fn deliver(&mut self) {
        for _ in 0..self.answers.len() {
            let Some(request) = self.answers.pop_front() else { return };
            let reply = request.reply.clone();
            // An answer is dropped if its mailbox is gone.
            if let Err(TrySendError::Full(request)) = reply.offer(request) {
                self.answers.push_back(request);
            }
        }
    }

    /// Shut down: when this returns, all earlier messages are on the disk, or the disk has failed.
    fn shut_down(&mut self) {
        self.flush_by = Some(Instant::now());
        while self.flush_by.is_some() && self.health.out().is_none() {
            self.flush();
            if self.flush_by.is_some() {
                // PACE: bounded by TRIES.
                std::thread::sleep(TRY_AGAIN);
            }
        }
        match self.health.out() {
            Some(errno) => self.give_up(errno),
            None => self.mark(),
        }
        self.deliver();
        self.report();
    }

    /// Fail all requests held.
    fn give_up(&mut self, errno: i32) {
        for mut request in self.puts.drain(..).chain(self.settles.drain(..)) {
            (request.status, request.errno) = (Status::Io, errno);
            self.answers.push_back(request);
        }
        for (region, grant) in std::mem::take(&mut self.grants) {
            self.granted(region, grant, Status::Io);
        }
        (self.write_by, self.flush_by, self.mark_by) = (None, None, None);
    }

    /// Refuse all requests: the disk is out of service.
    pub fn refuse_all(&mut self, errno: i32) {
        self.give_up(errno);
        self.report();
        loop {
            self.deliver();
            let offer = (!self.answers.is_empty()).then(|| Instant::now() + OFFER_AGAIN);
            match self.messages.wait_until(offer) {
                Waited::Message(LogMessage::LogRequest(mut request)) => {
                    (request.status, request.errno) = (Status::Io, errno);
                    self.answers.push_back(request);
                }
                Waited::Message(LogMessage::Grant(header)) => self.granted(header.region, header.grant, Status::Io),
                Waited::Message(LogMessage::EraseKeys(request)) => (request.answer)(Err(KeyError::OutOfService)),
                Waited::Message(LogMessage::Free { .. }) | Waited::Due => {}
                Waited::Message(LogMessage::End) | Waited::Gone => return self.deliver(),
            }
        }
    }
}

/// Return the earlier of `due` and the time `within` from now.
fn sooner(due: Option<Instant>, within: Duration) -> Option<Instant> {
    let then = Instant::now() + within;
    Some(due.map_or(then, |due| due.min(then)))
}
