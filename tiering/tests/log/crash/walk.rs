//! Walks a journal and opens the log on what may be there at each write.

use super::Dice;
use super::disk::Entry;
use super::images::Medium;
use super::model::Model;
use kvtide_tiering::format::Superblock;

/// How many images of what kind.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// All choices of unflushed writes, if there are at most so many.
    pub all: usize,
    /// Random images else, at each write.
    pub random: usize,
    /// One image in so many is crashed again in its recovery; 0: none.
    pub again: u64,
}

/// A walk: where it is, and what it found.
pub struct Walk {
    pub medium: Medium,
    pub model: Model,
    pub superblock: Superblock,
    pub dice: Dice,
    pub images: u64,
}

impl Walk {
    pub fn new(bytes: Vec<u8>, model: Model, superblock: &Superblock, seed: u64) -> Walk {
        Walk { medium: Medium::new(bytes), model, superblock: *superblock, dice: Dice(seed), images: 0 }
    }

    /// Takes an entry in without looking.
    pub fn pass(&mut self, entry: &Entry) {
        self.medium.apply(entry);
        match entry {
            Entry::Said(said) => self.model.apply(*said),
            Entry::Adopted(model) => self.model = model.clone(),
            Entry::Write { .. } | Entry::Flush => {}
        }
    }

    /// Takes an entry in, and looks at all that may be there if the process dies, or the power fails, during it.
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
        // The next start; sometimes the superblock's newest copy was lost, and the number is one that was used.
        let more = u32::from(self.dice.below(4) > 0);
        let superblock = Superblock { starts: self.superblock.starts + more, ..self.superblock };
        let again = effort.again > 0 && self.dice.below(effort.again) == 0;
        self.images += 1;
        let (disk, _) = self.model.check(image.clone(), &superblock, power)?;
        if !again {
            return Ok(());
        }
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
}
