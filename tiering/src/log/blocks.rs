//! What a start finds: the blocks of a slab as columns, without an allocation a block.

use super::bytes::{u16_at, u32_at, u128_at};
use super::record::{self, PutRecord};
use super::types::{Put, Salt, SlabHeader};

/// What the log of a disk held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Slabs, by region.
    pub slabs: Vec<RecoveredSlab>,
    /// Salts that their records name, by number.
    pub salts: Vec<Salt>,
    /// What was found and what was left out.
    pub counts: Counts,
    /// Number of this start: at least the superblock's `starts`, and more than any start that wrote to the log before. If it is more
    /// than the superblock says, the superblock lost its newest copy and shall be written with this number.
    pub run: u32,
}

/// One slab and its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredSlab {
    /// What the region holds.
    pub header: SlabHeader,
    /// Its blocks, in no order.
    pub blocks: Blocks,
    /// Blocks more whose records cannot be decrypted here. They stay recorded.
    pub sealed: u32,
}

/// What a recovery counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes of the log read.
    pub read_bytes: u64,
    /// Batches that were whole.
    pub batches: u64,
    /// Records in them.
    pub records: u64,
    /// Blocks in the result, those that cannot be decrypted here included.
    pub blocks: u64,
    /// Batches cut from the end: their write was under way when the daemon died or the power failed. Nobody was told that they are stored.
    pub torn: u64,
    /// Block records that do not count any more: superseded, erased, or of a slab whose region was granted again or freed.
    pub stale: u64,
    /// Batches that a device flush had covered and that are not what was written any more, wholly or in part; and records that
    /// are what was written and make no sense. What is left of such a batch is used: page checksums make that safe.
    pub corrupt: u64,
    /// Batches that are not what was written though later ones are, and that no device flush had covered: a power cut may do that.
    pub lost_unflushed: u64,
    /// Sectors that the device could not read.
    pub unreadable: u64,
    /// The newer half was damaged, and what was lost of its checkpoint was still to be had from the older one.
    pub mended: bool,
    /// Neither half has a complete checkpoint, and only a part of one was found: both were damaged.
    pub partial: bool,
}

/// Blocks of one slab, as columns, in no order.
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

/// How many entries a block has in the columns whose width depends on the slab.
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

    /// Adds a block whose body is in the clear.
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

    /// Adds a block of the region. False, and nothing is added, if its columns are not those of the region's slab.
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

    /// Takes a block out; the last takes its row.
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

    /// Blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// There are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The block in this row.
    ///
    /// # Panics
    /// There are not so many.
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

    /// Whether a device flush is known to cover it: if its pages are not what was written, they are corrupt. Otherwise a power
    /// cut may have lost them, as it may.
    ///
    /// # Panics
    /// There are not so many.
    #[must_use]
    pub fn flushed(&self, row: usize) -> bool {
        self.flushed[row]
    }

    /// All blocks.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Put<'_>> {
        (0..self.len()).map(|row| self.get(row))
    }
}

/// The last row of `width` takes the place of this one.
fn swap_remove<T: Copy>(column: &mut Vec<T>, row: usize, width: usize) {
    let last = column.len() - width;
    column.copy_within(last.., row * width);
    column.truncate(last);
}
