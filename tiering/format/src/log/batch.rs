//! Batch: a header and records in whole sectors. One write stores one or more batches.
//!
//! ```text
//! offset  bytes  field
//!      0      4  magic "kvlb"
//!      4      4  CRC-32C of the following 56 bytes
//!      8     16  store id
//!     24      8  epoch of the half
//!     32      8  sequence: number of earlier batches of this epoch
//!     40      8  flushed: a device flush covered all batches with a lower sequence
//!     48      4  position: sectors from the start of the half
//!     52      4  bytes of the records after the header
//!     56      4  number of records
//!     60      4  flags: 1 if the checkpoint at the start of the half is complete
//! ```
//! Zeros fill the last sector after the records.

use super::bytes::{u32_at, u64_at, u128_at};
use crate::{SECTOR, crc32c};

const MAGIC: &[u8; 4] = b"kvlb";
/// Bytes of a header.
pub(super) const HEADER: usize = 64;
/// Maximum bytes of a batch: large enough for full device throughput, small enough that a torn batch loses few records.
pub(super) const BATCH_MAX: usize = 256 << 10;
const COMPLETE: u32 = 1;

/// The header of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub store: u128,
    pub epoch: u64,
    pub sequence: u64,
    pub flushed: u64,
    /// Position in sectors from the start of the half.
    pub at: u32,
    /// Bytes of the records.
    pub bytes: u32,
    pub records: u32,
    pub complete: bool,
}

impl Header {
    /// Return the bytes of the whole batch: header, records and padding.
    pub fn batch_bytes(&self) -> usize {
        (HEADER + self.bytes as usize).next_multiple_of(SECTOR as usize)
    }

    pub fn encode(&self, into: &mut [u8]) {
        let fields: [&[u8]; 9] = [
            MAGIC,
            &[0; 4],
            &self.store.to_le_bytes(),
            &self.epoch.to_le_bytes(),
            &self.sequence.to_le_bytes(),
            &self.flushed.to_le_bytes(),
            &self.at.to_le_bytes(),
            &self.bytes.to_le_bytes(),
            &self.records.to_le_bytes(),
        ];
        let mut at = 0;
        for field in fields {
            into[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        }
        into[at..HEADER].copy_from_slice(&if self.complete { COMPLETE } else { 0 }.to_le_bytes());
        let crc = crc32c(&into[8..HEADER]);
        into[4..8].copy_from_slice(&crc.to_le_bytes());
    }

    /// Decode the header at the start of a sector, if it is valid.
    pub fn decode(sector: &[u8]) -> Option<Header> {
        if sector[..4] != *MAGIC || crc32c(&sector[8..HEADER]) != u32_at(sector, 4) {
            return None;
        }
        let header = Header {
            store: u128_at(sector, 8),
            epoch: u64_at(sector, 24),
            sequence: u64_at(sector, 32),
            flushed: u64_at(sector, 40),
            at: u32_at(sector, 48),
            bytes: u32_at(sector, 52),
            records: u32_at(sector, 56),
            complete: u32_at(sector, 60) == COMPLETE,
        };
        let possible = u32_at(sector, 60) <= COMPLETE
            && header.bytes as usize <= BATCH_MAX - HEADER
            && header.flushed <= header.sequence;
        possible.then_some(header)
    }
}
