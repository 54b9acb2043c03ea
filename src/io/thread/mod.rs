//! The I/O thread of a disk, as others see it.

use super::memory::Memory;
use super::stats::DiskStatus;
use super::transfer::Transfer;
use crate::mail::Address;
use crossbeam::channel::Sender;
use kvtide_tiering::api::IoClass;
use std::sync::Arc;

/// Letters that may wait for an I/O thread; core threads keep what does not fit (`mail::Outbox`).
pub(crate) const LETTERS: usize = 1024;

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
}

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
