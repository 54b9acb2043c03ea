//! Drives a log as the daemon does: pages before their record, erasures flushed before a slot is reused.

use super::disk::Disk;
use super::model::{Model, PLANES, SLOT, Said, Sure, block_good, header, page, page_key, slot_offset};
use kvtide_format::Superblock;
use kvtide_format::log::{Log, Put, Recovered, Storage};
use std::collections::BTreeMap;

pub const REGIONS: u32 = 3;
/// Slots per region.
pub const SLOTS: u32 = 6;

/// A small layout: halves of 64 KiB, so that compactions occur early.
pub fn layout() -> Superblock {
    let region_bytes = u64::from(SLOTS) * SLOT as u64;
    let block = Superblock::new(0xC0FFEE, u64::from(REGIONS) * region_bytes, region_bytes).unwrap();
    let (log_offset, log_bytes) = (8192, 128 << 10);
    Superblock { log_offset, log_bytes, regions_offset: log_offset + log_bytes, starts: 1, ..block }
}

pub struct World {
    pub disk: Disk,
    pub log: Log<Disk>,
    pub superblock: Superblock,
    /// The driver's model.
    pub model: Model,
    generation: u32,
    grant: u64,
    hash: u128,
}

impl World {
    pub fn new() -> World {
        let superblock = layout();
        let disk = Disk::new(vec![0; superblock.file_bytes() as usize]);
        let (log, _) = Log::open(disk.clone(), &superblock, None, &mut |_| {}).unwrap();
        World { disk, log, superblock, model: Model::default(), generation: 1 << 16, grant: 0, hash: 0 }
    }

    fn say(&mut self, said: Said) {
        self.disk.say(said);
        self.model.apply(said);
    }

    /// Grant a region to another space; its slots are not written before the grant is durable.
    pub fn grant(&mut self, region: u32) {
        self.grant += 1;
        // A request is journaled before it is sent, because it may take effect at once.
        self.say(Said::Grant { region, grant: self.grant });
        self.log.grant(&header(region, self.grant)).unwrap();
        self.flush();
    }

    pub fn free(&mut self, region: u32) {
        self.say(Said::Free { region });
        self.log.free(region).unwrap();
        self.flush();
    }

    pub fn granted(&self, region: u32) -> bool {
        self.model.grants.get(&region).is_some_and(|grant| grant.0.is_some())
    }

    pub fn held(&self, region: u32, slot: u32) -> Option<&super::model::Block> {
        self.model.blocks.get(&(region, slot))
    }

    /// Write a block into an empty slot and request its record.
    pub fn put(&mut self, region: u32, slot: u32) {
        assert!(self.granted(region) && self.held(region, slot).is_none());
        self.generation += 1;
        self.hash += 1;
        let (generation, hash) = (self.generation, self.hash << 64 | self.hash);
        let offset = slot_offset(&self.superblock, region, slot) as u64;
        let mut crcs = [0; PLANES];
        let mut bytes = Vec::new();
        for (plane, crc) in crcs.iter_mut().enumerate() {
            let page = page(hash, plane);
            *crc = page_key(&self.superblock, region, slot, generation, plane).checksum(&page);
            bytes.extend(page);
        }
        bytes.resize(SLOT, 0);
        self.disk.clone().write(offset, &bytes).unwrap();
        self.say(Said::Put { region, slot, generation, hash });
        let (parent, present) = (hash >> 64, [u32::MAX; PLANES.div_ceil(32)]);
        let put = Put {
            region,
            slot,
            generation,
            shard: 0,
            salt: 0,
            hash,
            parent,
            present: &present,
            crcs: &crcs,
            sectors: &[],
            tags: &[],
        };
        self.log.put(&put).unwrap();
    }

    /// Request the block's erasure.
    pub fn erase(&mut self, region: u32, slot: u32) {
        let generation = self.held(region, slot).unwrap().generation;
        self.say(Said::Erase { region, slot });
        self.log.erase(region, slot, generation).unwrap();
    }

    pub fn write(&mut self) {
        self.log.write().unwrap();
        self.say(Said::Wrote);
    }

    pub fn flush(&mut self) {
        self.log.flush().unwrap();
        self.say(Said::Flushed);
    }

    /// Kill the daemon (`kill -9`) and start again.
    pub fn kill(&mut self) {
        self.superblock.starts += 1;
        self.start();
    }

    fn start(&mut self) {
        let (log, recovered) = Log::open(self.disk.clone(), &self.superblock, None, &mut |_| {}).unwrap();
        self.log = log;
        self.adopt(&recovered);
    }

    /// Cut the power, leaving this image, and start again. The image is checked against the model.
    pub fn power_cut(&mut self, image: Vec<u8>, model: Model, superblock_lost: bool) {
        // The number of the start may have been used before; the log detects that.
        self.superblock.starts += u32::from(!superblock_lost);
        self.model = model;
        let (disk, _) = self.model.check(image, &self.superblock, true).unwrap();
        self.disk = Disk::new(disk.bytes());
        self.start();
    }

    /// Treat the recovered blocks as certain from here on, because a start has flushed them. Erase blocks with pages lost in a
    /// power cut.
    fn adopt(&mut self, recovered: &Recovered) {
        self.superblock.starts = recovered.run;
        self.generation = self.generation.max(recovered.run << 16);
        let mut good = BTreeMap::new();
        for (region, grant) in &mut self.model.grants {
            let slab = recovered.slabs.iter().find(|slab| slab.header.region == *region);
            *grant = (slab.map(|slab| slab.header.grant), Vec::new());
            for block in slab.into_iter().flat_map(|slab| slab.blocks.iter().map(move |block| (slab, block))) {
                let (slab, block) = block;
                good.insert((*region, block.slot), block_good(&self.disk, &self.superblock, &slab.header, &block));
            }
        }
        self.model.blocks.retain(|place, _| good.contains_key(place));
        for block in self.model.blocks.values_mut() {
            (block.leaving, block.sure) = (false, Sure::Durable);
        }
        self.disk.adopted(self.model.clone());
        for ((region, slot), good) in good {
            if !good {
                self.erase(region, slot);
            }
        }
        self.flush();
    }
}
