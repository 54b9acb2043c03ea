//! What the log records, and what it says of itself.

use crate::format::SECTOR;

/// Bytes of the longest domain name.
pub const DOMAIN_BYTES_MAX: usize = 64;

/// Digest of what makes a space: geometry, fingerprint, domain. Slabs with the same key hold blocks of the same space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceKey(pub [u8; 32]);

/// What a region holds since it was granted: the head of all records of its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlabHeader {
    /// The region.
    pub region: u32,
    /// Number of the grant, unlike any before on this disk: a block's record names it, so that a record of the space that had the
    /// region before never passes for one of this.
    pub grant: u64,
    /// Whose blocks they are.
    pub key: SpaceKey,
    /// Name of the domain, at most [`DOMAIN_BYTES_MAX`] bytes.
    pub domain: String,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Shards of the space.
    pub shards: u16,
    /// How pages are coded; 0: they stand as they are.
    pub codec: u8,
    /// Whether pages and the bodies of their records are encrypted.
    pub encrypted: bool,
    /// Bytes of the page of each plane, as it is in memory.
    pub page_bytes: Vec<u32>,
}

impl SlabHeader {
    /// Planes of a block.
    #[must_use]
    pub fn planes(&self) -> u16 {
        self.page_bytes.len() as u16
    }

    /// Words of a bit set of planes.
    #[must_use]
    pub fn words(&self) -> usize {
        self.page_bytes.len().div_ceil(32)
    }

    /// Slots of a region of so many bytes.
    #[must_use]
    pub fn slots(&self, region_bytes: u64) -> u32 {
        region_bytes.checked_div(self.slot_bytes).map_or(0, |slots| u32::try_from(slots).unwrap_or(u32::MAX))
    }

    /// What is wrong with it, if anything is.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let pages: u64 = self.page_bytes.iter().map(|&bytes| u64::from(bytes)).sum();
        if self.page_bytes.is_empty() || self.page_bytes.len() > crate::PLANES_MAX {
            return Err("no planes, or more than there can be");
        }
        if self.page_bytes.contains(&0) || !self.slot_bytes.is_multiple_of(SECTOR.into()) || self.slot_bytes < pages {
            return Err("slots that do not hold their pages");
        }
        if self.domain.len() > DOMAIN_BYTES_MAX || self.shards == 0 {
            return Err("a domain name that is too long, or no shards");
        }
        Ok(())
    }
}

/// One block in its slot. Slices go by plane, absent planes included: they hold anything there and are kept as zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put<'a> {
    /// The region, granted.
    pub region: u32,
    /// The slot in it.
    pub slot: u32,
    /// How many blocks the slot has held, this one included; never 0.
    pub generation: u32,
    /// Shard of the space.
    pub shard: u16,
    /// Number of the salt ([`Salt`]) that pages and record are encrypted under; 0 in slabs that are not.
    pub salt: u32,
    /// Content hash.
    pub hash: u128,
    /// Content hash of the block before it; 0: none.
    pub parent: u128,
    /// Bit words: planes whose page is there.
    pub present: &'a [u32],
    /// Checksum of each page (`format::PageKey::checksum`); in encrypted slabs its write number instead.
    pub crcs: &'a [u32],
    /// Sectors that each page takes as stored, in coded slabs; else empty.
    pub sectors: &'a [u16],
    /// Authentication tag of each page, in encrypted slabs; else empty.
    pub tags: &'a [[u8; 16]],
}

/// A salt that subkeys are derived with, and the number by which records name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Salt {
    /// Its number, unlike any before on this disk; never 0.
    pub number: u32,
    /// The salt.
    pub bytes: [u8; 32],
}

/// How the log stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStatus {
    /// Number of the start whose log it is ([`Recovered::run`](super::Recovered::run)).
    pub run: u32,
    /// Bytes that each half may take: its area, or less where the storage has no room for more.
    pub half_bytes: u64,
    /// Bytes of the half in use that have been written.
    pub used_bytes: u64,
    /// Bytes of records that count.
    pub live_bytes: u64,
    /// Blocks recorded.
    pub blocks: u64,
    /// Slabs recorded.
    pub slabs: u32,
    /// Bytes written by appends, since it was opened.
    pub appended_bytes: u64,
    /// Bytes written by compactions, the one at open included.
    pub compacted_bytes: u64,
    /// Compactions that ended, the one at open included.
    pub compactions: u64,
    /// Whether one is under way.
    pub compacting: bool,
    /// Device flushes.
    pub flushes: u64,
    /// Batches found damaged by compactions since it was opened; what they held is not recorded any more.
    pub corrupt: u64,
    /// A device flush failed: what was written since the one before may be lost, and nothing is recorded any more.
    pub failed: bool,
}
