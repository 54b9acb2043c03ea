//! The I/O thread of a disk: as others see it in here, its start and end in [`open`], its loop in [`run`], requests in [`device`].

mod coding;
mod device;
mod figures;
mod jobs;
mod open;
mod refuse;
mod run;

pub(crate) use figures::DiskFigures;
#[cfg(test)]
pub(super) use open::Seams;
pub(crate) use open::{DiskThread, OpenDisk, open_all};

use super::code::{Codec, KeyError, Keyring, SlabCode};
use super::engine::{Engine, Threads, Uring, UringSetup};
use super::error::DiskError;
use super::log::LogLetter;
use super::memory::{DISKS_MAX, Memory};
use super::probe::Mode;
use super::settings::{Choice, Settings};
use super::staging::CHUNK_BYTES;
use super::store::Store;
use super::transfer::Transfer;
use crate::mail::{Address, Mailbox};
use kvtide_tiering::api::{IoClass, Status};
use kvtide_tiering::log::SlabHeader;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// Letters that may wait for an I/O thread; core threads keep what does not fit (`mail::Outbox`).
pub(crate) const LETTERS: usize = 1024;
/// How long an I/O thread may take to publish how it stands: it never waits for the device, so more is an answer too.
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
    /// Take nothing more, end what the device has, within a bound.
    End,
}

/// What a disk's threads tell whoever started them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskEvent {
    /// A region's grant was written down and flushed, or could not be: then nobody gets the region.
    Granted {
        /// The disk's number.
        disk: u16,
        /// The region.
        region: u32,
        /// Number of the grant.
        grant: u64,
        /// `Ok`; `NoSpace`: the log or the file system is full; `Io`: the disk failed.
        status: Status,
    },
    /// The device has had a request for longer than the timeout, or answers again.
    Stalled {
        /// The disk's number.
        disk: u16,
        /// Which of the two.
        stalled: bool,
    },
    /// The disk is out of service: its device is gone, cannot be written any more, or failed too often. Nothing is written there any
    /// more, and nothing that is there is to be relied on. What it has ends. Told once.
    Failed {
        /// The disk's number.
        disk: u16,
        /// What it said last; 0: requests fell short.
        errno: i32,
    },
}

/// Takes what a disk's threads tell, on those threads: it must not block.
pub(crate) type Tell = Box<dyn FnMut(DiskEvent) + Send>;

/// An open disk, for those who send it transfers.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    number: u16,
    letters: Address<DiskLetter>,
    log: Address<LogLetter>,
    region_bytes: u64,
    regions: u32,
    /// Where region 0 begins.
    begin: u64,
    starts: u32,
    codec: Codec,
    /// `None`: it was missing at start.
    keyring: Option<Arc<Keyring>>,
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

    /// Where notes for its index log go, and grants of its regions.
    pub fn log(&self) -> Address<LogLetter> {
        self.log.clone()
    }

    /// How often its store was started, this time included: slots' generations begin with it, so that none is used twice.
    pub fn starts(&self) -> u32 {
        self.starts
    }

    /// How slabs to come store their pages: the codec's number, and whether they are encrypted (`SlabHeader`).
    pub fn coding(&self) -> (u8, bool) {
        (self.codec.id(), self.keyring.as_ref().is_some_and(|keyring| keyring.encrypts()))
    }

    /// How a slab stores its pages, once it was granted, or as it was recovered; nothing: as they are.
    ///
    /// # Errors
    /// Its domain's key is gone.
    pub fn code(&self, slab: &SlabHeader) -> Result<Option<Arc<SlabCode>>, KeyError> {
        self.keyring.as_ref().map_or(Ok(None), |keyring| keyring.code(slab))
    }

    /// Bytes of a region.
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Its regions; none of a disk that was missing at start.
    pub fn regions(&self) -> u32 {
        self.regions
    }

    /// Where a slot begins in the file (`Transfer::offset`): `at` bytes into the region.
    pub fn offset(&self, region: u32, at: u64) -> u64 {
        self.begin + u64::from(region) * self.region_bytes + at
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

fn check(settings: &Settings) -> Result<(), DiskError> {
    let wrong =
        |what, value, expected| DiskError::Setting { path: settings.place.path().into(), what, value, expected };
    if usize::from(settings.number) >= DISKS_MAX {
        return Err(wrong("its number", settings.number.into(), "below 16"));
    }
    if !(1..=DEPTH_MAX).contains(&settings.depth) {
        return Err(wrong("depth", settings.depth.into(), "1 to 1024"));
    }
    if settings.staging_bytes < CHUNK_BYTES as u64 {
        return Err(wrong("staging_bytes", settings.staging_bytes, "at least 262144"));
    }
    if settings.errors_max == 0 {
        return Err(wrong("errors_max", 0, "at least 1"));
    }
    if settings.timeout.is_zero() {
        return Err(wrong("timeout_ms", 0, "at least 1"));
    }
    Ok(())
}
