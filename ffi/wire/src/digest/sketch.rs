//! Sketches: an estimate of how much of a query's attention a page would get.
//!
//! A sketch belongs to one page and one KV head. Its keys are grouped (k-means), and each group is stored as
//!
//! ```text
//! scale u8 | count u4, spread u4 | codes[channels] u3, packed, channel 0 in the lowest bits
//! ```
//!
//! Channel c of the centre is (code − 3.5) × s with s = 2^((scale − 128) / 8). The group holds 2^(count / 2) keys. Their variance
//! per channel is s² × 16 × 2^(−spread / 2), or zero for spread 15. A group of scale 0 is empty. A scale of 255 means that the keys
//! were not finite numbers of moderate size, so the page has no estimate.
//!
//! A query's attention to the page is Σ exp(a·q·k) over its keys. Each group contributes count × exp(a·q·centre +
//! ½·a²·|q|²·variance), the mean of the exponential over a round normal cloud. On real keys that second term is worth two more
//! groups, and three bits with a scale for each group are better than fewer groups with four bits.
//!
//! Building is deterministic: single operations in a fixed order, so a kernel produces the same bytes.

use super::CHANNELS_MAX;
use super::float::{exp, floor, ln};
use crate::error::Error;

/// Maximum groups of a sketch.
pub const GROUPS_MAX: usize = 32;
/// Minimum bytes of keys and values for each byte of sketches: sketches take at most 5 %.
const SHARE: usize = 20;
/// Rounds of k-means. More rounds make no measurable difference.
const ROUNDS: usize = 3;
/// Number of scales to try, downward from the one that reaches the largest channel. Clipping a little costs less than coarse steps.
const CLIPS: u8 = 4;
const EMPTY: u8 = 0;
const UNKNOWN: u8 = 255;
/// Largest magnitude of a key, that of binary16.
const KEY_MAX: f32 = 65504.0;
/// 2^(i / 8).
const EIGHTHS: [f32; 8] = [1.0, 1.090_507_7, 1.189_207_1, 1.296_839_6, ROOT_2, 1.542_210_8, 1.681_792_9, 1.834_008_1];
const ROOT_2: f32 = core::f32::consts::SQRT_2;
const FOURTH_ROOT_2: f32 = 1.189_207_1;

/// Return the bytes of one group.
#[must_use]
pub const fn group_bytes(channels: usize) -> usize {
    2 + (3 * channels).div_ceil(8)
}

/// Return the bytes of a sketch.
#[must_use]
pub const fn bytes(channels: usize, groups: usize) -> usize {
    groups * group_bytes(channels)
}

/// Return the maximum number of groups for a sketch of at most 5 % of a page with `token_bytes` of keys and values for each
/// token and KV head, and at most the number of tokens. 0: not even one group fits.
#[must_use]
pub const fn groups(channels: usize, page_tokens: usize, token_bytes: usize) -> usize {
    let fit = page_tokens * token_bytes / SHARE / group_bytes(channels);
    let fit = if fit < page_tokens { fit } else { page_tokens };
    if fit < GROUPS_MAX { fit } else { GROUPS_MAX }
}

/// Return how many numbers of scratch memory [`build`] needs.
#[must_use]
pub const fn scratch(tokens: usize, channels: usize, groups: usize) -> usize {
    2 * tokens + groups * channels
}

fn out_of_bounds(what: &'static str, value: usize, min: usize, max: usize) -> Error {
    Error::Bound { what, value: value as u64, min: min as u64, max: max as u64 }
}

fn groups_of(channels: usize, found: usize) -> Result<usize, Error> {
    if channels == 0 || channels > CHANNELS_MAX {
        return Err(out_of_bounds("channels of a sketch", channels, 1, CHANNELS_MAX));
    }
    let one = group_bytes(channels);
    if found == 0 || !found.is_multiple_of(one) || found / one > GROUPS_MAX {
        return Err(out_of_bounds("bytes of a sketch, a multiple of its group", found, one, one * GROUPS_MAX));
    }
    Ok(found / one)
}

/// Write the sketch of `keys`, token after token, `channels` values each, at least one token. The length of `sketch` gives the
/// number of groups. `scratch` holds at least [`scratch()`] numbers.
pub fn build(keys: &[f32], channels: usize, scratch: &mut [f32], sketch: &mut [u8]) -> Result<(), Error> {
    let groups = groups_of(channels, sketch.len())?;
    if keys.is_empty() || !keys.len().is_multiple_of(channels) {
        return Err(out_of_bounds("keys of a sketch, a multiple of its channels", keys.len(), channels, usize::MAX));
    }
    let tokens = keys.len() / channels;
    let needed = self::scratch(tokens, channels, groups);
    if scratch.len() < needed {
        return Err(out_of_bounds("scratch numbers of a sketch", scratch.len(), needed, usize::MAX));
    }
    sketch.fill(0);
    if !keys.iter().all(|key| key.abs() <= KEY_MAX) {
        sketch.iter_mut().step_by(group_bytes(channels)).for_each(|scale| *scale = UNKNOWN);
        return Ok(());
    }
    let (near, rest) = scratch.split_at_mut(tokens);
    let (group, centres) = rest.split_at_mut(tokens);
    let centres = &mut centres[..groups * channels];
    let used = seed(keys, channels, near, centres);
    let centres = &mut centres[..used * channels];
    for _ in 0..ROUNDS {
        assign(keys, channels, centres, near, group);
        average(keys, channels, group, centres);
    }
    for (index, (centre, out)) in
        centres.chunks_exact(channels).zip(sketch.chunks_exact_mut(group_bytes(channels))).enumerate()
    {
        let (mut count, mut spread) = (0u32, 0.0f32);
        for (key, _) in keys.chunks_exact(channels).zip(&*group).filter(|(_, g)| **g == index as f32) {
            count += 1;
            spread += distance(key, centre);
        }
        if count > 0 {
            encode(centre, count, spread / (count as f32 * channels as f32), out);
        }
    }
    Ok(())
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + (a - b) * (a - b))
}

/// Choose keys that are far apart as first centres: the one farthest from the mean, then repeatedly the one farthest from all
/// chosen so far. Return the number chosen; fewer than fit if keys repeat.
fn seed(keys: &[f32], channels: usize, near: &mut [f32], centres: &mut [f32]) -> usize {
    let tokens = near.len();
    let (first, _) = centres.split_at_mut(channels);
    for (c, mean) in first.iter_mut().enumerate() {
        *mean = keys.iter().skip(c).step_by(channels).fold(0.0, |sum, key| sum + key) / tokens as f32;
    }
    for (key, near) in keys.chunks_exact(channels).zip(&mut *near) {
        *near = distance(key, first);
    }
    let mut used = 0;
    for centre in centres.chunks_exact_mut(channels) {
        let mut farthest = 0;
        for (token, far) in near.iter().enumerate() {
            if *far > near[farthest] {
                farthest = token;
            }
        }
        if used > 0 && near[farthest] <= 0.0 {
            break;
        }
        centre.copy_from_slice(&keys[farthest * channels..][..channels]);
        for (key, near) in keys.chunks_exact(channels).zip(&mut *near) {
            let to_it = distance(key, centre);
            *near = if used == 0 { to_it } else { near.min(to_it) };
        }
        used += 1;
    }
    used
}

/// Find the nearest centre of every key; ties go to the first one.
fn assign(keys: &[f32], channels: usize, centres: &[f32], near: &mut [f32], group: &mut [f32]) {
    near.fill(f32::INFINITY);
    for (index, centre) in centres.chunks_exact(channels).enumerate() {
        for ((key, near), group) in keys.chunks_exact(channels).zip(&mut *near).zip(&mut *group) {
            let to_it = distance(key, centre);
            if to_it < *near || index == 0 {
                *near = to_it;
                *group = index as f32; // at most 31: exact
            }
        }
    }
}

/// Move every centre that has keys to their mean.
fn average(keys: &[f32], channels: usize, group: &[f32], centres: &mut [f32]) {
    for (index, centre) in centres.chunks_exact_mut(channels).enumerate() {
        let count = group.iter().filter(|g| **g == index as f32).count();
        if count == 0 {
            continue;
        }
        centre.fill(0.0);
        for (key, _) in keys.chunks_exact(channels).zip(group).filter(|(_, g)| **g == index as f32) {
            centre.iter_mut().zip(key).for_each(|(sum, key)| *sum += key);
        }
        centre.iter_mut().for_each(|sum| *sum /= count as f32);
    }
}

/// Return 2^((scale − 128) / 8), exact except for the rounding of the table.
fn step_of(scale: u8) -> f32 {
    EIGHTHS[usize::from(scale & 7)] * f32::from_bits((u32::from(scale >> 3) + 127 - 16) << 23)
}

fn code(value: f32, step: f32) -> i32 {
    floor(value / step).clamp(-4, 3)
}

fn level(code: i32) -> f32 {
    code as f32 + 0.5
}

fn encode(centre: &[f32], count: u32, variance: f32, out: &mut [u8]) {
    let reach = centre.iter().fold(0.0f32, |most, c| most.max(c.abs()));
    let mut widest = 1 + CLIPS;
    while widest < UNKNOWN - 1 && 4.0 * step_of(widest) < reach {
        widest += 1;
    }
    let (mut scale, mut least) = (widest, f32::INFINITY);
    for tried in (widest - CLIPS + 1..=widest).rev() {
        let step = step_of(tried);
        let error = centre.iter().fold(0.0, |sum, c| {
            let off = c - level(code(*c, step)) * step;
            sum + off * off
        });
        if error < least {
            (scale, least) = (tried, error);
        }
    }
    let step = step_of(scale);
    let (mut half_octaves, mut reached) = (0u8, 1.0f32);
    while half_octaves < 15 && count as f32 >= reached * FOURTH_ROOT_2 {
        half_octaves += 1;
        reached *= ROOT_2;
    }
    let (mut spread, mut of_spread) = (0u8, 16.0 * step * step);
    while spread < 15 && variance < of_spread / FOURTH_ROOT_2 {
        spread += 1;
        of_spread /= ROOT_2;
    }
    out[0] = scale;
    out[1] = half_octaves | spread << 4;
    for (c, value) in centre.iter().enumerate() {
        let bits = (code(*value, step) + 4) as u16;
        let at = 2 + 3 * c / 8;
        let both = bits << (3 * c % 8);
        out[at] |= both as u8;
        if both > 255 {
            out[at + 1] |= (both >> 8) as u8;
        }
    }
}

/// Estimate ln Σ exp(factor·q·k) over the page's keys for each of the queries (`channels` values each) that share a KV head.
/// `factor` is the softmax scale. The result is infinite if the page's keys or the query were not finite.
pub fn score(queries: &[f32], channels: usize, sketch: &[u8], factor: f32, sums: &mut [f32]) -> Result<(), Error> {
    groups_of(channels, sketch.len())?;
    if queries.len() != sums.len() * channels {
        let needed = sums.len() * channels;
        return Err(out_of_bounds("values of a sketch's queries", queries.len(), needed, needed));
    }
    let mut centre = [0.0f32; CHANNELS_MAX];
    let centre = &mut centre[..channels];
    sums.fill(f32::NEG_INFINITY);
    for group in sketch.chunks_exact(group_bytes(channels)) {
        match group[0] {
            EMPTY => continue,
            UNKNOWN => {
                sums.fill(f32::INFINITY);
                return Ok(());
            }
            _ => {}
        }
        let step = step_of(group[0]);
        decode(&group[2..], centre);
        let count = f32::from(group[1] & 15) * (core::f32::consts::LN_2 / 2.0);
        let spread = match group[1] >> 4 {
            15 => 0.0,
            // 2^(−spread / 2) is 2^(−spread × 4 / 8).
            spread => 16.0 * step * step * step_of(128 - 4 * spread),
        };
        for (query, sum) in queries.chunks_exact(channels).zip(&mut *sums) {
            let (product, norm) = products(query, centre);
            let value = factor * step * product + count + 0.5 * factor * factor * norm * spread;
            let (low, high) = if value < *sum { (value, *sum) } else { (*sum, value) };
            *sum = if high == f32::NEG_INFINITY { high } else { high + ln(1.0 + exp(low - high)) };
        }
    }
    for (query, sum) in queries.chunks_exact(channels).zip(sums) {
        if !sum.is_finite() && *sum != f32::NEG_INFINITY || query.iter().any(|q| !q.is_finite()) {
            *sum = f32::INFINITY;
        }
    }
    Ok(())
}

/// Return q·centre and |q|², each computed in eight partial sums.
fn products(query: &[f32], centre: &[f32]) -> (f32, f32) {
    let (mut product, mut norm) = ([0.0f32; 8], [0.0f32; 8]);
    let (queries, centres) = (query.chunks_exact(8), centre.chunks_exact(8));
    let tail = queries.remainder().iter().zip(centres.remainder());
    let tail = tail.fold((0.0, 0.0), |(p, n), (q, c)| (p + q * c, n + q * q));
    for (q, c) in queries.zip(centres) {
        for i in 0..8 {
            product[i] += q[i] * c[i];
            norm[i] += q[i] * q[i];
        }
    }
    (product.iter().sum::<f32>() + tail.0, norm.iter().sum::<f32>() + tail.1)
}

fn decode(codes: &[u8], centre: &mut [f32]) {
    for (channels, codes) in centre.chunks_mut(8).zip(codes.chunks(3)) {
        let bits = codes.iter().rev().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
        for (c, channel) in channels.iter_mut().enumerate() {
            *channel = (bits >> (3 * c) & 7) as f32 - 3.5;
        }
    }
}

/// Add `weight` × the softmax over `sums` to each page's share. `sums` holds one number for each page from [`score`] for one query
/// head, or, for unsealed pages, a number computed from their keys; −∞ for a page outside the attention. A page without an estimate
/// counts as much as the best page that has one.
pub fn add_shares(sums: &[f32], weight: f32, shares: &mut [f32]) {
    let finite = sums.iter().copied().filter(|s| s.is_finite());
    let best = finite.fold(f32::NEG_INFINITY, f32::max);
    let best = if best == f32::NEG_INFINITY { 0.0 } else { best };
    let part = |sum: f32| if sum.is_finite() || sum == f32::NEG_INFINITY { exp(sum - best) } else { 1.0 };
    let total: f32 = sums.iter().map(|sum| part(*sum)).sum();
    if total > 0.0 {
        shares.iter_mut().zip(sums).for_each(|(share, sum)| *share += weight * part(*sum) / total);
    }
}

#[cfg(test)]
mod tests;
