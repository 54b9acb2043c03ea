//! Possible disk images at a moment of a journal.

use super::Dice;
use super::disk::{Entry, TORN};

/// The state of a disk while its journal is walked.
#[derive(Clone)]
pub struct Medium {
    /// Bytes that survive a power cut.
    pub durable: Vec<u8>,
    /// Writes since the last flush.
    pub unflushed: Vec<(usize, Vec<u8>)>,
}

impl Medium {
    pub fn new(bytes: Vec<u8>) -> Medium {
        Medium { durable: bytes, unflushed: Vec::new() }
    }

    pub fn apply(&mut self, entry: &Entry) {
        match entry {
            Entry::Write { offset, bytes } => self.unflushed.push((*offset, bytes.clone())),
            Entry::Flush => {
                self.durable = self.everything();
                self.unflushed.clear();
            }
            Entry::Said(_) | Entry::Adopted(_) => {}
        }
    }

    /// Return the image without a power cut: no write is missing.
    pub fn everything(&self) -> Vec<u8> {
        let mut image = self.durable.clone();
        for (offset, bytes) in &self.unflushed {
            image[*offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        image
    }

    /// Return an image with any version of each unflushed sector since the flush.
    pub fn torn(&self, dice: &mut Dice) -> Vec<u8> {
        let mut image = self.durable.clone();
        // The surviving part differs between images: nearly all, half or nearly none; whole writes or sectors.
        let odds = [1, 8, 15, 16][dice.below(4) as usize];
        let sectors = dice.below(2) == 0;
        for (offset, bytes) in &self.unflushed {
            let there = dice.below(16) < odds;
            for (index, sector) in bytes.chunks(TORN).enumerate() {
                if if sectors { dice.below(16) < odds } else { there } {
                    let at = offset + index * TORN;
                    image[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        // Sometimes the last write is torn at one position: all bytes before it are present, or none.
        if dice.below(3) == 0
            && let Some((offset, bytes)) = self.unflushed.last()
        {
            let cut = (dice.below(bytes.len() as u64 / TORN as u64 + 1) as usize) * TORN;
            image[*offset..offset + cut].copy_from_slice(&bytes[..cut]);
        }
        image
    }

    /// Return the images of all choices of unflushed writes: each absent, whole, only its first sector, all but its first, all but
    /// its last. `None`: there are more than `most` choices.
    pub fn all(&self, most: usize) -> Option<Vec<Vec<u8>>> {
        const WAYS: usize = 5;
        let count = WAYS.checked_pow(self.unflushed.len() as u32).filter(|count| *count <= most)?;
        let image = |mut choice: usize| {
            let mut image = self.durable.clone();
            for (offset, bytes) in &self.unflushed {
                let range = match choice % WAYS {
                    0 => 0..0,
                    1 => 0..bytes.len(),
                    2 => 0..TORN,
                    3 => TORN..bytes.len(),
                    _ => 0..bytes.len() - TORN,
                };
                image[offset + range.start..offset + range.end].copy_from_slice(&bytes[range]);
                choice /= WAYS;
            }
            image
        };
        Some((0..count).map(image).collect())
    }

    /// Return an image after a kill during a write: some of its sectors are written.
    pub fn killed_in(&self, offset: usize, bytes: &[u8], dice: &mut Dice) -> Vec<u8> {
        let mut image = self.everything();
        for (index, sector) in bytes.chunks(TORN).enumerate() {
            if dice.below(2) == 0 {
                let at = offset + index * TORN;
                image[at..at + sector.len()].copy_from_slice(sector);
            }
        }
        image
    }
}
