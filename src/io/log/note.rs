//! What travels between a core thread and a disk's log thread.

use super::super::transfer::SlotKey;
use crate::mail::Address;
use kvtide_tiering::api::Status;
use kvtide_tiering::log::Put;

/// What a note asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum NoteKind {
    /// Write down what a slot holds, after its data was written. `Ok`: the record is written (it survives the daemon).
    #[default]
    Put,
    /// Write down that a slot holds nothing any more. `Ok`: the record is flushed (the slot may be used again).
    Erase,
    /// `Ok`: all data written and all notes answered before this one was sent are flushed (they survive power loss).
    Flush,
}

/// One record for the index log.
///
/// The owner fills everything but the results. The box comes back by `reply`, always and once. `reply`'s mailbox must hold as
/// many boxes as its owner has on their way: what it does not take is kept by the log thread and offered again. Notes of one
/// slot take effect in the order in which they were sent.
#[derive(Debug)]
pub(crate) struct Note {
    /// Whose it is.
    pub space: u32,
    /// Unique among the space's notes on their way.
    pub id: u32,
    /// What is asked for.
    pub kind: NoteKind,
    /// Somebody waits for it: it is not held back to go with others. A flush is always urgent.
    pub urgent: bool,
    /// Which slot, and which of its contents. Not of a flush.
    pub key: SlotKey,
    /// Put: the shard whose part of the block it is.
    pub shard: u16,
    /// Put: the block's hash.
    pub hash: u128,
    /// Put: the hash of the block before it; 0: none.
    pub parent: u128,
    /// Put: a bit for every plane whose page is in the slot.
    pub present: Vec<u32>,
    /// Put: one for each page that is present, by plane: its checksum, or in an encrypted slab its write number.
    pub crcs: Vec<u32>,
    /// Put in a coded or encrypted slab: stored sectors of each page that is present. Else empty.
    pub sectors: Vec<u16>,
    /// Put in an encrypted slab: tag of each page that is present. Else empty.
    pub tags: Vec<[u8; 16]>,
    /// Put in an encrypted slab: the salt of all its pages. Else 0.
    pub salt: u32,
    /// Where the box goes when it is done.
    pub reply: Address<Box<Note>>,
    /// Result: `Ok` as at [`NoteKind`]. `NoSpace`: the log is full, or the slab's own record is not in it; nothing is recorded.
    /// `Io`: the disk failed, or is out of service. `Invalid`: the note contradicts itself or its slab; nothing is recorded.
    pub status: Status,
    /// Result: the device's error number, 0 if there was none.
    pub errno: i32,
}

impl Note {
    /// The record that it asks for.
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
