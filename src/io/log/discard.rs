//! Which regions of a raw device hold nothing, for the device to know: a drive that knows copies less and lives longer.
//!
//! Regions are told in pieces, one at a time, while nobody else wants the device. A region is never granted in between: the thread
//! that grants is the one that discards. In a file nothing is ever discarded: holes make it slow.

use std::collections::BTreeSet;

/// Bytes of a piece: tens of milliseconds at most drives.
const PIECE_BYTES: u64 = 64 << 20;

/// Regions that hold nothing and that the device has not been told of.
#[derive(Debug)]
pub(super) struct Discards {
    begin: u64,
    region_bytes: u64,
    regions: BTreeSet<u32>,
    /// Of the first of them, bytes that it was told of.
    told: u64,
}

/// Bytes that nobody needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub offset: u64,
    pub bytes: u64,
}

impl Discards {
    /// Of a device whose regions begin at `begin`; all of `regions` hold nothing.
    pub fn new(begin: u64, region_bytes: u64, regions: impl Iterator<Item = u32>) -> Discards {
        Discards { begin, region_bytes, regions: regions.collect(), told: 0 }
    }

    /// Nothing is left to tell.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// A region holds nothing any more.
    pub fn freed(&mut self, region: u32) {
        // Before the one that is being told of: that one begins again when its turn comes.
        if self.regions.insert(region) && self.regions.first() == Some(&region) {
            self.told = 0;
        }
    }

    /// A region will be written.
    pub fn granted(&mut self, region: u32) {
        if self.regions.first() == Some(&region) {
            self.told = 0;
        }
        self.regions.remove(&region);
    }

    /// What to tell next; it counts as told.
    pub fn next(&mut self) -> Option<Piece> {
        let region = *self.regions.first()?;
        let bytes = (self.region_bytes - self.told).min(PIECE_BYTES);
        let offset = self.begin + u64::from(region) * self.region_bytes + self.told;
        self.told += bytes;
        if self.told == self.region_bytes {
            self.regions.pop_first();
            self.told = 0;
        }
        Some(Piece { offset, bytes })
    }

    /// The device does not want to know.
    pub fn stop(&mut self) {
        self.regions.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_regions_are_told_once_and_granted_ones_never() {
        const MIB: u64 = 1 << 20;
        let mut discards = Discards::new(10 * MIB, 100 * MIB, [1, 3, 4].into_iter());
        let mut next = || discards.next().map(|piece| (piece.offset / MIB, piece.bytes / MIB));
        assert_eq!((next(), next(), next()), (Some((110, 64)), Some((174, 36)), Some((310, 64))));
        discards.granted(3);
        discards.freed(0);
        let mut next = || discards.next().map(|piece| (piece.offset / MIB, piece.bytes / MIB));
        assert_eq!((next(), next(), next()), (Some((10, 64)), Some((74, 36)), Some((410, 64))));
        discards.freed(2);
        let mut next = || discards.next().map(|piece| (piece.offset / MIB, piece.bytes / MIB));
        assert_eq!((next(), next()), (Some((210, 64)), Some((274, 36))));
        assert_eq!((next(), next()), (Some((410, 64)), Some((474, 36))), "the one that was broken off, whole");
        assert_eq!(next(), None);
        discards.freed(7);
        discards.stop();
        assert!(discards.is_empty());
    }
}
