//! 16 lanes of f32 as each vector unit has them. The operations of all units give the same bits.

use super::tile::TILE;
use crate::reference::Element;

/// Number of lanes.
pub(super) const LANES: usize = 16;

/// Largest [`Lanes::BLOCK`].
pub(super) const BLOCK_MAX: usize = 4;

/// 16 numbers. The methods of a unit run only where [`super::VectorUnit`] found it. Instructions of a unit must not be in closures:
/// those are functions of their own, without the unit's instructions, so that each would become a call.
///
/// # Safety
/// Pointers are valid for 16 elements of their type; they need no alignment.
pub(super) trait Lanes: Copy {
    /// Vectors of a tile computed together: as many as leave its sums in registers.
    const BLOCK: usize;
    // SAFETY: the contract of the trait, for all functions.
    unsafe fn splat(number: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// Load 16-bit numbers, converted exactly.
    unsafe fn widen(from: *const u16, element: Element) -> Self;
    /// `self · by + plus`, rounded once.
    unsafe fn fma(self, by: Self, plus: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    /// Return the larger of each lane; `other` where one of them is not a number.
    unsafe fn max(self, other: Self) -> Self;
    // SAFETY: as above.
    /// Multiply by two to the power of the integers in the low bits of `magic` (see [`exp`]).
    unsafe fn scale(self, magic: Self) -> Self;
    /// Zero the lanes in which `x` is below `limit`. Where `x` is not a number, it is the result.
    unsafe fn zero_below(self, x: Self, limit: f32) -> Self;
    /// Add lane i to lane i + 8, then + 4, + 2, + 1.
    unsafe fn sum(self) -> f32;
    /// Return the largest lane, compared in the order of `sum`.
    unsafe fn top(self) -> f32;
    /// Return the sums of the first `BLOCK` vectors of each row of a tile, each as by `sum`. `vectors`: those of all rows, then the
    /// next of all rows.
    // SAFETY: as above.
    #[inline(always)]
    unsafe fn sums(vectors: &[[Self; TILE]; BLOCK_MAX]) -> [[f32; BLOCK_MAX]; TILE] {
        let mut found = [[0.0; BLOCK_MAX]; TILE];
        for j in 0..Self::BLOCK {
            for i in 0..TILE {
                // SAFETY: the trait's contract.
                found[i][j] = unsafe { vectors[j][i].sum() };
            }
        }
        found
    }
}

/// Load a range of bytes into the cache, ahead of its use. Nothing is read, so any address is allowed.
#[inline(always)]
pub(super) fn prefetch(from: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..bytes).step_by(64) {
        // SAFETY: a prefetch does not fault.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(from.wrapping_add(at).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, bytes);
}

/// Below this, the exponential is 0. Its value there is less than 2^-125 of the largest weight.
const EXP_MIN: f32 = -87.0;

/// Return e to the power of numbers up to 0, with an error of at most two units in the last place; 0 below [`EXP_MIN`].
///
/// # Safety
/// The unit of `V` was detected on this machine.
#[inline(always)]
pub(super) unsafe fn exp<V: Lanes>(x: V) -> V {
    /// Its unit in the last place is 1, so adding it rounds to an integer, which stands in the low bits.
    const MAGIC: f32 = 12_582_912.0;
    /// The logarithm of 2 in two parts; the first has few bits, so that its products are exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    /// Minimax polynomial of e^r on |r| ≤ ln(2) / 2, from the highest power down.
    const POWERS: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    // SAFETY: the caller runs on the unit of `V`; no pointers.
    unsafe {
        let magic = x.fma(V::splat(std::f32::consts::LOG2_E), V::splat(MAGIC));
        let whole = magic.add(V::splat(-MAGIC));
        let r = whole.fma(V::splat(-LN_2[1]), whole.fma(V::splat(-LN_2[0]), x));
        let mut sum = V::splat(POWERS[0]);
        for power in &POWERS[1..] {
            sum = sum.fma(r, V::splat(*power));
        }
        let square = r.fma(r, V::splat(0.0));
        let exp = sum.fma(square, r).add(V::splat(1.0));
        exp.scale(magic).zero_below(x, EXP_MIN)
    }
}

impl Lanes for [f32; LANES] {
    const BLOCK: usize = 1;

    // SAFETY: the trait's contract.
    #[inline(always)]
    unsafe fn splat(number: f32) -> Self {
        [number; LANES]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the trait's contract.
        unsafe { from.cast::<Self>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the trait's contract.
        unsafe { to.cast::<Self>().write_unaligned(self) }
    }

    #[inline(always)]
    unsafe fn widen(from: *const u16, element: Element) -> Self {
        // SAFETY: the trait's contract.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        bits.map(|bits| element.to_f32(bits))
    }

    #[inline(always)]
    unsafe fn fma(self, by: Self, plus: Self) -> Self {
        std::array::from_fn(|i| self[i].mul_add(by[i], plus[i]))
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] + other[i])
    }

    // SAFETY: the trait's contract.
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        std::array::from_fn(|i| if self[i] > other[i] { self[i] } else { other[i] })
    }

    #[inline(always)]
    unsafe fn scale(self, magic: Self) -> Self {
        std::array::from_fn(|i| f32::from_bits(self[i].to_bits().wrapping_add(magic[i].to_bits() << 23)))
    }

    // SAFETY: the trait's contract.
    #[inline(always)]
    unsafe fn zero_below(self, x: Self, limit: f32) -> Self {
        std::array::from_fn(|i| match x[i].partial_cmp(&limit) {
            None => x[i],
            Some(std::cmp::Ordering::Less) => 0.0,
            Some(_) => self[i],
        })
    }

    #[inline(always)]
    unsafe fn sum(mut self) -> f32 {
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                self[i] += self[i + half];
            }
        }
        self[0]
    }

    // SAFETY: the trait's contract.
    #[inline(always)]
    unsafe fn top(mut self) -> f32 {
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                self[i] = if self[i] > self[i + half] { self[i] } else { self[i + half] };
            }
        }
        self[0]
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{BLOCK_MAX, Element, Lanes, TILE};
    use std::arch::x86_64::*;

    /// Lanes 0 to 7, and 8 to 15.
    pub(in super::super) type Avx2 = [__m256; 2];

    // SAFETY (of all blocks below): the trait's contract; the unit was detected.
    impl Lanes for Avx2 {
        const BLOCK: usize = 1;

        // SAFETY: the trait's contract.
        #[inline(always)]
        unsafe fn splat(number: f32) -> Self {
            // SAFETY: as above.
            unsafe { [_mm256_set1_ps(number); 2] }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: as above.
            unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: as above.
            unsafe {
                _mm256_storeu_ps(to, self[0]);
                _mm256_storeu_ps(to.add(8), self[1]);
            }
        }

        #[inline(always)]
        unsafe fn widen(from: *const u16, element: Element) -> Self {
            // SAFETY: as above.
            let halves = unsafe { [_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(8).cast())] };
            match element {
                // SAFETY: as above.
                Element::F16 => unsafe { [_mm256_cvtph_ps(halves[0]), _mm256_cvtph_ps(halves[1])] },
                // SAFETY: as above.
                Element::Bf16 => unsafe {
                    [
                        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves[0]))),
                        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves[1]))),
                    ]
                },
            }
        }

        #[inline(always)]
        unsafe fn fma(self, by: Self, plus: Self) -> Self {
            // SAFETY: as above.
            unsafe { [_mm256_fmadd_ps(self[0], by[0], plus[0]), _mm256_fmadd_ps(self[1], by[1], plus[1])] }
        }

        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: as above.
            unsafe { [_mm256_add_ps(self[0], other[0]), _mm256_add_ps(self[1], other[1])] }
        }

        #[inline(always)]
        unsafe fn max(self, other: Self) -> Self {
            // SAFETY: as above.
            unsafe { [_mm256_max_ps(self[0], other[0]), _mm256_max_ps(self[1], other[1])] }
        }

        #[inline(always)]
        unsafe fn scale(self, magic: Self) -> Self {
            let mut scaled = self;
            for (number, magic) in scaled.iter_mut().zip(magic) {
                // SAFETY: as above.
                unsafe {
                    let shifted = _mm256_slli_epi32::<23>(_mm256_castps_si256(magic));
                    *number = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(*number), shifted));
                }
            }
            scaled
        }

        #[inline(always)]
        unsafe fn zero_below(self, x: Self, limit: f32) -> Self {
            let mut found = self;
            for (number, x) in found.iter_mut().zip(x) {
                // SAFETY: as above.
                unsafe {
                    let kept = _mm256_and_ps(*number, _mm256_cmp_ps::<_CMP_GE_OQ>(x, _mm256_set1_ps(limit)));
                    *number = _mm256_blendv_ps(kept, x, _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
                }
            }
            found
        }

        #[inline(always)]
        unsafe fn sum(self) -> f32 {
            // SAFETY: as above.
            unsafe {
                let eight = _mm256_add_ps(self[0], self[1]);
                let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
                let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
            }
        }

        #[inline(always)]
        unsafe fn top(self) -> f32 {
            // SAFETY: as above.
            unsafe {
                let eight = _mm256_max_ps(self[0], self[1]);
                let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
                let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
            }
        }
    }

    pub(in super::super) type Avx512 = __m512;

    impl Lanes for Avx512 {
        const BLOCK: usize = 4;

        // SAFETY: the trait's contract.
        #[inline(always)]
        unsafe fn splat(number: f32) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_set1_ps(number) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(to, self) }
        }

        #[inline(always)]
        unsafe fn widen(from: *const u16, element: Element) -> Self {
            // SAFETY: as above.
            unsafe {
                let bits = _mm256_loadu_si256(from.cast());
                match element {
                    Element::F16 => _mm512_cvtph_ps(bits),
                    Element::Bf16 => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits))),
                }
            }
        }

        #[inline(always)]
        unsafe fn fma(self, by: Self, plus: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_fmadd_ps(self, by, plus) }
        }

        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_add_ps(self, other) }
        }

        #[inline(always)]
        unsafe fn max(self, other: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_max_ps(self, other) }
        }

        #[inline(always)]
        unsafe fn scale(self, magic: Self) -> Self {
            // SAFETY: as above.
            unsafe {
                let shifted = _mm512_slli_epi32::<23>(_mm512_castps_si512(magic));
                _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(self), shifted))
            }
        }

        #[inline(always)]
        unsafe fn zero_below(self, x: Self, limit: f32) -> Self {
            // SAFETY: as above.
            unsafe {
                let kept = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, _mm512_set1_ps(limit)), self);
                _mm512_mask_mov_ps(kept, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x), x)
            }
        }

        #[inline(always)]
        unsafe fn sum(self) -> f32 {
            // SAFETY: as above.
            unsafe {
                let high = _mm512_shuffle_f32x4::<0b01_00_11_10>(self, self);
                [_mm512_castps512_ps256(self), _mm512_castps512_ps256(high)].sum()
            }
        }

        #[inline(always)]
        unsafe fn top(self) -> f32 {
            // SAFETY: as above.
            unsafe {
                let high = _mm512_shuffle_f32x4::<0b01_00_11_10>(self, self);
                [_mm512_castps512_ps256(self), _mm512_castps512_ps256(high)].top()
            }
        }

        /// Reduce the 16 vectors together: each step adds the halves of two, and leaves the sums of both in one.
        #[inline(always)]
        unsafe fn sums(vectors: &[[Self; TILE]; BLOCK_MAX]) -> [[f32; BLOCK_MAX]; TILE] {
            // SAFETY: as above; the result has the size of a vector.
            unsafe {
                let mut fours = [_mm512_setzero_ps(); BLOCK_MAX];
                for (fours, [a, b, c, d]) in fours.iter_mut().zip(*vectors) {
                    let [ab, cd] = [add_halves(a, b), add_halves(c, d)];
                    // 128 bits of each row.
                    *fours = _mm512_add_ps(
                        _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd),
                        _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd),
                    );
                }
                let [ab, cd] = [add_pairs(fours[0], fours[1]), add_pairs(fours[2], fours[3])];
                let sums = _mm512_add_ps(
                    _mm512_shuffle_ps::<0b10_00_10_00>(ab, cd),
                    _mm512_shuffle_ps::<0b11_01_11_01>(ab, cd),
                );
                std::mem::transmute(sums)
            }
        }
    }

    /// Add lane i + 8 to lane i of two vectors.
    // SAFETY: as above.
    #[inline(always)]
    unsafe fn add_halves(a: Avx512, b: Avx512) -> Avx512 {
        // SAFETY: as above.
        unsafe {
            _mm512_add_ps(_mm512_shuffle_f32x4::<0b01_00_01_00>(a, b), _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b))
        }
    }

    /// Add lane i + 2 to lane i in each 128 bits of two vectors.
    // SAFETY: as above.
    #[inline(always)]
    unsafe fn add_pairs(a: Avx512, b: Avx512) -> Avx512 {
        // SAFETY: as above.
        unsafe {
            let [a, b] = [_mm512_castps_pd(a), _mm512_castps_pd(b)];
            _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)))
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(test)]
mod tests {
    use super::super::{Task, VectorUnit};
    use super::*;

    struct Exp<'a>(&'a mut [f32; LANES]);

    // SAFETY: no contract beyond that of the unit.
    impl Task for Exp<'_> {
        #[inline(always)]
        unsafe fn run<V: Lanes>(self) {
            // SAFETY: a whole vector; the caller's contract.
            unsafe { exp(V::load(self.0.as_ptr())).store(self.0.as_mut_ptr()) }
        }
    }

    #[test]
    fn exp_is_within_two_units_in_the_last_place_and_equal_on_all_units() {
        for step in 0..20_000 {
            let x: [f32; LANES] = std::array::from_fn(|lane| (step * LANES + lane) as f32 * (-86.9 / 320_000.0));
            let found: Vec<[f32; LANES]> = VectorUnit::all()
                .map(|unit| {
                    let mut numbers = x;
                    // SAFETY: the task has no contract beyond the unit.
                    unsafe { unit.run(Exp(&mut numbers)) };
                    numbers
                })
                .collect();
            for (lane, x) in x.into_iter().enumerate() {
                let (exp, right) = (found[0][lane], f64::from(x).exp());
                let unit = f64::from(f32::from_bits((right as f32).to_bits() + 1)) - f64::from(right as f32);
                assert!((f64::from(exp) - right).abs() <= 2.0 * unit, "exp({x}) = {exp} instead of {right}");
                assert!(found.iter().all(|other| other[lane].to_bits() == exp.to_bits()), "exp({x}): {found:?}");
            }
        }
    }

    #[test]
    fn exp_of_nothing_is_zero_of_zero_one_and_of_nan_nan() {
        let mut x = [f32::NEG_INFINITY; LANES];
        (x[1], x[2], x[3]) = (0.0, f32::NAN, -1000.0);
        for unit in VectorUnit::all() {
            let mut found = x;
            // SAFETY: the task has no contract beyond the unit.
            unsafe { unit.run(Exp(&mut found)) };
            assert!(found[0] == 0.0 && found[1] == 1.0 && found[2].is_nan() && found[3] == 0.0, "{unit:?}: {found:?}");
        }
    }
}
