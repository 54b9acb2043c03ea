//! Start and stop of a disk's log thread.

use super::discard::Discards;
use super::report::SharedLogStatus;
use super::run::{Allocate, Discarding, HasRoom, Runner};
use super::{DiskLog, LogMessage};
use crate::Error;
use crate::code::Keyring;
use crate::health::Health;
use crate::settings::{Discard, Settings};
use crate::store::{Presence, Store, discard, free_bytes, room};
use crossbeam::channel::{Receiver, TrySendError, bounded};
use kvtide_rt::mail::{Address, Mailbox, mailbox};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Mailbox size; core threads keep messages that do not fit (`mail::RetryQueue`).
const MESSAGES_MAX: usize = 1024;
/// Maximum wait for the device at shutdown: a flush of a busy drive takes at most about a second.
const END: Duration = Duration::from_secs(10);
/// Interval for sending the stop message again while the mailbox is full.
const AGAIN: Duration = Duration::from_millis(10);

/// A running log thread.
#[derive(Debug)]
pub(crate) struct LogThread {
    address: Address<LogMessage>,
    /// Receives a message, or is disconnected, when the thread has ended.
    ended: Receiver<()>,
}

impl LogThread {
    /// Start the thread with an open log. `held`: regions that have records.
    pub fn start(
        settings: &Settings,
        (log, keyring): (DiskLog, Arc<Keyring>),
        store: &Store,
        held: &[u32],
        health: &Arc<Health>,
        log_status: &Arc<SharedLogStatus>,
    ) -> Result<LogThread, Error> {
        let wire = |source| Error::Wire { action: "create a log thread's mailbox", source };
        let (address, messages): (_, Mailbox<LogMessage>) = mailbox(MESSAGES_MAX).map_err(wire)?;
        let block = &store.superblock;
        let (number, file) = (settings.number, Arc::clone(&store.file));
        let pace = settings.discard.filter(|_| store.device);
        let free = (0..block.regions).filter(|region| pace.is_some() && !held.contains(region));
        let discarding = Discarding {
            regions: Discards::new(block.regions_offset, block.region_bytes, free),
            pace: pace.unwrap_or(Discard { bytes_per_s: 1, idle: Duration::ZERO }),
            tell: Box::new(move |offset, bytes| discard(&file, offset, bytes)),
        };
        let (file, begin, bytes, device) =
            (Arc::clone(&store.file), block.regions_offset, block.region_bytes, store.device);
        let allocate: Allocate =
            Box::new(move |region| if device { Ok(()) } else { room(&file, begin + u64::from(region) * bytes, bytes) });
        let file = Arc::clone(&store.file);
        let has_room: HasRoom = Box::new(move || free_bytes(&file).is_ok_and(|free| free >= bytes));
        let presence = Presence::new(settings, &store.file);
        let standing = (Arc::clone(health), Arc::clone(log_status));
        let mut runner =
            Runner::new(number, (log, keyring), messages, standing, (allocate, has_room), discarding, presence);
        let (end, ended) = bounded(1);
        let health = Arc::clone(health);
        let builder = std::thread::Builder::new().name(format!("kvtide-log-{number}"));
        let thread = builder.spawn(move || {
            if catch_unwind(AssertUnwindSafe(|| runner.run())).is_err() {
                // All requests that it holds are still in its lists, in whatever state the log is.
                health.fail(libc::EOWNERDEAD, "the log thread panicked");
                runner.refuse_all(libc::EOWNERDEAD);
            }
            let _ = end.send(());
        });
        thread.map_err(|e| Error::System { action: "start a disk's log thread", source: e })?;
        Ok(LogThread { address, ended })
    }

    /// Return the address for messages to the thread.
    pub fn address(&self) -> Address<LogMessage> {
        self.address.clone()
    }

    /// Stop the thread; all senders of requests must have stopped. All their requests are written and flushed. Waits for the device
    /// within a bound.
    pub fn end(self, health: &Health) {
        let until = Instant::now() + END;
        while let Err(TrySendError::Full(_)) = self.address.offer(LogMessage::End) {
            if Instant::now() >= until {
                break;
            }
            // PACE: bounded by END.
            std::thread::sleep(AGAIN);
        }
        if self.ended.recv_deadline(until).is_err() {
            tracing::error!("{}: the log thread did not stop in time; continuing without it", health.name());
        }
    }
}
