//! Types of the log's interface: slabs, blocks, salts, and the status of the log.

use crate::SECTOR;

/// Maximum bytes of a domain name.
pub const DOMAIN_BYTES_MAX: usize = 64;

/// Digest of a space's geometry, fingerprint and domain. Slabs with the same key hold blocks of the same space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceKey(pub [u8; 32]);

/// Slab header: use of a region since it was granted. It applies to the records of all blocks in the region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlabHeader {
    /// The region.
    pub region: u32,
    /// Number of the grant, unique on this disk. Block records contain it, so records of the space that had the region before do
    /// not apply to this one.
    pub grant: u64,
    /// Key of the space that the blocks belong to.
    pub key: SpaceKey,
    /// Name of the domain, at most [`DOMAIN_BYTES_MAX`] bytes.
    pub domain: String,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Shards of the space.
    pub shards: u16,
    /// Codec of the pages; 0: none.
    pub codec: u8,
    /// True if pages and the bodies of their records are encrypted.
    pub encrypted: bool,
    /// Bytes of each plane's page in memory.
    pub page_bytes: Vec<u32>,
}

impl SlabHeader {
    /// Return the header of a slab of a space with one shard, without codec or encryption.
    #[must_use]
    pub fn new(
        region: u32,
        grant: u64,
        key: [u8; 32],
        domain: &str,
        slot_bytes: u64,
        page_bytes: Vec<u32>,
    ) -> SlabHeader {
        let (key, domain) = (SpaceKey(key), domain.to_owned());
        SlabHeader { region, grant, key, domain, slot_bytes, shards: 1, codec: 0, encrypted: false, page_bytes }
    }

    /// Return the number of planes of a block.
    #[must_use]
    pub fn planes(&self) -> u16 {
        self.page_bytes.len() as u16
    }

    /// Return the number of 32-bit words of a bit set of planes.
    #[must_use]
    pub fn words(&self) -> usize {
        self.page_bytes.len().div_ceil(32)
    }

    /// Return the number of slots in a region of `region_bytes` bytes.
    #[must_use]
    pub fn slots(&self, region_bytes: u64) -> u32 {
        region_bytes.checked_div(self.slot_bytes).map_or(0, |slots| u32::try_from(slots).unwrap_or(u32::MAX))
    }

    /// Check the header; the error names the defect.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let pages: u64 = self.page_bytes.iter().map(|&bytes| u64::from(bytes)).sum();
        if self.page_bytes.is_empty() || self.page_bytes.len() > kvtide_types::geometry::PLANES_MAX {
            return Err("number of planes out of range");
        }
        if self.page_bytes.contains(&0) || !self.slot_bytes.is_multiple_of(SECTOR.into()) || self.slot_bytes < pages {
            return Err("a page is empty, or slots are too small for their pages or not whole sectors");
        }
        if self.domain.len() > DOMAIN_BYTES_MAX || self.shards == 0 {
            return Err("the domain name is longer than 64 bytes, or there are no shards");
        }
        Ok(())
    }
}

/// A block in its slot. The slices have an entry for each plane; entries of absent planes are ignored and recorded as zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put<'a> {
    /// The region; it must be granted.
    pub region: u32,
    /// The slot in it.
    pub slot: u32,
    /// Generation of the slot: different for every block that the slot ever holds; never 0.
    pub generation: u32,
    /// Shard of the space.
    pub shard: u16,
    /// Number of the salt ([`Salt`]) for the encryption of pages and record; 0 in unencrypted slabs.
    pub salt: u32,
    /// Content hash.
    pub hash: u128,
    /// Content hash of the parent block, the one before it in its prefix; 0: none.
    pub parent: u128,
    /// Bit set of the planes with a present page.
    pub present: &'a [u32],
    /// Checksum of each page (`format::PageKey::checksum`); in encrypted slabs, its write number.
    pub crcs: &'a [u32],
    /// Sectors of each stored page in slabs with a codec (0: stored uncoded); else empty.
    pub sectors: &'a [u16],
    /// Authentication tag of each page, in encrypted slabs; else empty.
    pub tags: &'a [[u8; 16]],
}

/// A salt for the derivation of subkeys, and the number by which records refer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Salt {
    /// Number of the salt, unique on this disk; never 0.
    pub number: u32,
    /// The salt.
    pub bytes: [u8; 32],
}

/// Status of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStatus {
    /// Number of this start ([`Recovered::run`](super::Recovered::run)).
    pub run: u32,
    /// Maximum bytes of a half: its area, or less if the storage has no space for more.
    pub half_bytes: u64,
    /// Bytes used of the half in use, including buffered records.
    pub used_bytes: u64,
    /// Bytes of live records.
    pub live_bytes: u64,
    /// Blocks recorded.
    pub blocks: u64,
    /// Slabs recorded.
    pub slabs: u32,
    /// Bytes written by appends since the log was opened.
    pub appended_bytes: u64,
    /// Bytes written by compactions, including the one at open.
    pub compacted_bytes: u64,
    /// Completed compactions, including the one at open.
    pub compactions: u64,
    /// True if a compaction is running.
    pub compacting: bool,
    /// Device flushes.
    pub flushes: u64,
    /// Damaged batches found by compactions since the log was opened. Their damaged records are lost.
    pub corrupt: u64,
    /// True if a device flush failed. Writes since the previous flush may be lost, and the log accepts no more records.
    pub failed: bool,
}
