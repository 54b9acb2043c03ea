//! The attention shares that pages had, by page id. Sequences that share a page also share its history.
//!
//! Values are 32-bit floats in atomics. Lanes write them without locks; a lost update only makes one guess worse.

use crate::agent::protocol::zeroed;
use kvtide_wire::sync::{AtomicU32, Ordering};

/// Weight of the newest share in the running mean.
const NEWEST: f32 = 0.3;

/// Attention history of pages.
pub struct History {
    /// Running mean and last share of each page.
    words: Box<[AtomicU32]>,
    planes: u32,
}

impl History {
    /// Create an empty history; `None` if the system has no memory.
    #[must_use]
    pub fn new(blocks_max: u32, planes: u32) -> Option<History> {
        let count = (blocks_max as usize).checked_mul(planes as usize)?.checked_mul(2)?;
        Some(History { words: zeroed::words(count)?, planes })
    }

    /// Return the running mean and the last share of a page; 0 if it was never seen.
    #[must_use]
    pub fn get(&self, page: u32) -> (f32, f32) {
        let word = |at: usize| self.words.get(at).map_or(0.0, |w| f32::from_bits(w.load(Ordering::Relaxed)));
        (word(2 * page as usize), word(2 * page as usize + 1))
    }

    /// Record the share of a page, measured or estimated.
    pub fn saw(&self, page: u32, share: f32) {
        let (mean, _) = self.get(page);
        let mean = if mean == 0.0 { share } else { mean + NEWEST * (share - mean) };
        self.set(page, mean, share);
    }

    fn set(&self, page: u32, mean: f32, last: f32) {
        if let Some([m, l]) = self.words.get(2 * page as usize..2 * page as usize + 2) {
            m.store(mean.to_bits(), Ordering::Relaxed);
            l.store(last.to_bits(), Ordering::Relaxed);
        }
    }

    /// Clear a block's history: the block has new content.
    pub fn forget(&self, block: u32) {
        for page in block * self.planes..(block + 1) * self.planes {
            if self.get(page) != (0.0, 0.0) {
                self.set(page, 0.0, 0.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_averaged_and_forgotten_with_their_block() {
        let history = History::new(4, 2).expect("small");
        assert_eq!(history.get(3), (0.0, 0.0));
        history.saw(3, 0.5);
        history.saw(3, 0.1);
        let (mean, last) = history.get(3);
        assert!((mean - 0.38).abs() < 1e-6 && last == 0.1);
        history.saw(2, 0.25);
        history.forget(1);
        assert_eq!((history.get(2), history.get(3)), ((0.0, 0.0), (0.0, 0.0)));
        history.saw(1000, 0.5); // no such page
        assert_eq!(history.get(1000), (0.0, 0.0));
    }
}
