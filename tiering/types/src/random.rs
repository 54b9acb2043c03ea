//! SplitMix64 (Steele, Lea, Flood, 2014): a small seeded generator for tests and benchmarks.

/// A generator. Equal seeds give equal sequences, on every machine and in every release: failing seeds are replayed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Create from any seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Create an independent generator.
    pub fn split(&mut self) -> Random {
        Random(self.next())
    }

    /// Return the next 64 bits.
    #[allow(clippy::should_implement_trait)] // it has no end
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Return a number below a positive bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Return true with probability 1/`many`.
    pub fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    /// Return an element of a non-empty list.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.below(from.len() as u64) as usize])
    }
}
