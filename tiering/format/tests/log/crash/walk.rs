//! Walks a journal and opens the log on possible images at each write.

use super::Dice;
use super::disk::{Disk, Entry};
use super::images::Medium;
use super::model::Model;
use kvtide_format::Superblock;
use kvtide_format::log::{Log, Recovered};

/// Number of images of each kind.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// All choices of unflushed writes, if there are at most this number.
    pub all: usize,
    /// Otherwise, random images at each write.
    pub random: usize,
    /// One image in this number is crashed again during its recovery; 0: none.
    pub again: u64,
}

/// Position and results of a walk.
pub struct Walk {
    pub medium: Medium,
    pub model: Model,
    pub superblock: Superblock,
    pub dice: Dice,
    pub images: u64,
}

impl Walk {
    pub fn new(bytes: Vec<u8>, model: Model, superblock: &Superblock, seed: u64) -> Walk {
        Walk { medium: Medium::new(bytes), model, superblock: *superblock, dice: Dice::new(seed), images: 0 }
    }

    /// Apply an entry without checks.
    pub fn pass(&mut self, entry: &Entry) {
        self.medium.apply(entry);
        match entry {
            Entry::Said(said) => self.model.apply(*said),
            Entry::Adopted(model) => self.model = model.clone(),
            Entry::Write { .. } | Entry::Flush => {}
        }
    }

    /// Apply an entry, and check the images of a kill and of a power cut during it.
    pub fn step(&mut self, entry: &Entry, effort: Effort) -> Result<(), String> {
        if let Entry::Write { offset, bytes } = entry {
            let image = self.medium.killed_in(*offset, bytes, &mut self.dice);
            self.check(image, false, effort)?;
        }
        self.pass(entry);
        if let Entry::Write { .. } | Entry::Adopted(_) = entry {
            let images = match self.medium.all(effort.all) {
                Some(images) => images,
                None => (0..effort.random).map(|_| self.medium.torn(&mut self.dice)).collect(),
            };
            for image in images {
                self.check(image, true, effort)?;
            }
            self.check(self.medium.everything(), false, effort)?;
        }
        Ok(())
    }

    fn check(&mut self, image: Vec<u8>, power: bool, effort: Effort) -> Result<(), String> {
        // The next start; sometimes the superblock's latest copy was lost, so its number was used before.
        let more = u32::from(self.dice.below(4) > 0);
        let superblock = Superblock { starts: self.superblock.starts + more, ..self.superblock };
        let again = effort.again > 0 && self.dice.below(effort.again) == 0;
        self.images += 1;
        let (disk, _) = self.model.check(image.clone(), &superblock, power)?;
        if !again {
            return Ok(());
        }
        self.serves(&image, &superblock)?;
        let next = Superblock { starts: superblock.starts + 1, ..superblock };
        let mut medium = Medium::new(image);
        for entry in disk.journal() {
            if let Entry::Write { offset, bytes } = &entry {
                let image = medium.killed_in(*offset, bytes, &mut self.dice);
                self.model.check(image, &next, power).map_err(|e| format!("killed in recovery: {e}"))?;
            }
            medium.apply(&entry);
            let image = medium.torn(&mut self.dice);
            self.model.check(image, &next, power).map_err(|e| format!("power cut in recovery: {e}"))?;
            self.images += 2;
        }
        Ok(())
    }

    /// Check that recovered blocks can be erased, and that the erasure holds at the next start even if that start's number was used
    /// before.
    fn serves(&mut self, image: &[u8], superblock: &Superblock) -> Result<(), String> {
        let disk = Disk::new(image.to_vec());
        let open =
            || Log::open(disk.clone(), superblock, None, &mut |_| {}).map_err(|e| format!("it does not open: {e}"));
        let places = |recovered: &Recovered| -> Vec<(u32, u32, u32)> {
            let all = recovered.slabs.iter().flat_map(|slab| slab.blocks.iter());
            all.map(|block| (block.region, block.slot, block.generation)).collect()
        };
        let (mut log, found) = open()?;
        let mut before = places(&found);
        let Some((region, slot, generation)) = before.pop() else { return Ok(()) };
        log.erase(region, slot, generation)
            .and_then(|()| log.write())
            .map_err(|e| format!("it does not erase: {e}"))?;
        let mut after = places(&open()?.1);
        before.sort_unstable();
        after.sort_unstable();
        if before != after {
            return Err(format!("after the erasure of {region}/{slot}: {after:?} instead of {before:?}"));
        }
        self.images += 1;
        Ok(())
    }
}
