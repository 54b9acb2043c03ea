//! Picks and estimates on attention data of a real decoder, compared with the exact attention.
//!
//! `decoder.f16` is part of a run of the demo's model over text, as 16-bit floats. It holds the queries of 48 steps in two
//! planes; one of the planes looks up what followed the same token before. Then come the keys of both planes over 1,024 tokens:
//! the first 64, and the 960 up to the last step's.

use super::{Candidate, Heads, Lost, Picker, RECENT, SINKS, estimate};
use kvtide_wire::{digest::sketch, half::F16};

const STEPS: usize = 48;
const PLANES: usize = 2;
const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const CHANNELS: usize = 32;
const TOKENS: usize = 1024;

/// Queries `[steps][planes][heads][channels]`, scaled, and keys `[planes][KV heads][tokens][channels]`.
struct Decoder {
    queries: Vec<f32>,
    keys: Vec<f32>,
}

impl Decoder {
    fn new() -> Decoder {
        let numbers =
            include_bytes!("decoder.f16").chunks_exact(2).map(|b| F16(u16::from_le_bytes([b[0], b[1]])).to_f32());
        let numbers: Vec<f32> = numbers.collect();
        let (queries, keys) = numbers.split_at(STEPS * PLANES * HEADS * CHANNELS);
        assert_eq!(keys.len(), PLANES * KV_HEADS * TOKENS * CHANNELS);
        let scale = (CHANNELS as f32).sqrt().recip();
        Decoder { queries: queries.iter().map(|q| q * scale).collect(), keys: keys.to_vec() }
    }

    fn query(&self, step: usize, plane: usize, head: usize) -> &[f32] {
        &self.queries[((step * PLANES + plane) * HEADS + head) * CHANNELS..][..CHANNELS]
    }

    /// Return a page's keys for a query head, up to the step's position.
    fn keys(&self, plane: usize, head: usize, tokens: std::ops::Range<usize>) -> &[f32] {
        let first = (plane * KV_HEADS + head * KV_HEADS / HEADS) * TOKENS;
        &self.keys[(first + tokens.start) * CHANNELS..(first + tokens.end) * CHANNELS]
    }
}

/// One step of one plane, divided into pages of `page_tokens` tokens.
struct Plane<'a> {
    decoder: &'a Decoder,
    page_tokens: usize,
    step: usize,
    plane: usize,
}

impl Plane<'_> {
    /// Return the tokens that the step sees, the pages that they fill, and the pages that are sealed.
    fn sizes(&self) -> (usize, usize, usize) {
        let tokens = TOKENS - STEPS + self.step + 1;
        (tokens, tokens.div_ceil(self.page_tokens), (tokens - 1) / self.page_tokens)
    }

    fn page(&self, head: usize, index: usize) -> &[f32] {
        let (tokens, ..) = self.sizes();
        let first = index * self.page_tokens;
        self.decoder.keys(self.plane, head, first..(first + self.page_tokens).min(tokens))
    }

    fn query(&self, head: usize) -> &[f32] {
        self.decoder.query(self.step, self.plane, head)
    }

    /// Return the sum of exponentials over a page.
    fn sum(&self, head: usize, index: usize) -> f64 {
        let score =
            |key: &[f32]| key.iter().zip(self.query(head)).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum::<f64>();
        self.page(head, index).chunks_exact(CHANNELS).map(|key| score(key).exp()).sum()
    }

    /// Return the share that each head loses without the pages that are not `read`, and the logarithm of the sum that it reads.
    fn truth(&self, read: &[bool]) -> (Vec<f64>, Vec<f32>) {
        let head = |head| {
            let of =
                |wanted: bool| (0..read.len()).filter(|i| read[*i] == wanted).map(|i| self.sum(head, i)).sum::<f64>();
            let (lost, kept): (f64, f64) = (of(false), of(true));
            (lost / (lost + kept), kept.ln() as f32)
        };
        (0..HEADS).map(head).unzip()
    }

    /// Return the scores of the sealed pages by sketches that take at most 5 % of a half-precision page.
    fn heads(&self, sketches: &mut std::collections::HashMap<(usize, usize, usize), Vec<u8>>) -> (Heads, Vec<f32>) {
        let (_, pages, sealed) = self.sizes();
        let groups = sketch::groups(CHANNELS, self.page_tokens, 4 * CHANNELS);
        let mut scratch = vec![0.0; sketch::scratch(self.page_tokens, CHANNELS, groups)];
        let mut sums = vec![f32::NEG_INFINITY; HEADS * pages];
        for head in 0..HEADS {
            for index in 0..sealed {
                let sketch = sketches.entry((self.plane, head * KV_HEADS / HEADS, index)).or_insert_with(|| {
                    let mut sketch = vec![0; sketch::bytes(CHANNELS, groups)];
                    sketch::build(self.page(head, index), CHANNELS, &mut scratch, &mut sketch).expect("sizes fit");
                    sketch
                });
                let sum = &mut sums[head * pages + index..][..1];
                sketch::score(self.query(head), CHANNELS, sketch, 1.0, sum).expect("sizes fit");
            }
        }
        let heads = Heads::of_sums(sums, pages);
        let mut mean = Vec::new();
        heads.mean(pages, &mut mean);
        (heads, mean)
    }
}

/// Results of a run of all steps: means over steps and planes.
#[derive(Debug, Default)]
struct Run {
    truth: f64,
    /// The estimates with the heads' sums and without; then their mean distance from the exact loss.
    told: [f64; 2],
    off: [f64; 2],
    /// Loss of the worst head: exact, and estimated with sums.
    worst: [f64; 2],
    /// Share of the pages that were picked.
    picked: f64,
    /// Share of steps in which a head loses over half of its attention.
    mostly_omitted: f64,
}

/// Decode by `approx`, with every `absent`-th page outside tier 0 (0: none).
fn run(decoder: &Decoder, page_tokens: usize, permille: u16, absent: usize, by_head: bool) -> Run {
    let none = Heads::default();
    let (mut run, mut picker, mut sketches) = (Run::default(), Picker::new(PLANES as u32), Default::default());
    let mut history = vec![(0.0f32, 0.0f32); PLANES * TOKENS];
    for (step, plane) in (0..STEPS).flat_map(|step| (0..PLANES).map(move |plane| (step, plane))) {
        let at = Plane { decoder, page_tokens, step, plane };
        let (_, pages, sealed) = at.sizes();
        let (heads, mean) = at.heads(&mut sketches);
        let candidate = |index: usize| Candidate {
            index: index as u32,
            digest: Some(mean[index]).filter(|mean| *mean > 0.0),
            history: history[plane * TOKENS + index],
            always_kept: index < SINKS as usize || index + RECENT as usize >= sealed,
            there: absent == 0 || !index.is_multiple_of(absent),
            ..Candidate::default()
        };
        let mut candidates: Vec<Candidate> = (0..pages).map(candidate).collect();
        picker.pick(plane as u16, permille, &mut candidates, if by_head { &heads } else { &none });
        run.picked += candidates.iter().filter(|page| page.picked).count() as f64 / pages as f64;
        picker.stand_in(&mut candidates);
        let read: Vec<bool> = candidates.iter().map(|page| page.wanted() && (page.always_kept || page.there)).collect();
        let (lost, sums) = at.truth(&read);
        let share = |index: usize| {
            let of = |head: usize| (at.sum(head, index).ln() - f64::from(sums[head])).exp();
            if read[index] { ((0..HEADS).map(of).sum::<f64>() / HEADS as f64) as f32 } else { f32::NAN }
        };
        let shares: Vec<f32> = (0..pages).map(share).collect();
        let told = [&sums[..], &[]].map(|sums| estimate(&candidates, &shares, &heads, sums));
        for (page, share) in candidates.iter().zip(&shares) {
            let share = if share.is_finite() { *share } else { told[0].factor * page.predicted } * (1.0 - told[0].mean);
            let known = &mut history[plane * TOKENS + page.index as usize];
            *known = (if known.0 == 0.0 { share } else { known.0 + 0.3 * (share - known.0) }, share);
        }
        picker.learn(plane as u16, &candidates, shares.iter().copied());
        let (truth, worst) = (lost.iter().sum::<f64>() / HEADS as f64, lost.iter().copied().fold(0.0, f64::max));
        run.truth += truth;
        run.worst = [run.worst[0] + worst, run.worst[1] + f64::from(told[0].worst)];
        run.mostly_omitted += f64::from(u8::from(worst > 0.5));
        for (i, Lost { mean, .. }) in told.into_iter().enumerate() {
            run.told[i] += f64::from(mean);
            run.off[i] += (f64::from(mean) - truth).abs();
        }
    }
    let count = (STEPS * PLANES) as f64;
    let figures = [&mut run.truth, &mut run.mostly_omitted, &mut run.picked]
        .into_iter()
        .chain(&mut run.told)
        .chain(&mut run.off)
        .chain(&mut run.worst);
    figures.for_each(|figure| *figure /= count);
    run
}

#[test]
fn estimates_track_the_truth_over_sizes_budgets_and_what_is_there() {
    let decoder = Decoder::new();
    for page_tokens in [16, 32, 64] {
        for (permille, absent) in [(125, 0), (250, 0), (500, 0), (250, 3), (500, 2)] {
            let run = run(&decoder, page_tokens, permille, absent, true);
            println!("{page_tokens} tokens, {permille} of 1000, every {absent}th absent: {run:.3?}");
            // The mean budget of the planes is the requested one. Four pages are always read, which is more than the budget if there are few.
            let given = f64::from(permille) / 1000.0;
            assert!(run.picked <= (given + 0.02).max(4.0 * page_tokens as f64 / TOKENS as f64), "{run:?}");
            assert!(run.truth > 0.01 && run.truth < 0.5, "{run:?}");
            // With the heads' sums, within a tenth and one percent of all attention; without them, within a third and three
            // percent.
            assert!((run.told[0] - run.truth).abs() <= 0.1 * run.truth + 0.01, "{run:?}");
            assert!((run.told[1] - run.truth).abs() <= 0.33 * run.truth + 0.03, "{run:?}");
            // The same for each step.
            assert!(run.off[0] <= 0.15 * run.truth + 0.02, "{run:?}");
            assert!((run.worst[1] - run.worst[0]).abs() <= 0.15 * run.worst[0] + 0.02, "{run:?}");
        }
    }
}

#[test]
fn the_head_that_loses_most_loses_less_where_heads_are_told_apart() {
    let decoder = Decoder::new();
    for page_tokens in [16, 32] {
        let [mean, apart] = [false, true].map(|by_head| run(&decoder, page_tokens, 250, 0, by_head));
        println!("{page_tokens} tokens: picked by mean {mean:.3?}, picked by head {apart:.3?}");
        assert!(apart.worst[0] < mean.worst[0] && apart.mostly_omitted <= mean.mostly_omitted, "{apart:?} {mean:?}");
        assert!(apart.truth <= mean.truth * 1.02, "{apart:?} {mean:?}");
    }
}
