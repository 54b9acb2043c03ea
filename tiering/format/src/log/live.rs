//! Live records: the generation recorded for each slot, 4 bytes per slot.

use super::blocks::Shape;
use super::record::{self, PutRecord};
use super::types::{Salt, SlabHeader};

/// Maximum slots of a region: 64 GiB of the smallest slots.
pub(super) const SLOTS_MAX: u32 = 1 << 24;

/// Recorded state of one region.
#[derive(Debug)]
pub(super) struct Slab {
    pub header: SlabHeader,
    pub shape: Shape,
    /// Bytes of one block record.
    pub record_bytes: usize,
    /// Generation of the block in each slot; 0 if the slot is empty.
    pub slots: Vec<u32>,
    /// Number of occupied slots.
    pub blocks: u32,
}

/// Recorded state of a disk.
#[derive(Debug, Default)]
pub(super) struct Live {
    slabs: Vec<Option<Box<Slab>>>,
    /// Salts, ordered by number.
    pub salts: Vec<Salt>,
    region_bytes: u64,
    regions: u32,
    /// Bytes of the live records.
    pub bytes: u64,
    /// Number of recorded blocks.
    pub blocks: u64,
    pub granted: u32,
}

impl Live {
    pub fn new(regions: u32, region_bytes: u64) -> Live {
        Live { regions, region_bytes, ..Live::default() }
    }

    /// Return the slab of a region.
    pub fn slab(&self, region: u32) -> Option<&Slab> {
        self.slabs.get(region as usize)?.as_deref()
    }

    /// Iterate over all slabs.
    pub fn slabs(&self) -> impl Iterator<Item = &Slab> {
        self.slabs.iter().flatten().map(|slab| &**slab)
    }

    /// Return whether the record belongs to the current slab of its region.
    pub fn holds_slab(&self, put: &PutRecord<'_>) -> bool {
        self.slab(put.region()).is_some_and(|slab| slab.header.grant == put.grant() && put.fits(slab.shape))
    }

    /// Return whether the record is live.
    pub fn holds_record(&self, put: &PutRecord<'_>) -> bool {
        self.holds_slab(put) && self.holds(put.region(), put.slot(), put.generation())
    }

    /// Check a slab header; the error names the defect.
    pub fn check(&self, header: &SlabHeader) -> Result<(), &'static str> {
        header.check()?;
        if header.region >= self.regions {
            return Err("region out of range");
        }
        match header.slots(self.region_bytes) {
            0 => Err("a slot is larger than a region"),
            slots if slots > SLOTS_MAX => Err("more than 16777216 slots in a region"),
            _ => Ok(()),
        }
    }

    /// Grant a region and return how many recorded blocks became obsolete. The caller has checked the header.
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

    /// Free a region and return how many blocks were recorded in it.
    pub fn free(&mut self, region: u32) -> u64 {
        let Some(slab) = self.slabs.get_mut(region as usize).and_then(Option::take) else { return 0 };
        let blocks = u64::from(slab.blocks);
        self.bytes -= record::slab_bytes(&slab.header) as u64 + blocks * slab.record_bytes as u64;
        self.blocks -= blocks;
        self.granted -= 1;
        blocks
    }

    /// Record a block in a slot. Return true if it replaced another. The caller has checked region and slot.
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

    /// Erase a block. Return false if it was not recorded.
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

    /// Return whether the slot holds this generation.
    pub fn holds(&self, region: u32, slot: u32, generation: u32) -> bool {
        let slots = self.slab(region).map(|slab| &slab.slots);
        generation != 0 && slots.and_then(|slots| slots.get(slot as usize)) == Some(&generation)
    }

    /// Record a salt.
    pub fn salt(&mut self, salt: Salt) {
        match self.salts.binary_search_by_key(&salt.number, |known| known.number) {
            Ok(at) => self.salts[at] = salt,
            Err(at) => {
                self.salts.insert(at, salt);
                self.bytes += record::SALT_BYTES as u64;
            }
        }
    }

    /// Return whether the salt is recorded.
    pub fn knows_salt(&self, number: u32) -> bool {
        self.salts.binary_search_by_key(&number, |known| known.number).is_ok()
    }

    /// Drop the salts that are not in `named`, which is sorted.
    pub fn keep_salts(&mut self, named: &[u32]) {
        let before = self.salts.len();
        self.salts.retain(|salt| named.binary_search(&salt.number).is_ok());
        self.bytes -= ((before - self.salts.len()) * record::SALT_BYTES) as u64;
    }
}
