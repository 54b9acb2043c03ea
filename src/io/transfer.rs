//! What travels between a core thread and an I/O thread.

use super::code::SlabCode;
use super::memory::Memory;
use crate::mail::Address;
use kvtide_tiering::api::{IoClass, IoKind, Status};
use std::sync::Arc;

/// Pages of one block on their way between the block's slot and host memory.
///
/// The owner fills everything but the results. The box comes back by `reply`, always and once. `reply`'s mailbox must hold as
/// many boxes as its owner has on their way: what it does not take is kept by the I/O thread and offered again.
#[derive(Debug)]
pub(crate) struct Transfer {
    /// Whose it is.
    pub space: u32,
    /// Unique among the space's transfers on their way.
    pub id: u32,
    /// Which way.
    pub kind: IoKind,
    /// How urgent; [`super::DiskLetter::Urge`] changes it while it waits.
    pub class: IoClass,
    /// Where the slot begins in the disk's file (`Disk::offset`), a multiple of `format::SECTOR`.
    pub offset: u64,
    /// Bytes of the slot, a multiple of `format::SECTOR`.
    pub bytes: u64,
    /// Of a write: `parts` are all that the slot shall hold. Otherwise sectors that hold other pages too are read before they are
    /// written, so that those pages stay; pages of whole sectors never need that.
    pub whole: bool,
    /// What the checksums of its pages cover, besides store and plane.
    pub key: SlotKey,
    /// How the slab stores its pages; nothing: as they are.
    pub code: Option<Arc<SlabCode>>,
    /// In encrypted slabs the salt that the slot's pages are under. Read: as the write said. Write: that of the pages that are in
    /// the slot already, 0 if there are none; result: that of all.
    pub salt: u32,
    /// The pages, ascending by `at`, none over another.
    pub parts: Vec<Part>,
    /// Where the box goes when the transfer has ended.
    pub reply: Address<Box<Transfer>>,
    /// Result: `Ok`: every byte was moved (a read: see also [`Part::ok`]). `Io`, `NoSpace`: the device failed or fell short.
    /// `TimedOut`: it waited too long and was never begun. `Canceled`: the disk ends and it was never begun. `Invalid`: it
    /// names what is not in the slot or in the memory; nothing was begun. `Corrupt`: pages in memory are not what was stored
    /// ([`Part::digest`]); nothing was begun.
    pub status: Status,
    /// Result: the device's error number, 0 if there was none (a transfer that falls short has none).
    pub errno: i32,
    /// Result: how long it waited for its turn, in microseconds.
    pub waited_us: u32,
    /// Result: how long the device had it, in microseconds.
    pub device_us: u32,
}

/// Which content a slot holds: old bytes of a slot that was used again have another key, and another checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotKey {
    /// Region of the disk.
    pub region: u32,
    /// Slot in the region.
    pub slot: u32,
    /// How many blocks the slot has held.
    pub generation: u32,
}

/// One page of a transfer.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Its plane.
    pub plane: u16,
    /// Where it begins in the slot.
    pub at: u64,
    /// Its bytes.
    pub bytes: u32,
    /// Host memory that holds its frame.
    pub memory: Arc<Memory>,
    /// Where the frame begins in the memory.
    pub offset: u64,
    /// Read: the checksum that it must have. Write: result, the checksum that it has. In encrypted slabs its write number instead.
    pub crc: u32,
    /// In coded slabs the sectors that it takes, 0: it stands as it is. Read: as the write said. Write: result.
    pub sectors: u16,
    /// In encrypted slabs its tag. Read: as the write said. Write: result.
    pub tag: [u8; 16],
    /// Write: CRC-32C of the page alone, from when it was stored, if that is known: a page that does not fit any more is not written.
    /// Read of a page that is `sampled`: result, if it is the expected one.
    pub digest: Option<u32>,
    /// Read: the digest is wanted.
    pub sampled: bool,
    /// Result of a read that is `Ok`: the checksum is the expected one. False: the bytes are not what was written. Of a write that
    /// is `Corrupt`: false says that the bytes are not what was stored.
    pub ok: bool,
}
