//! The log thread of a disk: its start and its end.

use super::discard::Discards;
use super::report::Desk;
use super::run::{Allocate, Discarding, Runner};
use super::{DiskLog, LogLetter};
use crate::error::Error;
use crate::io::code::Keyring;
use crate::io::health::Health;
use crate::io::settings::{Discard, Settings};
use crate::io::store::{Presence, Store, discard, room};
use crate::mail::{Address, Mailbox, mailbox};
use crossbeam::channel::{Receiver, TrySendError, bounded};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Letters that may wait for a log thread; core threads keep what does not fit (`mail::Outbox`).
const LETTERS: usize = 1024;
/// How long the end waits for the device: a flush of a busy drive takes a second at most.
const END: Duration = Duration::from_secs(10);
/// How often it is told to end while its queue is full.
const AGAIN: Duration = Duration::from_millis(10);

/// A running log thread.
#[derive(Debug)]
pub(in crate::io) struct LogThread {
    letters: Address<LogLetter>,
    /// Told, or gone, when it has ended.
    ended: Receiver<()>,
}

impl LogThread {
    /// Starts it over a log that was opened. `held` are the regions of which something is recorded.
    pub fn start(
        settings: &Settings,
        (log, keyring): (DiskLog, Arc<Keyring>),
        store: &Store,
        held: &[u32],
        health: &Arc<Health>,
        desk: &Arc<Desk>,
    ) -> Result<LogThread, Error> {
        let wire = |source| Error::Wire { action: "make a log's mailbox", source };
        let (address, letters): (_, Mailbox<LogLetter>) = mailbox(LETTERS).map_err(wire)?;
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
        let presence = Presence::new(settings, &store.file);
        let standing = (Arc::clone(health), Arc::clone(desk));
        let mut runner = Runner::new(number, (log, keyring), letters, standing, allocate, discarding, presence);
        let (end, ended) = bounded(1);
        let health = Arc::clone(health);
        let builder = std::thread::Builder::new().name(format!("kvtide-log-{number}"));
        let thread = builder.spawn(move || {
            if catch_unwind(AssertUnwindSafe(|| runner.run())).is_err() {
                // What it holds stands in its lists, whatever it did with the log.
                health.fail(libc::EOWNERDEAD, "its log thread panicked");
                runner.refuse_all(libc::EOWNERDEAD);
            }
            let _ = end.send(());
        });
        thread.map_err(|e| Error::system("start a disk's log thread", e))?;
        Ok(LogThread { letters: address, ended })
    }

    /// Where letters to it go.
    pub fn letters(&self) -> Address<LogLetter> {
        self.letters.clone()
    }

    /// Ends it, after all who send it notes; everything that they sent is written and flushed then. Waits for the device within
    /// a bound.
    pub fn end(self, health: &Health) {
        let until = Instant::now() + END;
        while let Err(TrySendError::Full(_)) = self.letters.offer(LogLetter::End) {
            if Instant::now() >= until {
                break;
            }
            // PACE: bounded by END.
            std::thread::sleep(AGAIN);
        }
        if self.ended.recv_deadline(until).is_err() {
            tracing::error!("{}: its log thread did not end; it is left behind", health.name());
        }
    }
}
