//! SplitMix64 (Steele, Lea, Flood, 2014): small, seeded, and good enough to choose what happens next and to fill pages.

/// A generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed; any number is as good as any other.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// One for somebody else, independent of this one.
    pub fn split(&mut self) -> Random {
        Random(self.next())
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below a bound that is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True once in so many times.
    pub fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    /// Of a list that is not empty.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.below(from.len() as u64) as usize])
    }
}
