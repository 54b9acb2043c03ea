//! Compare sketches with the softmax mass that they estimate, and check their size.

use super::*;
use proptest::prelude::*;

fn sketch_of(keys: &[f32], channels: usize, groups: usize) -> Vec<u8> {
    let mut sketch = vec![0xaa; bytes(channels, groups)];
    let mut memory = vec![f32::NAN; scratch(keys.len() / channels, channels, groups)];
    build(keys, channels, &mut memory, &mut sketch).expect("sizes fit");
    sketch
}

fn score_of(query: &[f32], sketch: &[u8], factor: f32) -> f32 {
    let mut sum = [f32::NAN];
    score(query, query.len(), sketch, factor, &mut sum).expect("sizes fit");
    sum[0]
}

fn exact(query: &[f32], keys: &[f32], factor: f32) -> f32 {
    let product = |key: &[f32]| key.iter().zip(query).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum::<f64>();
    let powers: Vec<f64> = keys.chunks_exact(query.len()).map(|key| f64::from(factor) * product(key)).collect();
    let most = powers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (most + powers.iter().map(|power| (power - most).exp()).sum::<f64>().ln()) as f32
}

fn random(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        // The sum of four uniform numbers is roughly normal.
        (0..4).fold(0.0, |sum, _| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            sum + ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5)
        })
    }
}

#[test]
fn sizes_keep_to_the_twentieth_part() {
    assert_eq!((groups(32, 16, 128), bytes(32, 7)), (7, 98));
    assert_eq!(groups(128, 64, 512), 32);
    assert!(bytes(128, 32) * 20 <= 64 * 512);
    assert_eq!((groups(64, 1, 256), groups(8, 4, 1000)), (0, 4));
}

#[test]
fn few_distinct_keys_are_kept_to_the_steps_of_their_codes() {
    let mut next = random(3);
    let distinct: Vec<f32> = (0..4 * 24).map(|_| 2.0 * next()).collect();
    let keys: Vec<f32> = (0..16).flat_map(|t| distinct[t % 4 * 24..][..24].to_vec()).collect();
    let sketch = sketch_of(&keys, 24, 6);
    assert!(sketch[4 * group_bytes(24)..].iter().all(|byte| *byte == 0), "four groups are all there are");
    for group in sketch.chunks_exact(group_bytes(24)).take(4) {
        assert_eq!(group[1], 4 | 15 << 4, "four keys each, all the same");
    }
    for _ in 0..50 {
        let query: Vec<f32> = (0..24).map(|_| next()).collect();
        let (found, want) = (score_of(&query, &sketch, 0.5), exact(&query, &keys, 0.5));
        assert!((found - want).abs() < 1.0, "{found} for {want}");
    }
}

/// The mean of an exponential over a cloud lies above the exponential of its centre.
#[test]
fn a_group_counts_for_its_width_too() {
    let mut next = random(11);
    let keys: Vec<f32> = (0..64 * 32).map(|i| (i % 32) as f32 / 32.0 + next()).collect();
    let sketch = sketch_of(&keys, 32, 1);
    let (mut off, mut of_the_centre) = (0.0, 0.0);
    for _ in 0..200 {
        let query: Vec<f32> = (0..32).map(|_| next()).collect();
        let want = exact(&query, &keys, 0.8);
        let centre: f32 = query.iter().enumerate().map(|(c, q)| 0.8 * q * c as f32 / 32.0).sum();
        off += (score_of(&query, &sketch, 0.8) - want) / 200.0;
        of_the_centre += (centre + 64f32.ln() - want) / 200.0;
    }
    assert!(of_the_centre < -0.8 && off.abs() < 0.25, "off by {off}, the centre alone by {of_the_centre}");
}

/// Pages differ as in a model: each has a few clusters of its own, and a query attends to one cluster of one page.
#[test]
fn the_page_that_a_query_looks_at_is_found() {
    const CHANNELS: usize = 32;
    let mut next = random(7);
    let mut keys = Vec::new();
    let mut centres = Vec::new();
    for _ in 0..64 {
        let own: Vec<Vec<f32>> = (0..5).map(|_| (0..CHANNELS).map(|_| 2.0 * next()).collect()).collect();
        let page: Vec<f32> =
            (0..16).flat_map(|t| own[t % 5].iter().map(|c| c + 0.7 * next()).collect::<Vec<_>>()).collect();
        keys.push(page);
        centres.push(own);
    }
    let sketches: Vec<Vec<u8>> = keys.iter().map(|page| sketch_of(page, CHANNELS, 7)).collect();
    let (mut caught, mut best) = (0.0, 0.0);
    for trial in 0..200 {
        let aim = &centres[trial * 13 % 64][trial % 5];
        let query: Vec<f32> = aim.iter().map(|c| 1.5 * c + 1.5 * next()).collect();
        let sums = |of: &dyn Fn(usize) -> f32| {
            let (sums, mut shares) = ((0..64).map(of).collect::<Vec<_>>(), vec![0.0; 64]);
            add_shares(&sums, 1.0, &mut shares);
            shares
        };
        let truth = sums(&|page| exact(&query, &keys[page], 0.7));
        let guess = sums(&|page| score_of(&query, &sketches[page], 0.7));
        let top = |shares: &[f32]| {
            let mut order: Vec<usize> = (0..64).collect();
            order.sort_by(|a, b| shares[*b].total_cmp(&shares[*a]));
            order[..8].iter().map(|page| truth[*page]).sum::<f32>()
        };
        caught += top(&guess);
        best += top(&truth);
    }
    assert!(caught > 0.97 * best, "{caught} of {best}");
}

#[test]
fn what_is_unknown_says_so() {
    for key in [f32::NAN, f32::INFINITY, 1e9] {
        let sketch = sketch_of(&[0.0, key, 0.0, 1.0], 2, 2);
        assert_eq!(score_of(&[1.0, 0.0], &sketch, 1.0), f32::INFINITY);
    }
    let zero = sketch_of(&[0.0; 8], 4, 2);
    assert!((score_of(&[1.0; 4], &zero, 1.0) - 2f32.ln()).abs() < 1e-3);
    assert_eq!(score_of(&[f32::NAN, 0.0, 0.0, 0.0], &zero, 1.0), f32::INFINITY);
    let mut memory = [0.0; 64];
    assert!(build(&[0.0; 5], 2, &mut memory, &mut [0; 6]).is_err());
    assert!(build(&[0.0; 4], 2, &mut [0.0; 5], &mut [0; 6]).is_err(), "scratch is too small");
    assert!(build(&[0.0; 4], 2, &mut memory, &mut [0; 5]).is_err());
    assert!(score(&[0.0; 3], 2, &[0; 6], 1.0, &mut [0.0]).is_err());
    let mut shares = [0.0; 4];
    add_shares(&[f32::INFINITY, 2.0, f32::NEG_INFINITY, 2.0], 0.5, &mut shares);
    assert!((shares[0] - 1.0 / 6.0).abs() < 1e-6 && shares[2] == 0.0 && shares[1] == shares[0], "{shares:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// One key is one group: its score is off by no more than the quantization steps allow.
    #[test]
    fn one_key_is_met_closely(channels in 1usize..70, size in -10i32..10, seed in any::<u64>()) {
        let mut next = random(seed);
        let scale = (size as f32).exp2();
        let key: Vec<f32> = (0..channels).map(|_| scale * next()).collect();
        let query: Vec<f32> = (0..channels).map(|_| next()).collect();
        let reach = key.iter().fold(0.0f32, |most, k| most.max(k.abs()));
        let size: f32 = query.iter().map(|q| q.abs()).sum();
        // The widest scale reaches `reach` in four steps of at most 2^(1/8) more. The error is at most half a step.
        let allowed = reach / 4.0 * 1.1 * size.max(1.0) + 1e-3;
        let found = score_of(&query, &sketch_of(&key, channels, 1), 1.0);
        prop_assert!((found - exact(&query, &key, 1.0)).abs() <= allowed, "{found} is off by more than {allowed}");
    }

    #[test]
    fn any_bits_are_a_sketch(sketch in proptest::collection::vec(any::<u8>(), bytes(5, 3)), q in any::<[f32; 5]>()) {
        prop_assert!(!score_of(&q, &sketch, 0.3).is_nan());
    }

    #[test]
    fn shares_add_up(sums in proptest::collection::vec(-100f32..100.0, 1..40)) {
        let mut shares = vec![0.0; sums.len()];
        add_shares(&sums, 1.0, &mut shares);
        prop_assert!((shares.iter().sum::<f32>() - 1.0).abs() < 1e-3);
    }
}
