//! The I/O thread of a disk: as others see it in here, its loop in [`run`], requests in [`device`], first writes in [`regions`].

mod device;
mod jobs;
mod regions;
mod run;

use super::engine::{Engine, Threads, Uring, UringSetup};
use super::error::DiskError;
use super::memory::{DISKS_MAX, Memory};
use super::probe::{Mode, probe};
use super::settings::{Choice, Settings};
use super::staging::CHUNK_BYTES;
use super::stats::DiskStatus;
use super::store::Store;
use super::transfer::Transfer;
use crate::error::Error;
use crate::mail::{Address, Mailbox, mailbox};
use crossbeam::channel::{Sender, bounded};
use kvtide_tiering::api::IoClass;
use run::Runner;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Letters that may wait for an I/O thread; core threads keep what does not fit (`mail::Outbox`).
pub(crate) const LETTERS: usize = 1024;
/// How long an I/O thread may take to tell how it stands: it never waits for the device, so more is an answer too.
const STATUS: Duration = Duration::from_secs(5);
/// Requests at a device at once, at most: more than drives have in one queue.
const DEPTH_MAX: u32 = 1024;

/// To an I/O thread.
#[derive(Debug)]
pub(crate) enum DiskLetter {
    /// Carry this out.
    Transfer(Box<Transfer>),
    /// A transfer that was sent has become more urgent; without effect if the device has it already, or if it has ended.
    Urge {
        /// Whose it is.
        space: u32,
        /// Which one.
        id: u32,
        /// How urgent it is now.
        class: IoClass,
    },
    /// Host memory that transfers will name: registers it with the ring if the mode allows that.
    Register(Arc<Memory>),
    /// Host memory that no transfer will name any more; what is on its way keeps it until it ends.
    Forget(Arc<Memory>),
    /// Tell how the disk stands.
    Status(Sender<DiskStatus>),
    /// Take nothing more, end what the device has, within a bound.
    End,
}

/// What an I/O thread tells whoever started it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskEvent {
    /// Regions below `regions` were written once: they can be granted.
    Ready {
        /// The disk's number.
        disk: u16,
        /// How many.
        regions: u32,
    },
    /// The device has had a request for longer than the timeout, or answers again.
    Stalled {
        /// The disk's number.
        disk: u16,
        /// Which of the two.
        stalled: bool,
    },
    /// The device cannot be written any more, or is gone, or a region could not be written for the first time: nothing new shall
    /// be put there, and no more regions become ready. Told once.
    Failed {
        /// The disk's number.
        disk: u16,
        /// What it said.
        errno: i32,
    },
}

/// Takes what an I/O thread tells, on that thread: it must not block.
pub(crate) type Tell = Box<dyn FnMut(DiskEvent) + Send>;

/// An open disk, for those who send it transfers.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    number: u16,
    letters: Address<DiskLetter>,
    region_bytes: u64,
    regions: u32,
    /// Where region 0 begins.
    begin: u64,
}

impl Disk {
    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Where letters to it go.
    pub fn letters(&self) -> Address<DiskLetter> {
        self.letters.clone()
    }

    /// Bytes of a region.
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Regions that it will have when all are written.
    pub fn regions(&self) -> u32 {
        self.regions
    }

    /// Where a slot begins in the file (`Transfer::offset`): `at` bytes into the region.
    pub fn offset(&self, region: u32, at: u64) -> u64 {
        self.begin + u64::from(region) * self.region_bytes + at
    }
}

/// A disk that was checked, locked and laid out, and does nothing yet.
pub(crate) struct OpenDisk {
    settings: Settings,
    store: Store,
    mode: Mode,
}

impl OpenDisk {
    /// How its bytes will move, for example `io_uring+direct+fixed`.
    pub fn mode(&self) -> &str {
        &self.mode.text
    }

    /// Regions that it will have.
    pub fn regions(&self) -> u32 {
        self.store.superblock.regions
    }

    /// Starts its thread.
    pub fn start(self, tell: Tell) -> Result<DiskThread, Error> {
        self.start_with(tell, |engine| engine)
    }

    /// Starts its thread with an engine that is made of the real one: the seam for faults.
    pub(super) fn start_with(
        self,
        tell: Tell,
        wrap: impl FnOnce(Box<dyn Engine>) -> Box<dyn Engine> + Send + 'static,
    ) -> Result<DiskThread, Error> {
        let OpenDisk { settings, store, mode } = self;
        let wire = |source| Error::Wire { action: "make a disk's mailbox", source };
        let (letters, mailbox) = mailbox(LETTERS).map_err(wire)?;
        let block = store.superblock;
        let disk = Disk {
            number: settings.number,
            letters,
            region_bytes: block.region_bytes,
            regions: block.regions,
            begin: block.regions_offset,
        };
        let (started, start) = bounded(1);
        let dir = settings.dir.clone();
        let builder = std::thread::Builder::new().name(format!("kvtide-disk-{}", settings.number));
        let thread = builder.spawn(move || {
            // A ring belongs to the thread that makes it.
            let runner = engine(&settings, &store, &mode, &mailbox)
                .and_then(|engine| Runner::new(wrap(engine), &settings, store, mode, mailbox, tell));
            let (mut runner, told) = match runner {
                Ok(runner) => (Some(runner), Ok(())),
                Err(error) => (None, Err(error)),
            };
            // Whoever started the thread waits for this.
            let _ = started.send(told);
            if let Some(runner) = &mut runner {
                runner.run();
            }
        });
        let thread = thread.map_err(|e| Error::system("start a disk's thread", e))?;
        let told = start.recv().unwrap_or_else(|_| Err(io::Error::other("its thread ended at once")));
        told.map_err(|e| DiskError::os("start the I/O of", &dir, e))?;
        Ok(DiskThread { disk, thread })
    }
}

fn engine(
    settings: &Settings,
    store: &Store,
    mode: &Mode,
    mailbox: &Mailbox<DiskLetter>,
) -> io::Result<Box<dyn Engine>> {
    let bell = mailbox.as_fd().try_clone_to_owned()?;
    Ok(if mode.uring {
        let setup = UringSetup::new(settings.depth, settings.registered != Choice::Off)?;
        Box::new(Uring::new(setup, Arc::clone(&store.file), bell)?)
    } else {
        Box::new(Threads::new(settings.depth, &store.file, bell)?)
    })
}

/// A disk's running thread.
#[derive(Debug)]
pub(crate) struct DiskThread {
    disk: Disk,
    thread: JoinHandle<()>,
}

impl DiskThread {
    /// Checks, locks and lays out the disk's file and finds out what works there. Nothing is started, and a file that is refused
    /// is not changed.
    pub fn open(settings: &Settings) -> Result<OpenDisk, Error> {
        check(settings)?;
        let store = Store::open(settings)?;
        let mode = probe(settings, &store)?;
        Ok(OpenDisk { settings: settings.clone(), store, mode })
    }

    /// The disk, for those who send it transfers.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// How it stands; nothing if its thread does not answer, which it should within microseconds whatever the device does.
    pub fn status(&self) -> Option<DiskStatus> {
        let (reply, answer) = bounded(1);
        // A full queue is a thread that does not take its letters: no answer either.
        self.disk.letters.offer(DiskLetter::Status(reply)).ok()?;
        answer.recv_timeout(STATUS).ok()
    }

    /// Ends the thread, after all who send it transfers; waits for the device within a bound.
    pub fn end(self) {
        if self.disk.letters.send(DiskLetter::End).is_err() || self.thread.join().is_err() {
            tracing::error!("the thread of disk {} had ended before", self.disk.number);
        }
    }
}

fn check(settings: &Settings) -> Result<(), DiskError> {
    let wrong = |what, value, expected| DiskError::Setting { path: settings.dir.clone(), what, value, expected };
    if usize::from(settings.number) >= DISKS_MAX {
        return Err(wrong("its number", settings.number.into(), "below 16"));
    }
    if !(1..=DEPTH_MAX).contains(&settings.depth) {
        return Err(wrong("depth", settings.depth.into(), "1 to 1024"));
    }
    if settings.staging_bytes < CHUNK_BYTES as u64 {
        return Err(wrong("staging_bytes", settings.staging_bytes, "at least 262144"));
    }
    if settings.timeout.is_zero() {
        return Err(wrong("timeout_ms", 0, "at least 1"));
    }
    Ok(())
}
