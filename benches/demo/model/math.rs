//! Element-wise arithmetic. Uses its own `exp`: the C library's differs between versions and does not vectorise.

/// Lanes of the partial sums in reductions: fixed, so that the order of sums is the same on every machine.
pub(crate) const LANES: usize = 8;

/// Return e to the `x`, with a relative error below 2e-7, for `x` clamped to [-87, 88].
///
/// Range reduction by ln 2 in two parts and the degree-5 polynomial of Cephes `expf` (S. Moshier, public domain).
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 × 2^23: adding it rounds to an integer in the low mantissa bits
    let x = x.clamp(-87.0, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * 0.693_359_4;
    let r = r + n * 2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_2e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    let power = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    p * f32::from_bits(power)
}

/// Return the pairwise sum of the lanes.
#[inline(always)]
pub(crate) fn sum_lanes(a: [f32; LANES]) -> f32 {
    ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
}

/// Write the root-mean-square norm of each row of `x` (rows of `gain.len()`), scaled by `gain`, to `out`.
pub(super) fn rms_norm(x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) {
    let width = gain.len();
    for (row, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let mut squares = [0.0; LANES];
        for part in row.chunks_exact(LANES) {
            for (sum, v) in squares.iter_mut().zip(part) {
                *sum += v * v;
            }
        }
        let scale = 1.0 / (sum_lanes(squares) / width as f32 + eps).sqrt();
        for ((o, v), g) in out.iter_mut().zip(row).zip(gain) {
            *o = v * scale * g;
        }
    }
}

/// Replace `gate` by silu(`gate`) × `up`.
pub(super) fn silu_mul(gate: &mut [f32], up: &[f32]) {
    for (g, u) in gate.iter_mut().zip(up) {
        *g = *g / (1.0 + exp(-*g)) * u;
    }
}

/// Add `y` to `x`.
pub(super) fn add(x: &mut [f32], y: &[f32]) {
    for (a, b) in x.iter_mut().zip(y) {
        *a += b;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_agrees_with_f64_over_its_range() {
        let mut worst = 0.0_f64;
        for i in -87_000..=88_000 {
            let x = i as f32 / 1000.0;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - exact).abs() / exact);
        }
        assert!(worst < 2e-7, "relative error {worst:e}");
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 2e-38);
    }
}
