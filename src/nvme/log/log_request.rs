//! Requests from core threads to a disk's log thread.

use super::super::transfer::SlotKey;
use kvtide_format::log::Put;
use kvtide_rt::mail::Address;
use kvtide_types::Status;

/// Kind of a log request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogRequestKind {
    /// Record what a slot holds, after its data was written. `Ok`: the record is written; it survives a crash of the daemon.
    #[default]
    Record,
    /// Record that a slot is empty. `Ok`: the record is flushed; the slot may be reused.
    Erase,
    /// `Ok`: all data written and all requests answered before this one was sent are flushed; they survive a power loss.
    Flush,
}

/// One request to the index log.
///
/// The owner fills everything but the results. The box always comes back exactly once, to `reply`. The mailbox of `reply` must hold
/// all boxes that its owner has in flight; answers that do not fit are kept by the log thread and sent again. Requests for one slot
/// take effect in the order of sending.
#[derive(Debug)]
pub struct LogRequest {
    /// The space that sent it.
    pub space: u32,
    /// Unique among the space's requests in flight.
    pub id: u32,
    /// The kind of request.
    pub kind: LogRequestKind,
    /// A caller waits for it, so it is not delayed to be batched with others. A flush is always urgent.
    pub urgent: bool,
    /// The slot and its generation. Unused by a flush.
    pub key: SlotKey,
    /// Record: the shard.
    pub shard: u16,
    /// Record: the block's hash.
    pub hash: u128,
    /// Record: the hash of the parent block; 0: none.
    pub parent: u128,
    /// Record: one bit per plane, set if its page is in the slot.
    pub present: Vec<u32>,
    /// Record: one value per present page, by plane: its checksum or, in an encrypted slab, its write number.
    pub crcs: Vec<u32>,
    /// Record in a coded or encrypted slab: sectors of each present page. Else empty.
    pub sectors: Vec<u16>,
    /// Record in an encrypted slab: tag of each present page. Else empty.
    pub tags: Vec<[u8; 16]>,
    /// Record in an encrypted slab: the salt of all its pages. Else 0.
    pub salt: u32,
    /// Address for the answer.
    pub reply: Address<Box<LogRequest>>,
    /// Result. `Ok`: see [`LogRequestKind`]. `NoSpace`: the log is full, or the slab's own record is missing in it; nothing is recorded.
    /// `Io`: the disk failed or is out of service. `Invalid`: the request contradicts itself or its slab; nothing is recorded.
    pub status: Status,
    /// Result: the device's error number, or 0.
    pub errno: i32,
}

impl LogRequest {
    /// Return the record to write.
    pub fn put(&self) -> Put<'_> {
        Put {
            region: self.key.region,
            slot: self.key.slot,
            generation: self.key.generation,
            shard: self.shard,
            salt: self.salt,
            hash: self.hash,
            parent: self.parent,
            present: &self.present,
            crcs: &self.crcs,
            sectors: &self.sectors,
            tags: &self.tags,
        }
    }
}
