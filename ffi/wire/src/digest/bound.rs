//! Bounds: digests that bound from above the product of any query with a page's keys.
//!
//! A digest belongs to one page and one KV head of `channels` channels. Its layout in memory:
//!
//! ```text
//! lo[channels] i8 | hi[channels] i8 | scale[channels] f16 | radius f16 | flags u16
//! ```
//!
//! Channel c of every key lies in [lo·scale, hi·scale], rounded outward; every key lies within `radius` of the box's centre. For a
//! query q the largest q·k is therefore at most the smaller of
//!
//! * the box bound Σ max(q_c·lo_c, q_c·hi_c) (Quest, arXiv 2406.10774), and
//! * the ball bound q·centre + |q|·radius (ArkVale, NeurIPS 2024).
//!
//! Both bounds hold in real arithmetic, not only up to rounding: the sums are computed in f64, where each product is exact, and are
//! raised by more than their own rounding error.

use crate::error::Error;
use crate::half::F16;

/// Maximum channels of a KV head.
pub const CHANNELS_MAX: usize = 1024;
/// Largest magnitude of `lo` and `hi`.
const STEPS: f64 = 127.0;
/// Flag: a key was not finite or too large; every bound is infinite.
const UNBOUNDED: u16 = 1;

/// Return the bytes of a digest of `channels` channels, a multiple of 4.
#[must_use]
pub const fn bytes(channels: usize) -> usize {
    4 * channels + 4
}

const _: () = assert!(bytes(128) == 516);

fn scale_at(channels: usize, channel: usize) -> usize {
    2 * channels + 2 * channel
}

fn check(channels: usize, found: usize) -> Result<(), Error> {
    if channels == 0 || channels > CHANNELS_MAX {
        let max = CHANNELS_MAX as u64;
        return Err(Error::Bound { what: "channels of a digest", value: channels as u64, min: 1, max });
    }
    let (value, needed) = (found as u64, bytes(channels) as u64);
    if value != needed {
        return Err(Error::Bound { what: "bytes of a digest", value, min: needed, max: needed });
    }
    Ok(())
}

/// Write the digest of `keys`, token after token, `channels` values each, at least one token.
pub fn build(keys: &[f32], channels: usize, digest: &mut [u8]) -> Result<(), Error> {
    check(channels, digest.len())?;
    if keys.is_empty() || !keys.len().is_multiple_of(channels) {
        let (value, min) = (keys.len() as u64, channels as u64);
        return Err(Error::Bound { what: "keys of a digest, a multiple of its channels", value, min, max: u64::MAX });
    }
    digest.fill(0);
    let mut bounded = keys.iter().all(|key| key.is_finite());
    for channel in 0..channels {
        let column = keys.iter().skip(channel).step_by(channels);
        let (low, high) = column.fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), k| (l.min(*k), h.max(*k)));
        match quantize(low, high) {
            Some((scale, low, high)) if bounded => {
                digest[channel] = low as u8;
                digest[channels + channel] = high as u8;
                let at = scale_at(channels, channel);
                digest[at..at + 2].copy_from_slice(&scale.0.to_le_bytes());
            }
            _ => bounded = false,
        }
    }
    if !bounded {
        digest.fill(0);
        digest[4 * channels + 2..].copy_from_slice(&UNBOUNDED.to_le_bytes());
        return Ok(());
    }
    let radius = keys.chunks_exact(channels).map(|key| squared_distance(key, digest)).fold(0.0, f64::max);
    let radius = round_up(sqrt_up(raised(radius, radius, channels)));
    digest[4 * channels..4 * channels + 2].copy_from_slice(&F16::up(radius).0.to_le_bytes());
    Ok(())
}

/// Return the smallest scale that reaches both ends in [`STEPS`] steps, and the ends in steps, rounded outward. `None`: too large
/// for a scale.
fn quantize(low: f32, high: f32) -> Option<(F16, i8, i8)> {
    let scale = F16::up(round_up(f64::from(low.abs().max(high.abs())) / STEPS));
    if scale == F16(0) {
        return Some((scale, 0, 0)); // all keys are zero
    }
    if scale == F16::INFINITY {
        return None;
    }
    let step = f64::from(scale.to_f32());
    // steps × scale is exact (7 + 11 bits), so these comparisons decide in real arithmetic.
    let mut least = truncated(f64::from(low) / step);
    while f64::from(least) * step > f64::from(low) {
        least -= 1;
    }
    let mut most = truncated(f64::from(high) / step);
    while f64::from(most) * step < f64::from(high) {
        most += 1;
    }
    Some((scale, i8::try_from(least).ok()?, i8::try_from(most).ok()?))
}

fn truncated(steps: f64) -> i32 {
    steps as i32
}

/// Return one channel of a digest, exact in f64.
fn channel(digest: &[u8], channels: usize, channel: usize) -> (f64, f64) {
    let at = scale_at(channels, channel);
    let scale = f64::from(F16(u16::from_le_bytes([digest[at], digest[at + 1]])).to_f32());
    (f64::from(digest[channel] as i8) * scale, f64::from(digest[channels + channel] as i8) * scale)
}

fn squared_distance(key: &[f32], digest: &[u8]) -> f64 {
    let channels = key.len();
    key.iter().enumerate().fold(0.0, |sum, (c, key)| {
        let (low, high) = channel(digest, channels, c);
        let distance = f64::from(*key) - (low + high) / 2.0;
        sum + distance * distance
    })
}

/// Return `sum` raised by more than its rounding error. `terms` numbers were added; their magnitudes add up to `magnitude`. One
/// addition is off by at most 2^-53 of its result, and so is one product.
fn raised(sum: f64, magnitude: f64, terms: usize) -> f64 {
    sum + magnitude * (4 * terms + 8) as f64 * (f64::EPSILON / 2.0)
}

/// Return a number slightly above or equal to the square root; `core` has no square root.
fn sqrt_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return value;
    }
    if value < f64::MIN_POSITIVE {
        // The first estimate below reads an exponent, which subnormal numbers do not have. Both scalings are by powers of two, so
        // they are exact.
        const SCALE: f64 = (1u64 << 52) as f64;
        return sqrt_up(value * SCALE * SCALE) / SCALE;
    }
    // Halving the exponent bits gives the root within a few percent. Newton's method then doubles the digits each time and errs
    // upward.
    let mut root = f64::from_bits((value.to_bits() >> 1) + (1023 << 51));
    for _ in 0..5 {
        root = (root + value / root) / 2.0;
    }
    while root * root < value.next_up() {
        root = root.next_up();
    }
    root
}

/// Return the smallest f32 not below `value`.
fn round_up(value: f64) -> f32 {
    let near = value as f32;
    if f64::from(near) < value { near.next_up() } else { near }
}

/// Return an upper bound of q·k over the keys of the digest's page. Infinite if the page or the query has no finite bound.
pub fn bound(query: &[f32], digest: &[u8]) -> Result<f32, Error> {
    let channels = query.len();
    check(channels, digest.len())?;
    let tail = &digest[4 * channels..];
    let unbounded = u16::from_le_bytes([tail[2], tail[3]]) != 0;
    if unbounded || !query.iter().all(|q| q.is_finite()) {
        return Ok(f32::INFINITY);
    }
    let (mut boxed, mut boxed_size, mut centre, mut centre_size, mut norm) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (c, q) in query.iter().enumerate() {
        let q = f64::from(*q);
        let (low, high) = channel(digest, channels, c);
        // 24 bits of the query times 19 of the digest: exact.
        let most = (q * low).max(q * high);
        boxed += most;
        boxed_size += most.abs();
        let middle = q * ((low + high) / 2.0);
        centre += middle;
        centre_size += middle.abs();
        norm += q * q;
    }
    let radius = f64::from(F16(u16::from_le_bytes([tail[0], tail[1]])).to_f32());
    let reach = sqrt_up(raised(norm, norm, channels)) * radius;
    let ball = raised(centre + reach, centre_size + reach, channels);
    let boxed = raised(boxed, boxed_size, channels);
    // A digest from outside may hold any bits. A NaN gives no bound.
    let least = if ball.is_nan() { boxed } else { boxed.min(ball) };
    Ok(if least.is_nan() { f32::INFINITY } else { round_up(least) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn digest_of(keys: &[f32], channels: usize) -> Vec<u8> {
        let mut digest = vec![0; bytes(channels)];
        build(keys, channels, &mut digest).expect("sizes fit");
        digest
    }

    /// Return the dot product. It is exact for the values in the tests: integers over powers of two, with products and sums that
    /// fit 53 bits.
    fn dot(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    }

    #[test]
    fn one_key_is_bounded_closely() {
        let key: Vec<f32> = (0..64).map(|c| (c as f32 - 31.5) / 8.0).collect();
        let digest = digest_of(&key, 64);
        let bound = bound(&key, &digest).expect("sizes fit");
        let exact = dot(&key, &key);
        assert!(f64::from(bound) >= exact && f64::from(bound) <= exact * 1.03, "{bound} for {exact}");
    }

    #[test]
    fn the_ball_helps_where_the_box_is_wide() {
        // Keys at the ends of the axes: the box's corner is far from all of them.
        let mut keys = vec![0.0f32; 32 * 16];
        (0..32).for_each(|i| keys[i * 16 + i / 2] = if i % 2 == 0 { 1.0 } else { -1.0 });
        let q = [1.0f32; 16];
        let bound = bound(&q, &digest_of(&keys, 16)).expect("sizes fit");
        assert!((1.0..4.1).contains(&bound), "the box alone says 16, the true maximum is 1: {bound}");
    }

    #[test]
    fn what_has_no_bound_says_so() {
        for key in [f32::NAN, f32::INFINITY, 1e9] {
            let digest = digest_of(&[0.0, key, 0.0, 1.0], 2);
            assert_eq!(bound(&[1.0, 0.0], &digest).expect("sizes fit"), f32::INFINITY);
        }
        let zero = digest_of(&[0.0; 8], 4);
        assert_eq!(bound(&[1.0; 4], &zero).expect("sizes fit"), 0.0);
        assert_eq!(bound(&[f32::NAN, 0.0, 0.0, 0.0], &zero).expect("sizes fit"), f32::INFINITY);
        assert!(build(&[0.0; 5], 2, &mut [0; 12]).is_err() && bound(&[0.0; 3], &[0; 12]).is_err());
    }

    fn root_is_close(value: f64) -> bool {
        let root = sqrt_up(value);
        root >= value.sqrt() && root <= value.sqrt() * (1.0 + 1e-12)
    }

    #[test]
    fn roots_are_close_at_every_exponent() {
        for exponent in 0..2047u64 {
            for mantissa in [0, 1, 1 << 51, (1 << 52) - 1] {
                let value = f64::from_bits(exponent << 52 | mantissa);
                assert!(root_is_close(value), "{value:e}: {:e}", sqrt_up(value));
            }
        }
        for bit in 0..52 {
            let value = f64::from_bits(1 << bit);
            assert!(root_is_close(value), "{value:e}: {:e}", sqrt_up(value));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn no_key_exceeds_the_bound(
            channels in 1usize..40, tokens in 1usize..20, scale in -8i32..8, seed in any::<u64>()
        ) {
            let mut state = seed | 1;
            let mut next = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                ((state >> 48) as i16) as f32 / 256.0 * (scale as f32).exp2()
            };
            let keys: Vec<f32> = (0..channels * tokens).map(|_| next()).collect();
            let q: Vec<f32> = (0..channels).map(|_| next()).collect();
            let bound = f64::from(bound(&q, &digest_of(&keys, channels)).expect("sizes fit"));
            for key in keys.chunks_exact(channels) {
                prop_assert!(bound >= dot(&q, key), "{} < {}", bound, dot(&q, key));
            }
        }

        #[test]
        fn any_bits_are_a_digest(digest in proptest::collection::vec(any::<u8>(), bytes(5)), q in any::<[f32; 5]>()) {
            prop_assert!(!bound(&q, &digest).expect("sizes fit").is_nan());
        }

        #[test]
        fn roots_are_never_short(bits in any::<u64>()) {
            let value = f64::from_bits(bits).abs();
            prop_assume!(value.is_finite());
            prop_assert!(root_is_close(value));
        }
    }
}
