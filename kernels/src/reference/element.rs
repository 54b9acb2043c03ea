//! The 16-bit types of KV, as bits and as numbers.

use kvtide_wire::half::F16;

/// Type of an element of K, V or Q.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// IEEE binary16.
    F16,
    /// bfloat16: the upper half of an f32.
    Bf16,
}

impl Element {
    /// Bytes of an element.
    pub const BYTES: usize = 2;

    /// Return the name used in kernel names.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// Return the number, exactly.
    #[must_use]
    #[inline]
    pub const fn to_f32(self, bits: u16) -> f32 {
        match self {
            Self::F16 => F16(bits).to_f32(),
            Self::Bf16 => f32::from_bits((bits as u32) << 16),
        }
    }

    /// Return the nearest value, ties to even; NaN stays NaN.
    #[must_use]
    #[inline]
    pub const fn from_f32(self, value: f32) -> u16 {
        match self {
            Self::F16 => F16::nearest(value).0,
            Self::Bf16 => {
                let bits = value.to_bits();
                if value.is_nan() {
                    return (bits >> 16) as u16 | 0x40;
                }
                ((bits as u64 + 0x7fff + (bits >> 16 & 1) as u64) >> 16) as u16
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_survives_the_round_trip() {
        for element in [Element::F16, Element::Bf16] {
            for bits in 0..=u16::MAX {
                let value = element.to_f32(bits);
                let back = element.to_f32(element.from_f32(value));
                assert!(back == value || (back.is_nan() && value.is_nan()), "{element:?} {bits:#x}");
            }
        }
    }

    #[test]
    fn bf16_rounds_to_the_nearest() {
        let round = |value: f32| Element::Bf16.to_f32(Element::Bf16.from_f32(value));
        assert_eq!(round(1.0 + 1.0 / 256.0), 1.0, "a tie goes to the even one");
        assert_eq!(round(1.0 + 3.0 / 256.0), 1.0 + 4.0 / 256.0);
        assert_eq!(round(f32::MAX), f32::INFINITY);
        assert_eq!(round(-f32::MAX), f32::NEG_INFINITY);
    }
}
