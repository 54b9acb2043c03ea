//! Exponential and logarithm for estimates; `core` has none. The relative error is below 1e-6, and all machines compute the same
//! bits.

const LOG2_E: f32 = core::f32::consts::LOG2_E;
const LN_2: f32 = core::f32::consts::LN_2;

/// Return the largest integer not above `value`. `value` must fit an i32.
pub(super) fn floor(value: f32) -> i32 {
    let cut = value as i32;
    if cut as f32 > value { cut - 1 } else { cut }
}

/// Return e to the power of `x`; 0 below -87, where f32 has no normal numbers left.
pub(super) fn exp(x: f32) -> f32 {
    if x < -87.0 {
        return 0.0;
    }
    let y = x.min(88.0) * LOG2_E;
    let whole = floor(y + 0.5);
    let t = (y - whole as f32) * LN_2; // within ln 2 / 2 of 0
    // Taylor: the seventh term is below 2e-7.
    let p = 1.0 + t * (1.0 + t * (0.5 + t * (1.0 / 6.0 + t * (1.0 / 24.0 + t * (1.0 / 120.0 + t * (1.0 / 720.0))))));
    p * f32::from_bits(((whole + 127) as u32) << 23)
}

/// Return the natural logarithm of a positive normal number; -inf for smaller ones.
pub(super) fn ln(x: f32) -> f32 {
    if x < f32::MIN_POSITIVE {
        return f32::NEG_INFINITY;
    }
    // x = m × 2^e with m within √½ and √2; ln m = 2 artanh((m − 1) / (m + 1)).
    let bits = x.to_bits().wrapping_sub(0x3f35_04f3); // √½
    let e = (bits as i32) >> 23;
    let m = f32::from_bits((bits & 0x7f_ffff) + 0x3f35_04f3);
    let t = (m - 1.0) / (m + 1.0);
    let s = t * t;
    e as f32 * LN_2 + 2.0 * t * (1.0 + s * (1.0 / 3.0 + s * (1.0 / 5.0 + s * (1.0 / 7.0 + s * (1.0 / 9.0)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_close_everywhere() {
        for i in -8700..8700 {
            let x = i as f32 / 100.0;
            let want = f64::from(x).exp();
            assert!((f64::from(exp(x)) - want).abs() <= 1e-5 * want, "exp({x}) = {}", exp(x));
        }
        for bits in (0x0080_0000..0x7f80_0000u32).step_by(99_991) {
            let x = f32::from_bits(bits);
            let want = f64::from(x).ln();
            assert!((f64::from(ln(x)) - want).abs() <= 1e-6 * want.abs().max(1.0), "ln({x}) = {}", ln(x));
        }
        assert_eq!((exp(-1000.0), exp(f32::NEG_INFINITY), ln(0.0)), (0.0, 0.0, f32::NEG_INFINITY));
        assert_eq!((floor(-0.5), floor(2.0), floor(-3.0)), (-1, 2, -3));
    }
}
