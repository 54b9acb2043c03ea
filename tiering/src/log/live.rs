//! Which records count: the live generation of every slot, 4 bytes a slot.

use super::blocks::Shape;
use super::record::{self, PutRecord};
use super::types::{Salt, SlabHeader};

/// Slots of a region that are kept track of; a region of 64 GiB of the smallest slots.
pub(super) const SLOTS_MAX: u32 = 1 << 24;

/// What is recorded of one region.
#[derive(Debug)]
pub(super) struct Slab {
    pub header: SlabHeader,
    pub shape: Shape,
    /// Bytes of each of its blocks' records.
    pub record_bytes: usize,
    /// Generation of the block in each slot; 0: none.
    pub slots: Vec<u32>,
    /// Slots that are not 0.
    pub blocks: u32,
}

/// What is recorded.
#[derive(Debug, Default)]
pub(super) struct Live {
    slabs: Vec<Option<Box<Slab>>>,
    /// By number.
    pub salts: Vec<Salt>,
    region_bytes: u64,
    regions: u32,
    /// Bytes of the records that count.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
    pub granted: u32,
}

impl Live {
    pub fn new(regions: u32, region_bytes: u64) -> Live {
        Live { regions, region_bytes, ..Live::default() }
    }

    /// What the region holds.
    pub fn slab(&self, region: u32) -> Option<&Slab> {
        self.slabs.get(region as usize)?.as_deref()
    }

    /// What is recorded of all regions.
    pub fn slabs(&self) -> impl Iterator<Item = &Slab> {
        self.slabs.iter().flatten().map(|slab| &**slab)
    }

    /// Whether the record is that of a block of the slab that its region is.
    pub fn holds_slab(&self, put: &PutRecord<'_>) -> bool {
        self.slab(put.region()).is_some_and(|slab| slab.header.grant == put.grant() && put.fits(slab.shape))
    }

    /// Whether the record is that of a block that counts.
    pub fn holds_record(&self, put: &PutRecord<'_>) -> bool {
        self.holds_slab(put) && self.holds(put.region(), put.slot(), put.generation())
    }

    /// What is wrong with a slab, if anything is.
    pub fn check(&self, header: &SlabHeader) -> Result<(), &'static str> {
        header.check()?;
        if header.region >= self.regions {
            return Err("there is no such region");
        }
        match header.slots(self.region_bytes) {
            0 => Err("a slot is larger than a region"),
            slots if slots > SLOTS_MAX => Err("more slots in a region than are kept track of"),
            _ => Ok(()),
        }
    }

    /// A region is granted: what it held does not count any more; says how many blocks that were. It has been checked.
    pub fn grant(&mut self, header: SlabHeader) -> u64 {
        let stale = self.free(header.region);
        let index = header.region as usize;
        if self.slabs.len() <= index {
            self.slabs.resize_with(index + 1, || None);
        }
        let shape = Shape::of(&header);
        self.bytes += record::slab_bytes(&header) as u64;
        self.granted += 1;
        let slots = vec![0; header.slots(self.region_bytes) as usize];
        let record_bytes = record::put_bytes(shape);
        self.slabs[index] = Some(Box::new(Slab { header, shape, record_bytes, slots, blocks: 0 }));
        stale
    }

    /// A region is free: says how many blocks it held.
    pub fn free(&mut self, region: u32) -> u64 {
        let Some(slab) = self.slabs.get_mut(region as usize).and_then(Option::take) else { return 0 };
        let blocks = u64::from(slab.blocks);
        self.bytes -= record::slab_bytes(&slab.header) as u64 + blocks * slab.record_bytes as u64;
        self.blocks -= blocks;
        self.granted -= 1;
        blocks
    }

    /// A block stands in a slot; true: another did before. Region and slot have been checked.
    pub fn put(&mut self, region: u32, slot: u32, generation: u32) -> bool {
        let Some(slab) = self.slabs.get_mut(region as usize).and_then(Option::as_mut) else { return false };
        let before = std::mem::replace(&mut slab.slots[slot as usize], generation);
        if before != 0 {
            return true;
        }
        slab.blocks += 1;
        self.blocks += 1;
        self.bytes += slab.record_bytes as u64;
        false
    }

    /// A block is erased; false: it was not there.
    pub fn erase(&mut self, region: u32, slot: u32, generation: u32) -> bool {
        if !self.holds(region, slot, generation) {
            return false;
        }
        let Some(slab) = self.slabs.get_mut(region as usize).and_then(Option::as_mut) else { return false };
        slab.slots[slot as usize] = 0;
        slab.blocks -= 1;
        self.blocks -= 1;
        self.bytes -= slab.record_bytes as u64;
        true
    }

    /// Whether this very block is what the slot holds.
    pub fn holds(&self, region: u32, slot: u32, generation: u32) -> bool {
        let slots = self.slab(region).map(|slab| &slab.slots);
        generation != 0 && slots.and_then(|slots| slots.get(slot as usize)) == Some(&generation)
    }

    /// A salt that records name.
    pub fn salt(&mut self, salt: Salt) {
        match self.salts.binary_search_by_key(&salt.number, |known| known.number) {
            Ok(at) => self.salts[at] = salt,
            Err(at) => {
                self.salts.insert(at, salt);
                self.bytes += record::SALT_BYTES as u64;
            }
        }
    }

    /// Whether records may name this salt.
    pub fn knows_salt(&self, number: u32) -> bool {
        self.salts.binary_search_by_key(&number, |known| known.number).is_ok()
    }

    /// Salts that no record names are forgotten. `named` is sorted.
    pub fn keep_salts(&mut self, named: &[u32]) {
        let before = self.salts.len();
        self.salts.retain(|salt| named.binary_search(&salt.number).is_ok());
        self.bytes -= ((before - self.salts.len()) * record::SALT_BYTES) as u64;
    }
}
