//! Crash images: what a disk may hold after `kill -9` and after a power cut, at every write, and what is recovered from it.
//!
//! A [`disk::Disk`] journals all writes and flushes of a history, those of pages and those of the log, and the driver
//! ([`world::World`]) journals in between what it asked for and what it was promised. Afterwards the journal is walked: before and after each
//! write, images are made ([`images`]) and the log is opened on each. [`model::Model`] says what must be there, what may, and
//! what must not.

mod disk;
mod exhaustive;
mod images;
mod model;
mod random;
mod walk;
mod world;

/// Small, good enough, the same everywhere (splitmix64).
#[derive(Clone, Debug)]
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `sides`.
    pub fn below(&mut self, sides: u64) -> u64 {
        self.roll() % sides
    }
}
