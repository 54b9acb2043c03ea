//! Discard of free regions on a raw device: with this knowledge the drive copies less internally and lasts longer.
//!
//! Regions are discarded in pieces, one at a time, while the device is idle. A region cannot be granted meanwhile: the same thread
//! grants and discards. Files are never discarded: holes make them slow.

use std::collections::BTreeSet;

/// Bytes of a piece: takes at most tens of milliseconds on common drives.
const PIECE_BYTES: u64 = 64 << 20;

/// Free regions that were not discarded yet.
#[derive(Debug)]
pub(super) struct Discards {
    begin: u64,
    region_bytes: u64,
    regions: BTreeSet<u32>,
    /// Bytes of the first of them that were discarded.
    told: u64,
}

/// A range to discard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub offset: u64,
    pub bytes: u64,
}

impl Discards {
    /// Create the state for a device with regions from offset `begin` on; `regions` are free.
    pub fn new(begin: u64, region_bytes: u64, regions: impl Iterator<Item = u32>) -> Discards {
        Discards { begin, region_bytes, regions: regions.collect(), told: 0 }
    }

    /// Return true if nothing is left to discard.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Add a freed region.
    pub fn freed(&mut self, region: u32) {
        // It comes before the region in progress; that one starts over when it is first again.
        if self.regions.insert(region) && self.regions.first() == Some(&region) {
            self.told = 0;
        }
    }

    /// Remove a region that will be written.
    pub fn granted(&mut self, region: u32) {
        if self.regions.first() == Some(&region) {
            self.told = 0;
        }
        self.regions.remove(&region);
    }

    /// Return the next piece; it counts as discarded.
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

    /// Stop: the device does not support discard.
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
        assert_eq!((next(), next()), (Some((410, 64)), Some((474, 36))), "the interrupted region starts over");
        assert_eq!(next(), None);
        discards.freed(7);
        discards.stop();
        assert!(discards.is_empty());
    }
}
