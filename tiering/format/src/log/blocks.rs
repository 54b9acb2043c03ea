//! Result of a recovery. The blocks of a slab are stored in columns, so a block needs no allocation of its own.

use super::bytes::{u16_at, u32_at, u128_at};
use super::record::{self, PutRecord};
use super::types::{Put, Salt, SlabHeader};

/// Contents recovered from the log of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Slabs, ordered by region.
    pub slabs: Vec<RecoveredSlab>,
    /// Salts that the records refer to, ordered by number.
    pub salts: Vec<Salt>,
    /// Counters of the recovery.
    pub counts: Counts,
    /// Number of this start: at least the superblock's `starts`, and higher than that of every start that wrote to the log. If it
    /// is higher than `starts`, the newest copy of the superblock was lost; the caller must write the superblock with this number.
    pub run: u32,
}

/// One slab and its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredSlab {
    /// Slab header of the region.
    pub header: SlabHeader,
    /// Blocks of the slab, unordered.
    pub blocks: Blocks,
    /// Additional blocks with records that cannot be decrypted because the key is missing. They stay in the log.
    pub sealed: u32,
}

/// Counters of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes of the log read.
    pub read_bytes: u64,
    /// Undamaged batches.
    pub batches: u64,
    /// Records read, including the intact records of damaged batches.
    pub records: u64,
    /// Blocks in the result, including those that cannot be decrypted.
    pub blocks: u64,
    /// Incomplete batches cut from the end: a crash or power failure interrupted their write, so they were never acknowledged.
    pub torn: u64,
    /// Obsolete block records: superseded, erased, or of a slab in a region that was granted again or freed.
    pub stale: u64,
    /// Damaged batches that a device flush had covered, and intact but invalid records. The intact records of a damaged batch are
    /// used; this is safe because page checksums detect outdated records.
    pub corrupt: u64,
    /// Damaged batches before intact ones that no device flush had covered. A power failure can cause this.
    pub lost_unflushed: u64,
    /// Sectors that the device could not read.
    pub unreadable: u64,
    /// The newer half was damaged; the older half supplied the lost part of its checkpoint.
    pub mended: bool,
    /// Neither half has a complete checkpoint: both were damaged, and only a part of the log was recovered.
    pub partial: bool,
}

/// Blocks of one slab in columns, unordered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    pub(super) region: u32,
    pub(super) shape: Shape,
    pub(super) slots: Vec<u32>,
    pub(super) generations: Vec<u32>,
    pub(super) shards: Vec<u16>,
    pub(super) flushed: Vec<bool>,
    pub(super) salts: Vec<u32>,
    pub(super) hashes: Vec<u128>,
    pub(super) parents: Vec<u128>,
    pub(super) present: Vec<u32>,
    pub(super) crcs: Vec<u32>,
    pub(super) sectors: Vec<u16>,
    pub(super) tags: Vec<[u8; 16]>,
}

/// Entries per block in the columns that depend in width on the slab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    pub planes: usize,
    pub words: usize,
    pub sectors: usize,
    pub tags: usize,
}

impl Shape {
    pub fn of(header: &SlabHeader) -> Shape {
        let planes = header.page_bytes.len();
        Shape {
            planes,
            words: header.words(),
            sectors: if header.codec == 0 { 0 } else { planes },
            tags: if header.encrypted { planes } else { 0 },
        }
    }
}

impl Blocks {
    pub(super) fn new(header: &SlabHeader) -> Blocks {
        Blocks { region: header.region, shape: Shape::of(header), ..Blocks::default() }
    }

    /// Add a block from its decrypted record body.
    pub(super) fn push(&mut self, put: &PutRecord<'_>, body: &[u8]) {
        let (hash, parent) = record::hashes(body);
        let [present, crcs, sectors, tags] = record::columns(body, self.shape);
        self.slots.push(put.slot());
        self.generations.push(put.generation());
        self.shards.push(put.shard());
        self.salts.push(put.salt());
        self.hashes.push(hash);
        self.parents.push(parent);
        self.present.extend(present.chunks_exact(4).map(|word| u32_at(word, 0)));
        self.crcs.extend(crcs.chunks_exact(4).map(|word| u32_at(word, 0)));
        self.sectors.extend(sectors.chunks_exact(2).map(|half| u16_at(half, 0)));
        self.tags.extend(tags.chunks_exact(16).map(|tag| u128_at(tag, 0).to_le_bytes()));
    }

    /// Create an empty list for the blocks of a region; each block has `planes` pages.
    #[must_use]
    pub fn empty(region: u32, planes: usize, coded: bool, encrypted: bool) -> Blocks {
        let of = |wanted: bool| if wanted { planes } else { 0 };
        let shape = Shape { planes, words: planes.div_ceil(32), sectors: of(coded), tags: of(encrypted) };
        Blocks { region, shape, ..Blocks::default() }
    }

    /// Add a block of the region. Return false and add nothing if the region or the lengths of its columns do not match.
    #[must_use]
    pub fn add(&mut self, put: &Put<'_>, flushed: bool) -> bool {
        let Shape { planes, words, sectors, tags } = self.shape;
        let lengths = [put.crcs.len(), put.present.len(), put.sectors.len(), put.tags.len()];
        if put.region != self.region || lengths != [planes, words, sectors, tags] {
            return false;
        }
        self.slots.push(put.slot);
        self.generations.push(put.generation);
        self.shards.push(put.shard);
        self.flushed.push(flushed);
        self.salts.push(put.salt);
        self.hashes.push(put.hash);
        self.parents.push(put.parent);
        self.present.extend_from_slice(put.present);
        self.crcs.extend_from_slice(put.crcs);
        self.sectors.extend_from_slice(put.sectors);
        self.tags.extend_from_slice(put.tags);
        true
    }

    /// Remove a block; the last block moves into its row.
    pub(super) fn swap_remove(&mut self, row: usize) {
        let Shape { planes, words, sectors, tags } = self.shape;
        self.slots.swap_remove(row);
        self.generations.swap_remove(row);
        self.shards.swap_remove(row);
        self.salts.swap_remove(row);
        self.hashes.swap_remove(row);
        self.parents.swap_remove(row);
        swap_remove(&mut self.present, row, words);
        swap_remove(&mut self.crcs, row, planes);
        swap_remove(&mut self.sectors, row, sectors);
        swap_remove(&mut self.tags, row, tags);
    }

    /// Return the number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Return whether there are no blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Return the block in this row.
    ///
    /// # Panics
    /// `row` is out of range.
    #[must_use]
    pub fn get(&self, row: usize) -> Put<'_> {
        let Shape { planes, words, sectors, tags } = self.shape;
        Put {
            region: self.region,
            slot: self.slots[row],
            generation: self.generations[row],
            shard: self.shards[row],
            salt: self.salts[row],
            hash: self.hashes[row],
            parent: self.parents[row],
            present: &self.present[row * words..(row + 1) * words],
            crcs: &self.crcs[row * planes..(row + 1) * planes],
            sectors: &self.sectors[row * sectors..(row + 1) * sectors],
            tags: &self.tags[row * tags..(row + 1) * tags],
        }
    }

    /// Return whether a device flush is known to have covered the record. If so, wrong pages are corruption; otherwise a power
    /// failure may have lost them, which is allowed.
    ///
    /// # Panics
    /// `row` is out of range.
    #[must_use]
    pub fn flushed(&self, row: usize) -> bool {
        self.flushed[row]
    }

    /// Iterate over all blocks.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Put<'_>> {
        (0..self.len()).map(|row| self.get(row))
    }
}

/// Remove a row of `width` entries; the last row moves into its place.
fn swap_remove<T: Copy>(column: &mut Vec<T>, row: usize, width: usize) {
    let last = column.len() - width;
    column.copy_within(last.., row * width);
    column.truncate(last);
}
