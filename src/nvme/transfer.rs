//! Transfers: requests from core threads to an I/O thread.

use super::code::SlabCode;
use super::memory::Memory;
use kvtide_rt::mail::Address;
use kvtide_types::{IoClass, IoKind, Status};
use std::sync::Arc;

/// A transfer of pages of one block between the block's slot and host memory.
///
/// The owner fills everything but the results. The box always comes back exactly once, to `reply`. The mailbox of `reply` must hold
/// all boxes that its owner has in flight; answers that do not fit are kept by the I/O thread and sent again.
#[derive(Debug)]
pub struct Transfer {
    /// The space that sent it.
    pub space: u32,
    /// Unique among the space's transfers in flight.
    pub id: u32,
    /// Read or write.
    pub kind: IoKind,
    /// Priority class; [`super::DiskMessage::Urge`] changes it while it waits.
    pub class: IoClass,
    /// Offset of the slot in the disk's file (`Disk::offset`), a multiple of `format::SECTOR`.
    pub offset: u64,
    /// Bytes of the slot, a multiple of `format::SECTOR`.
    pub bytes: u64,
    /// Write: `parts` are all pages that the slot will hold. If false, sectors shared with other pages are read before they are
    /// written, to preserve those pages; pages of whole sectors never need this.
    pub whole: bool,
    /// Part of the key of its pages' checksums, with store and plane.
    pub key: SlotKey,
    /// Coding of the slab; None: pages are stored unchanged.
    pub code: Option<Arc<SlabCode>>,
    /// Salt of the slot's pages in an encrypted slab. Read: from the write. Write: that of the pages already in the slot, 0 if
    /// none; result: that of all pages.
    pub salt: u32,
    /// The pages, ascending by `at`, not overlapping.
    pub parts: Vec<Part>,
    /// Address for the answer.
    pub reply: Address<Box<Transfer>>,
    /// Result. `Ok`: every byte was transferred (read: see also [`Part::ok`]). `Io`, `NoSpace`: the device failed or transferred
    /// too little. `TimedOut`: it waited too long and was not started. `Canceled`: the disk shuts down, not started. `Invalid`: the
    /// slot or memory range is invalid, not started. `Corrupt`: pages in memory differ from their digests ([`Part::digest`]), not
    /// started.
    pub status: Status,
    /// Result: the device's error number; 0 if none, also after short transfers.
    pub errno: i32,
    /// Result: queueing time in microseconds.
    pub waited_us: u32,
    /// Result: device time in microseconds.
    pub device_us: u32,
}

/// Identifies one use of a slot: old bytes of a reused slot have another key, so their checksum does not match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotKey {
    /// Region of the disk.
    pub region: u32,
    /// Slot in the region.
    pub slot: u32,
    /// Counts the uses of the slot.
    pub generation: u32,
}

/// One page of a transfer.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its plane.
    pub plane: u16,
    /// Offset in the slot.
    pub at: u64,
    /// Its bytes.
    pub bytes: u32,
    /// Host memory that holds its frame.
    pub memory: Arc<Memory>,
    /// Offset of the frame in the memory.
    pub offset: u64,
    /// Read: the expected checksum. Write: result, the checksum. In encrypted slabs the write number instead.
    pub crc: u32,
    /// In coded slabs the number of sectors; 0: stored unchanged. Read: from the write. Write: result.
    pub sectors: u16,
    /// In encrypted slabs the tag. Read: from the write. Write: result.
    pub tag: [u8; 16],
    /// Write: CRC-32C of the page alone when it was stored, if known; a page that differs is not written. Read of a `sampled` page:
    /// result, if the page is valid.
    pub digest: Option<u32>,
    /// Read: compute the digest.
    pub sampled: bool,
    /// Result of a read that is `Ok`: the page is valid. Result of a write that is `Corrupt`: false if the page differs from its
    /// digest.
    pub ok: bool,
}
