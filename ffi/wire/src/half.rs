//! IEEE 754 binary16, the number format of scores and digests: exact conversion to `f32`; from `f32` rounded to nearest.
//!
//! Rust's own `f16` is unstable, and these two conversions need no crate.

/// The bits of a binary16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct F16(pub u16);

impl F16 {
    /// Positive infinity.
    pub const INFINITY: F16 = F16(0x7c00);
    /// Negative infinity.
    pub const NEG_INFINITY: F16 = F16(0xfc00);
    /// The largest finite value, 65504.
    pub const MAX: F16 = F16(0x7bff);

    /// Return the value, exactly.
    #[must_use]
    pub const fn to_f32(self) -> f32 {
        let sign = (self.0 as u32 & 0x8000) << 16;
        let exponent = (self.0 >> 10 & 0x1f) as u32;
        let fraction = (self.0 & 0x3ff) as u32;
        match exponent {
            0 => {
                // Subnormal: fraction × 2^-24, exact in f32.
                let magnitude = fraction as f32 / 16_777_216.0;
                f32::from_bits(magnitude.to_bits() | sign)
            }
            31 => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
            _ => f32::from_bits(sign | (exponent + 127 - 15) << 23 | fraction << 13),
        }
    }

    /// Return the nearest value, ties to even. Infinity above 65520; NaN stays NaN.
    #[must_use]
    pub const fn nearest(value: f32) -> F16 {
        let bits = value.to_bits();
        let sign = (bits >> 16 & 0x8000) as u16;
        let magnitude = bits & 0x7fff_ffff;
        if magnitude > 0x7f80_0000 {
            return F16(sign | 0x7e00);
        }
        if magnitude >= 0x4780_0000 {
            return F16(sign | 0x7c00); // 65536 and above
        }
        // Below the smallest normal number, 2^-14, the last digit is 2^-24 for every exponent.
        let exponent = (magnitude >> 23) as i32;
        let dropped = if exponent < 113 { 126 - exponent } else { 13 };
        if dropped > 24 {
            return F16(sign); // at most a quarter of the smallest subnormal number
        }
        let full = if exponent == 0 { 0 } else { magnitude & 0x7f_ffff | 0x80_0000 };
        let (kept, rest, half) = (full >> dropped, full & ((1 << dropped) - 1), 1 << (dropped - 1));
        let up = (rest > half || (rest == half && kept & 1 == 1)) as u32;
        // A carry out of the fraction correctly increments the exponent.
        let base = if exponent < 113 { 0 } else { ((exponent - 113) as u32) << 10 };
        F16(sign | (base + kept + up) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_survives_the_round_trip() {
        for bits in 0..=u16::MAX {
            let value = F16(bits).to_f32();
            if value.is_nan() {
                assert!(F16::nearest(value).to_f32().is_nan());
            } else {
                assert_eq!(F16::nearest(value), F16(bits), "{value}");
            }
        }
    }

    #[test]
    fn midpoints_round_to_even_and_anything_above_rounds_up() {
        for bits in 0..0x7bff_u16 {
            let (low, high) = (F16(bits).to_f32(), F16(bits + 1).to_f32());
            let middle = (low + high) / 2.0; // exact: one more bit than binary16 has
            assert_eq!(F16::nearest(middle).0, bits + (bits & 1), "{middle}");
            assert_eq!(F16::nearest(middle.next_up()).0, bits + 1);
            assert_eq!(F16::nearest(middle.next_down()).0, bits);
        }
        assert_eq!(F16::nearest(65519.9), F16::MAX);
        assert_eq!(F16::nearest(65520.0), F16::INFINITY);
        assert_eq!(F16::nearest(f32::NEG_INFINITY), F16::NEG_INFINITY);
    }
}
