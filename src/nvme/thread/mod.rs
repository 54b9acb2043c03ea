//! The I/O thread of a disk: its interface here, start and stop in [`open`], the loop in [`run`], requests in [`device`].

mod coding;
mod device;
mod figures;
mod jobs;
mod open;
mod refuse;
mod run;

pub use figures::DiskFigures;
#[cfg(test)]
pub(super) use open::Seams;
pub use open::{DiskThread, Obstacle, OpenDisk, check_all, open_all};

use super::code::{Codec, KeyError, Keyring, SlabCode};
use super::engine::{Engine, Threads, Uring, UringSetup};
use super::error::DiskError;
use super::log::LogMessage;
use super::memory::{DISKS_MAX, Memory};
use super::probe::Mode;
use super::settings::{FeatureUse, Settings};
use super::staging::CHUNK_BYTES;
use super::store::Store;
use super::transfer::Transfer;
use kvtide_format::log::SlabHeader;
use kvtide_rt::mail::{Address, Mailbox};
use kvtide_types::{IoClass, Status};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// Mailbox size; core threads keep messages that do not fit (`mail::RetryQueue`).
pub const MESSAGES_MAX: usize = 1024;
/// Maximum wait for an I/O thread's status. The thread never waits for the device, so a timeout means that it hangs.
const STATUS: Duration = Duration::from_secs(5);
/// Maximum requests in flight: more than drives have in one queue.
const DEPTH_MAX: u32 = 1024;

/// Messages to an I/O thread.
#[derive(Debug)]
pub enum DiskMessage {
    /// A transfer to execute.
    Transfer(Box<Transfer>),
    /// Raise the class of a transfer; no effect if it is at the device already or has ended.
    Urge {
        /// The transfer's space.
        space: u32,
        /// The transfer's id.
        id: u32,
        /// The new class.
        class: IoClass,
    },
    /// Host memory that transfers will use; it is registered with the ring if the mode allows.
    Register(Arc<Memory>),
    /// Host memory that no further transfer will use; transfers in flight keep it until they end.
    Forget(Arc<Memory>),
    /// Accept nothing more, and finish the requests in flight within a bound.
    End,
}

/// Events that a disk's threads report to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskEvent {
    /// A region's grant was recorded and flushed, or failed; then the region is not used.
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
    /// A request has been in flight for longer than the timeout, or the device responds again.
    Stalled {
        /// The disk's number.
        disk: u16,
        /// True: stalled; false: responding again.
        stalled: bool,
    },
    /// The disk is out of service: its device is gone, read-only, or failed too often. Nothing more is written there, its data
    /// counts as lost, and its transfers end. Reported once.
    Failed {
        /// The disk's number.
        disk: u16,
        /// The last error number; 0: short requests.
        errno: i32,
    },
}

/// Callback for events. It runs on the disk's threads and must not block.
pub type Tell = Box<dyn FnMut(DiskEvent) + Send>;

/// Handle of an open disk, for senders of transfers.
#[derive(Clone, Debug)]
pub struct Disk {
    number: u16,
    address: Address<DiskMessage>,
    log: Address<LogMessage>,
    region_bytes: u64,
    regions: u32,
    /// Offset of region 0.
    begin: u64,
    starts: u32,
    codec: Codec,
    /// `None`: the disk was missing at start.
    keyring: Option<Arc<Keyring>>,
}

impl Disk {
    /// Return its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Return the address for transfers and other messages.
    pub fn address(&self) -> Address<DiskMessage> {
        self.address.clone()
    }

    /// Return the address for log requests and grants.
    pub fn log(&self) -> Address<LogMessage> {
        self.log.clone()
    }

    /// Return the number of starts of its store, including this one. Generations of slots start with it, so that none is reused.
    pub fn starts(&self) -> u32 {
        self.starts
    }

    /// Return the coding of new slabs (`SlabHeader`): the codec's number, and whether they are encrypted.
    pub fn coding(&self) -> (u8, bool) {
        (self.codec.code(), self.keyring.as_ref().is_some_and(|keyring| keyring.encrypts()))
    }

    /// Return the coding of a granted or recovered slab; None: pages are stored unchanged.
    ///
    /// # Errors
    /// Its domain's key is missing.
    pub fn code(&self, slab: &SlabHeader) -> Result<Option<Arc<SlabCode>>, KeyError> {
        self.keyring.as_ref().map_or(Ok(None), |keyring| keyring.code(slab))
    }

    /// Return the bytes of a region.
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Return the number of regions; 0 if the disk was missing at start.
    pub fn regions(&self) -> u32 {
        self.regions
    }

    /// Return the offset of a slot in the file (`Transfer::offset`), which starts `at` bytes into the region.
    pub fn offset(&self, region: u32, at: u64) -> u64 {
        self.begin + u64::from(region) * self.region_bytes + at
    }
}

fn engine(
    settings: &Settings,
    store: &Store,
    mode: &Mode,
    mailbox: &Mailbox<DiskMessage>,
) -> io::Result<Box<dyn Engine>> {
    let bell = mailbox.as_fd().try_clone_to_owned()?;
    Ok(if mode.uring {
        let setup = UringSetup::new(settings.depth, settings.registered != FeatureUse::Off)?;
        Box::new(Uring::new(setup, Arc::clone(&store.file), bell)?)
    } else {
        Box::new(Threads::new(settings.depth, &store.file, bell)?)
    })
}

fn check(settings: &Settings) -> Result<(), DiskError> {
    let wrong =
        |what, value, expected| DiskError::Setting { path: settings.place.path().into(), what, value, expected };
    if usize::from(settings.number) >= DISKS_MAX {
        return Err(wrong("number", settings.number.into(), "below 16"));
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
