//! Model of the blocks that must, may and must not be found after a crash.

use super::disk::Disk;
use kvtide_format::log::{Log, Recovered, SlabHeader};
use kvtide_format::{PageKey, Superblock};
use std::collections::BTreeMap;

/// This number makes a checkpoint take several batches. It also makes a record take 448 bytes, so that the first record of a batch
/// ends where a write may tear: the bytes after it are whole records of an older epoch.
pub const PLANES: usize = 93;
pub const PAGE: usize = 32;
pub const SLOT: usize = 4096;

/// A request to the log, or a guarantee by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    Grant {
        region: u32,
        grant: u64,
    },
    Free {
        region: u32,
    },
    Put {
        region: u32,
        slot: u32,
        generation: u32,
        hash: u128,
    },
    Erase {
        region: u32,
        slot: u32,
    },
    /// All requests are stored.
    Wrote,
    /// All requests are durable.
    Flushed,
}

/// Certainty of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sure {
    Asked,
    Stored,
    Durable,
}

#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub generation: u32,
    pub hash: u128,
    pub sure: Sure,
    /// Its erasure, or the end of its region, is requested and not yet durable.
    pub leaving: bool,
}

/// All requests and guarantees so far.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Current grant of each region, and the earlier ones until it is durable.
    pub grants: BTreeMap<u32, (Option<u64>, Vec<Option<u64>>)>,
    pub blocks: BTreeMap<(u32, u32), Block>,
}

impl Model {
    pub fn apply(&mut self, said: Said) {
        match said {
            Said::Grant { region, grant } => self.regrant(region, Some(grant)),
            Said::Free { region } => self.regrant(region, None),
            Said::Put { region, slot, generation, hash } => {
                let block = Block { generation, hash, sure: Sure::Asked, leaving: false };
                let before = self.blocks.insert((region, slot), block);
                assert!(before.is_none(), "the driver waits until an erasure is durable");
            }
            Said::Erase { region, slot } => self.blocks.get_mut(&(region, slot)).unwrap().leaving = true,
            Said::Wrote => self.blocks.values_mut().for_each(|block| block.sure = block.sure.max(Sure::Stored)),
            Said::Flushed => {
                self.blocks.retain(|_, block| !block.leaving);
                self.blocks.values_mut().for_each(|block| block.sure = Sure::Durable);
                self.grants.values_mut().for_each(|grant| grant.1.clear());
            }
        }
    }

    fn regrant(&mut self, region: u32, grant: Option<u64>) {
        let entry = self.grants.entry(region).or_default();
        let before = std::mem::replace(&mut entry.0, grant);
        entry.1.push(before);
        for (_, block) in self.blocks.range_mut((region, 0)..=(region, u32::MAX)) {
            block.leaving = true;
        }
    }

    /// Open the log on an image and check all contents. `power`: unflushed writes may be missing. Return the disk after the
    /// recovery, with its journal, and the recovered contents.
    pub fn check(&self, image: Vec<u8>, superblock: &Superblock, power: bool) -> Result<(Disk, Recovered), String> {
        let disk = Disk::new(image);
        let opened = Log::open(disk.clone(), superblock, None, &mut |_| {});
        let (mut log, recovered) = opened.map_err(|error| format!("it does not open: {error}"))?;
        let mut found = BTreeMap::new();
        for slab in &recovered.slabs {
            let region = slab.header.region;
            let (now, before) = self.grants.get(&region).ok_or(format!("region {region} was never granted"))?;
            let grant = Some(slab.header.grant);
            if grant != *now && !before.contains(&grant) {
                return Err(format!("region {region} holds grant {grant:?}, not {now:?} or {before:?}"));
            }
            for row in 0..slab.blocks.len() {
                let block = slab.blocks.get(row);
                let good = pages_good(&disk, superblock, &slab.header, &block)?;
                if !good && slab.blocks.flushed(row) {
                    return Err(format!("{block:?} is reported as flushed, but its pages are wrong"));
                }
                if !good && !power {
                    return Err(format!("{block:?}: wrong pages without a power cut"));
                }
                found.insert((region, block.slot), (block.generation, block.hash, good));
            }
        }
        for (place, block) in &self.blocks {
            let must = block.sure >= if power { Sure::Durable } else { Sure::Stored } && !block.leaving;
            match found.remove(place) {
                Some((generation, hash, good)) => {
                    if (generation, hash) != (block.generation, block.hash) {
                        return Err(format!("{place:?} holds generation {generation:#x}, not {block:?}"));
                    }
                    if must && !good {
                        return Err(format!("{place:?} {block:?}: its pages are lost"));
                    }
                }
                None if must => return Err(format!("{place:?} {block:?} is lost")),
                None => {}
            }
        }
        if let Some((place, block)) = found.first_key_value() {
            return Err(format!("{place:?} {block:?} was found and must not be"));
        }
        // The log is usable.
        log.flush().map_err(|error| format!("it does not flush: {error}"))?;
        Ok((disk, recovered))
    }
}

/// Return the bytes of a block's page; each page has different ones.
pub fn page(hash: u128, plane: usize) -> Vec<u8> {
    let mut dice = super::Dice::new((hash as u64) << 8 | plane as u64);
    (0..PAGE / 8).flat_map(|_| dice.next().to_le_bytes()).collect()
}

pub fn page_key(superblock: &Superblock, region: u32, slot: u32, generation: u32, plane: usize) -> PageKey {
    PageKey { store: superblock.store, region, slot, generation, plane: plane as u16 }
}

pub fn slot_offset(superblock: &Superblock, region: u32, slot: u32) -> usize {
    (superblock.regions_offset + u64::from(region) * superblock.region_bytes) as usize + slot as usize * SLOT
}

pub fn header(region: u32, grant: u64) -> SlabHeader {
    SlabHeader::new(region, grant, [grant as u8; 32], "crash", SLOT as u64, vec![PAGE as u32; PLANES])
}

/// Return whether all pages of a recovered block pass their checksums.
pub fn block_good(
    disk: &Disk,
    superblock: &Superblock,
    slab: &SlabHeader,
    block: &kvtide_format::log::Put<'_>,
) -> bool {
    pages_good(disk, superblock, slab, block).unwrap()
}

/// Return whether all pages of a block pass their checksums. A page that passes and differs from the written one is an error.
fn pages_good(
    disk: &Disk,
    superblock: &Superblock,
    slab: &SlabHeader,
    block: &kvtide_format::log::Put<'_>,
) -> Result<bool, String> {
    let mut good = true;
    for plane in 0..PLANES {
        let offset = slot_offset(superblock, block.region, block.slot) + plane * PAGE;
        let bytes = disk.page(offset, PAGE);
        let key = page_key(superblock, block.region, block.slot, block.generation, plane);
        if key.checksum(&bytes) != block.crcs[plane] {
            good = false;
        } else if bytes != page(block.hash, plane) {
            return Err(format!("WRONG BYTES served for {block:?} plane {plane} of {}", slab.region));
        }
    }
    Ok(good)
}
