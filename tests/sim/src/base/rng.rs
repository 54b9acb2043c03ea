//! The only source of randomness: xoshiro256** seeded through splitmix64 (Blackman and Vigna, "Scrambled linear pseudorandom number
//! generators", 2018). Own code rather than a crate, because a seed printed today must replay the same run next year.

/// A generator; equal seeds give equal sequences on every platform.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// Create a generator that derives its whole sequence from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Rng {
        let mut at = seed;
        let mut next = || {
            at = at.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = at;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^ (z >> 31)
        };
        Rng { state: [next(), next(), next(), next()] }
    }

    /// Return the next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let out = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let (c1, d1) = (c ^ a, d ^ b);
        self.state = [a ^ d1, b ^ c1, c1 ^ (b << 17), d1.rotate_left(45)];
        out
    }

    /// Return a number below `bound`; 0 for a bound of 0. The bias of the multiplication is below 2^-32 for the bounds used here.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Return an index into a list of `len` elements.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Return a number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low <= high);
        low + self.below(high - low + 1)
    }

    /// Return true in `permille` of 1,000 cases.
    pub fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// Return one of the elements; there must be at least one.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }

    /// Return an index drawn in proportion to the weights; their sum must not be zero.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let total: u64 = weights.iter().map(|w| u64::from(*w)).sum();
        let mut at = self.below(total);
        for (i, weight) in weights.iter().enumerate() {
            if at < u64::from(*weight) {
                return i;
            }
            at -= u64::from(*weight);
        }
        weights.len() - 1
    }

    /// Return a mostly short, sometimes very long delay: uniform in `low..=high`, but `permille` of the draws are 20 times as long.
    pub fn delay(&mut self, low: u64, high: u64, permille: u64) -> u64 {
        let base = self.between(low, high);
        if self.chance(permille) { base * 20 } else { base }
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn equal_seeds_give_equal_sequences_and_bounds_hold() {
        let (mut a, mut b, mut c) = (Rng::new(7), Rng::new(7), Rng::new(8));
        assert!((0..100).all(|_| a.bits() == b.bits()));
        assert!((0..100).any(|_| a.bits() != c.bits()));
        for bound in 1..50 {
            assert!((0..100).all(|_| a.below(bound) < bound));
            assert!((0..100).all(|_| (3..=3 + bound).contains(&a.between(3, 3 + bound))));
        }
        assert_eq!(a.below(0), 0);
    }

    #[test]
    fn weights_are_respected() {
        let mut rng = Rng::new(1);
        let mut seen = [0; 3];
        (0..1000).for_each(|_| seen[rng.weighted(&[1, 0, 9])] += 1);
        assert!(seen[0] > 50 && seen[1] == 0 && seen[2] > 800, "{seen:?}");
    }
}
