//! Superblock: identity and layout of a store file of the NVMe tier.
//!
//! ```text
//! offset  bytes  field
//!      0      8  magic "kvtstore"
//!      8      4  version, 1
//!     12      4  required features: a reader must support all of them; 0
//!     16     16  store id, random
//!     32      8  sequence: of two valid copies the one with the higher sequence is used
//!     40      8  offset of the log area
//!     48      8  bytes of the log area, both halves
//!     56      8  offset of region 0
//!     64      8  bytes of a region
//!     72      4  number of regions
//!     76      4  number of regions again; earlier builds counted here the regions that they had pre-written
//!     80      8  bytes written to the file since it was created
//!     88      4  starts: number of times that a daemon opened the store for writing
//!     92   4000  zero
//!   4092      4  CRC-32C of the preceding 4092 bytes
//! ```
//! All numbers are little-endian. The file begins with two copies of one sector each, which are written alternately, so a torn
//! write damages only one. The key area, one sector per key, fills the space from the copies to offset 1 MiB.

use super::checksum::crc32c;
use super::slot::SECTOR;

/// Name of a store file in the directory of a disk.
pub const STORE_FILE: &str = "kvtide.store";
/// Bytes of one copy.
pub const SUPERBLOCK_BYTES: usize = SECTOR as usize;
/// Copies at the start of the file.
pub const SUPERBLOCK_COPIES: u64 = 2;

const MAGIC: &[u8; 8] = b"kvtstore";
const VERSION: u32 = 1;
const CHECKSUM: usize = SUPERBLOCK_BYTES - 4;
/// Unused bytes between the last field and the checksum.
const ZERO: std::ops::Range<usize> = 92..CHECKSUM;
/// Alignment and size unit of the areas. Regions are multiples of a sector only.
const AREA: u64 = 1 << 20;
/// Bytes of regions for each byte of the log area. The log has two halves, so each half has 1 KiB for a block of 64 KiB. A record
/// of a block with 64 planes takes 328 bytes; an encrypted record with 32 planes takes 744. Log space that was never used stays a
/// hole in the file.
const LOG_SHARE: u64 = 32;
/// Size unit of the log area: each half is a multiple of [`AREA`].
const LOG_UNIT: u64 = 2 * AREA;

/// Offset of the key area: the sector after the superblock copies.
pub const KEYS_OFFSET: u64 = SUPERBLOCK_COPIES * SUPERBLOCK_BYTES as u64;
/// Sectors of the key area, one per key.
pub const KEY_SECTORS: u16 = ((AREA - KEYS_OFFSET) / SECTOR as u64) as u16;

/// Identity, layout and counters of a store file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Store id: random, and part of every page's checksum.
    pub store: u128,
    /// Number of times that the superblock was written.
    pub sequence: u64,
    /// Offset of the log area, in bytes.
    pub log_offset: u64,
    /// Bytes of the log area.
    pub log_bytes: u64,
    /// Offset of region 0, in bytes.
    pub regions_offset: u64,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Number of regions.
    pub regions: u32,
    /// Bytes written to the file since it was created.
    pub written_bytes: u64,
    /// Number of times that a daemon opened the store for writing, this time included.
    ///
    /// A start increments, writes and flushes it before it writes anything else. Slot generations and log epochs contain this
    /// number; because no two starts share it, generations and epochs are never reused.
    pub starts: u32,
}

/// Reason why a superblock cannot be used, or not be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SuperblockError {
    /// The bytes do not begin with the magic of a store.
    #[error("not a kvtide store: no superblock")]
    Foreign,
    /// A later version of kvtide wrote the superblock.
    #[error(
        "written by a later version of kvtide (format {version}, features {features:#x}; this version reads format 1)"
    )]
    Newer {
        /// Format version.
        version: u32,
        /// Required features.
        features: u32,
    },
    /// The magic is right, but the contents are damaged.
    #[error("the superblock is damaged: {what}")]
    Damaged {
        /// The defect.
        what: &'static str,
    },
    /// A new store cannot have this layout.
    #[error("cannot lay out {regions} regions of {region_bytes} bytes")]
    Layout {
        /// Requested number of regions.
        regions: u64,
        /// Bytes of a region.
        region_bytes: u64,
    },
}

impl Superblock {
    /// Describe a new store with as many whole regions as fit in `capacity_bytes`.
    ///
    /// # Errors
    /// [`SuperblockError::Layout`]: `region_bytes` is not a multiple of a sector, no region fits, or the number of regions or the
    /// file size overflows.
    pub fn new(store: u128, capacity_bytes: u64, region_bytes: u64) -> Result<Superblock, SuperblockError> {
        let regions = capacity_bytes.checked_div(region_bytes).unwrap_or(0);
        let wrong = SuperblockError::Layout { regions, region_bytes };
        let regions = u32::try_from(regions).map_err(|_| wrong)?;
        let log_bytes = (u64::from(regions) * region_bytes / LOG_SHARE).max(1).next_multiple_of(LOG_UNIT);
        let block = Superblock {
            store,
            sequence: 0,
            log_offset: AREA,
            log_bytes,
            regions_offset: AREA + log_bytes,
            region_bytes,
            regions,
            written_bytes: 0,
            starts: 0,
        };
        block.check().map_err(|_| wrong)?;
        Ok(block)
    }

    /// Describe a new store with as many regions as make a file of at most `file_bytes`.
    ///
    /// # Errors
    /// [`SuperblockError::Layout`]: as for [`Superblock::new`].
    pub fn largest(store: u128, file_bytes: u64, region_bytes: u64) -> Result<Superblock, SuperblockError> {
        let mut capacity = file_bytes;
        loop {
            let block = Superblock::new(store, capacity, region_bytes)?;
            match block.file_bytes().checked_sub(file_bytes) {
                None | Some(0) => return Ok(block),
                // Reduce by at least one region; a capacity below one region is an error of the layout.
                Some(over) => {
                    capacity = (capacity / region_bytes * region_bytes).saturating_sub(over.min(region_bytes))
                }
            }
        }
    }

    /// Return the bytes of all regions.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.regions) * self.region_bytes
    }

    /// Return the size of the file in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.regions_offset + self.capacity_bytes()
    }

    /// Return whether both superblocks describe the same layout.
    #[must_use]
    pub fn fits(&self, other: &Superblock) -> bool {
        let layout = |b: &Superblock| (b.log_offset, b.log_bytes, b.regions_offset, b.region_bytes, b.regions);
        layout(self) == layout(other)
    }

    /// Return the file offset of the copy with this sequence.
    #[must_use]
    pub fn place(&self) -> u64 {
        (self.sequence % SUPERBLOCK_COPIES) * SUPERBLOCK_BYTES as u64
    }

    /// Encode one copy.
    #[must_use]
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(MAGIC);
        put(&VERSION.to_le_bytes());
        put(&0u32.to_le_bytes());
        put(&self.store.to_le_bytes());
        for field in [self.sequence, self.log_offset, self.log_bytes, self.regions_offset, self.region_bytes] {
            put(&field.to_le_bytes());
        }
        put(&self.regions.to_le_bytes());
        put(&self.regions.to_le_bytes());
        put(&self.written_bytes.to_le_bytes());
        put(&self.starts.to_le_bytes());
        debug_assert_eq!(at, ZERO.start);
        let crc = crc32c(&bytes[..CHECKSUM]);
        bytes[CHECKSUM..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decode and check one copy.
    ///
    /// # Errors
    /// [`SuperblockError`]: the bytes are not a superblock, are damaged, or come from a later version.
    pub fn decode(bytes: &[u8; SUPERBLOCK_BYTES]) -> Result<Superblock, SuperblockError> {
        if bytes[..8] != *MAGIC {
            return Err(SuperblockError::Foreign);
        }
        let (version, features) = (u32_at(bytes, 8), u32_at(bytes, 12));
        // Every version keeps the checksum at the same offset, so a damaged version number is not mistaken for a later version.
        if crc32c(&bytes[..CHECKSUM]) != u32_at(bytes, CHECKSUM) {
            return Err(SuperblockError::Damaged { what: "wrong checksum" });
        }
        if version > VERSION || features != 0 {
            return Err(SuperblockError::Newer { version, features });
        }
        if version != VERSION || bytes[ZERO].iter().any(|&byte| byte != 0) {
            return Err(SuperblockError::Damaged { what: "invalid field value" });
        }
        let block = Superblock {
            store: u128::from(u64_at(bytes, 16)) | u128::from(u64_at(bytes, 24)) << 64,
            sequence: u64_at(bytes, 32),
            log_offset: u64_at(bytes, 40),
            log_bytes: u64_at(bytes, 48),
            regions_offset: u64_at(bytes, 56),
            region_bytes: u64_at(bytes, 64),
            regions: u32_at(bytes, 72),
            written_bytes: u64_at(bytes, 80),
            starts: u32_at(bytes, 88),
        };
        block.check()?;
        Ok(block)
    }

    /// Return the newer valid copy of the two at the start of a file.
    ///
    /// # Errors
    /// Neither copy can be used: the error of the first copy, or of the second if the first has no magic. A copy of a later version
    /// is always an error, even if the other copy is valid: this version must not overwrite it.
    pub fn newest(
        first: &[u8; SUPERBLOCK_BYTES],
        second: &[u8; SUPERBLOCK_BYTES],
    ) -> Result<Superblock, SuperblockError> {
        let newer = |result: &Result<_, _>| matches!(result, Err(SuperblockError::Newer { .. }));
        match (Superblock::decode(first), Superblock::decode(second)) {
            (one, other) if newer(&one) || newer(&other) => {
                if newer(&one) {
                    one
                } else {
                    other
                }
            }
            (Ok(a), Ok(b)) => Ok(if b.sequence > a.sequence { b } else { a }),
            (Ok(block), Err(_)) | (Err(_), Ok(block)) => Ok(block),
            (Err(SuperblockError::Foreign), Err(error)) | (Err(error), Err(_)) => Err(error),
        }
    }

    /// Check that the areas are whole units, do not overlap, and do not overflow.
    fn check(&self) -> Result<(), SuperblockError> {
        let whole = |bytes: u64, unit| bytes > 0 && bytes.is_multiple_of(unit);
        let areas = [self.log_offset, self.log_bytes, self.regions_offset].into_iter().all(|bytes| whole(bytes, AREA));
        if !areas || !whole(self.region_bytes, SECTOR.into()) || self.regions == 0 {
            return Err(SuperblockError::Damaged { what: "invalid area size" });
        }
        let log_end = self.log_offset.checked_add(self.log_bytes);
        let regions_bytes = self.region_bytes.checked_mul(u64::from(self.regions));
        let end = regions_bytes.and_then(|bytes| bytes.checked_add(self.regions_offset));
        let ordered = log_end.is_some_and(|log_end| log_end <= self.regions_offset);
        if !ordered || end.is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(SuperblockError::Damaged { what: "areas overlap or end beyond the largest file size" });
        }
        Ok(())
    }
}

fn u32_at(bytes: &[u8; SUPERBLOCK_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8; SUPERBLOCK_BYTES], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn blocks() -> impl Strategy<Value = Superblock> {
        (any::<u128>(), any::<u64>(), 1u64..1 << 44, 1u64..1 << 20, any::<u32>(), any::<u64>()).prop_filter_map(
            "no region fits",
            |(store, sequence, capacity, unit, written, bytes)| {
                let block = Superblock::new(store, capacity, unit << 12).ok()?;
                Some(Superblock { sequence, written_bytes: bytes, starts: written, ..block })
            },
        )
    }

    /// Recompute the checksum.
    fn sealed(mut bytes: [u8; SUPERBLOCK_BYTES]) -> [u8; SUPERBLOCK_BYTES] {
        let crc = crc32c(&bytes[..CHECKSUM]);
        bytes[CHECKSUM..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn block() -> Superblock {
        Superblock::new(0xABCD, 1 << 30, 64 << 20).unwrap()
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(block in blocks()) {
            prop_assert_eq!(Superblock::decode(&block.encode()), Ok(block));
            prop_assert!(block.regions_offset >= 2 * SUPERBLOCK_BYTES as u64 + block.log_bytes);
        }

        #[test]
        fn a_flipped_bit_is_seen(block in blocks(), bit in 0..SUPERBLOCK_BYTES * 8) {
            let mut bytes = block.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Superblock::decode(&bytes).is_err());
        }

        #[test]
        fn a_torn_write_leaves_the_copy_before(block in blocks(), torn in 0..SUPERBLOCK_BYTES) {
            let before = Superblock { sequence: block.sequence / 2 + 1, ..block };
            let after = Superblock { sequence: before.sequence + 1, written_bytes: !block.written_bytes, ..block };
            prop_assert_ne!(before.place(), after.place());
            // The copy that `after` overwrites held the version before `before`.
            let older = Superblock { sequence: before.sequence - 1, ..block };
            let mut copies = [before.encode(), before.encode()];
            let place = (after.place() / SUPERBLOCK_BYTES as u64) as usize;
            copies[place] = older.encode();
            copies[place][..torn].copy_from_slice(&after.encode()[..torn]);
            let found = Superblock::newest(&copies[0], &copies[1]).unwrap();
            let whole = copies[place] == after.encode();
            prop_assert!(found == before || (whole && found == after), "{:?}", found);
            copies[place] = after.encode();
            prop_assert_eq!(Superblock::newest(&copies[0], &copies[1]), Ok(after));
        }
    }

    #[test]
    fn what_is_not_ours_is_told_from_what_is_later_and_what_is_damaged() {
        let foreign = [0u8; SUPERBLOCK_BYTES];
        let mut later = block().encode();
        later[8] = 2;
        let later = sealed(later);
        let mut features = block().encode();
        features[12] = 4;
        let features = sealed(features);
        let mut damaged = block().encode();
        damaged[20] ^= 1;
        let newest = Superblock::newest;
        let good = block().encode();
        assert_eq!(newest(&foreign, &foreign), Err(SuperblockError::Foreign));
        assert_eq!(newest(&later, &foreign), Err(SuperblockError::Newer { version: 2, features: 0 }));
        assert_eq!(newest(&good, &features), Err(SuperblockError::Newer { version: 1, features: 4 }));
        assert!(matches!(newest(&foreign, &damaged), Err(SuperblockError::Damaged { .. })));
        assert_eq!(newest(&damaged, &good), Ok(block()), "the other copy is valid");
    }

    #[test]
    fn impossible_numbers_are_refused_though_the_checksum_is_right() {
        let good = block();
        for bad in [
            Superblock { regions: 0, ..good },
            Superblock { regions: u32::MAX, region_bytes: 1 << 50, ..good },
            Superblock { region_bytes: 4095, ..good },
            Superblock { region_bytes: u64::MAX << 20, ..good },
            Superblock { log_bytes: u64::MAX << 20, ..good },
            Superblock { log_offset: good.regions_offset, ..good },
            Superblock { log_offset: 0, ..good },
        ] {
            assert!(Superblock::decode(&bad.encode()).is_err(), "{bad:?}");
        }
        let mut odd = good.encode();
        odd[2000] = 1;
        assert!(Superblock::decode(&sealed(odd)).is_err());
    }

    #[test]
    fn a_capacity_without_room_for_a_region_is_refused() {
        assert!(Superblock::new(1, 1 << 20, 2 << 20).is_err());
        assert!(Superblock::new(1, 1 << 20, 0).is_err());
        assert!(Superblock::new(1, 1 << 30, 1000).is_err());
        let block = Superblock::new(1, (10 << 20) + 5, 4 << 20).unwrap();
        assert_eq!((block.regions, block.regions_offset, block.file_bytes()), (2, 3 << 20, 11 << 20));
    }
}
