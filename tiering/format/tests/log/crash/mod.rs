//! Crash images: possible contents of a disk after `kill -9` and after a power cut, at every write, and the recovery from them.
//!
//! A [`disk::Disk`] journals all writes and flushes of a history, of pages and of the log. In between, the driver
//! ([`world::World`]) journals its requests and the guarantees that it got. Afterwards the journal is walked: before and after each
//! write, images are made ([`images`]) and the log is opened on each. [`model::Model`] knows which blocks must, may and must not be
//! found.

mod disk;
mod exhaustive;
mod images;
mod model;
mod random;
mod walk;
mod world;

/// A small random number generator, equal on all machines (splitmix64).
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

    /// Return a number below `sides`.
    pub fn below(&mut self, sides: u64) -> u64 {
        self.roll() % sides
    }
}
