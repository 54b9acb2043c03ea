//! Digests bit by bit, bounds that no product exceeds, and the best pages.

use crate::rig::{POISON, Random, Rig};
use kvtide_kernels::launch::Digest;
use kvtide_kernels::params::{DigestBuildParams, DigestItem, DigestScoresParams, DigestSelectParams};
use kvtide_kernels::reference::boundary::Batch;
use kvtide_kernels::reference::{Element, digest as reference};
use kvtide_wire::digest::bytes;

const HEADS: usize = 2;

/// Return keys of `blocks` pages, `[block][head][token][channel]`, with channels of different ranges.
fn keys(random: &mut Random, element: Element, blocks: usize, tokens: usize, channels: usize) -> Vec<u16> {
    let reach: Vec<f32> = (0..channels).map(|_| (random.below(0..8) as f32 - 5.0).exp2()).collect();
    (0..blocks * HEADS * tokens)
        .flat_map(|_| reach.iter().map(|r| element.from_f32(random.normal() * r)).collect::<Vec<_>>())
        .collect()
}

fn build(
    rig: &Rig,
    digest: &Digest,
    element: Element,
    keys: &[u16],
    items: &[DigestItem],
    channels: usize,
    status: u32,
) -> Vec<u8> {
    let blocks = items.len();
    let tokens = keys.len() / blocks / HEADS / channels;
    let size = blocks * HEADS * bytes(channels);
    let (source, items) = (rig.upload(keys), rig.pinned(items));
    let (digests, status) = (rig.poisoned(size + 64), rig.upload(&[status]));
    let params = DigestBuildParams {
        keys: source.address(),
        head_stride: (tokens * channels * 2) as u64,
        token_stride: (channels * 2) as u64,
        items: items.address(),
        digests: digests.address(),
        status: status.address(),
        count: blocks as u32,
        heads: HEADS as u32,
        channels: channels as u32,
        blocks: blocks as u32,
    };
    // SAFETY: all memory lives until `finish` has returned.
    unsafe { digest.build(&rig.stream, element, &params) }.expect("launched");
    rig.finish();
    let mut found: Vec<u8> = rig.download(&digests, size + 64);
    assert_eq!(found.split_off(size), [POISON; 64], "written beyond the digests");
    found
}

/// Return items of all blocks in random order; `tokens(block)` tokens each.
fn items(random: &mut Random, blocks: usize, page: usize, tokens: impl Fn(&mut Random) -> usize) -> Vec<DigestItem> {
    let order = random.shuffled(blocks);
    order
        .into_iter()
        .map(|block| DigestItem { page: (block * page) as u64, block: block as u32, tokens: tokens(random) as u32 })
        .collect()
}

#[test]
fn digests_are_the_wire_s_bit_by_bit() {
    let (rig, mut random) = (Rig::new(), Random::new());
    let digest = Digest::new(&rig.device).expect("kernels load");
    let cases = [(32, 128), (64, 16), (128, 64), (256, 16), (576, 16), (1024, 3), (24, 7)];
    for (i, (channels, page_tokens)) in cases.into_iter().enumerate() {
        let element = if i % 2 == 0 { Element::F16 } else { Element::Bf16 };
        let blocks = 6;
        let mut source = keys(&mut random, element, blocks, page_tokens, channels);
        let page = HEADS * page_tokens * channels;
        // In the first head: a NaN, an infinity, a key beyond any scale, only zeros, a constant.
        source[random.below(0..channels)] = 0x7fff;
        source[page + random.below(0..channels)] = element.from_f32(f32::NEG_INFINITY);
        source[2 * page + random.below(0..channels)] = element.from_f32(3e38);
        source[3 * page..][..page_tokens * channels].fill(0x8000);
        source[4 * page..][..page_tokens * channels].fill(element.from_f32(-0.3));
        // Also keys at a distance from their centre that is exactly a binary16: the radius must be the next larger one.
        let edge = &mut source[5 * page..][..page_tokens * channels];
        edge.fill(0);
        for (i, key) in edge.chunks_exact_mut(channels).enumerate() {
            key[0] = element.from_f32(if i % 2 == 0 { 127.0 } else { -127.0 } / 128.0);
        }
        let mut items = items(&mut random, blocks, 2 * page, |random| random.below(1..page_tokens + 1));
        items.iter_mut().filter(|item| item.block == 5).for_each(|item| item.tokens = page_tokens as u32);
        let found = build(&rig, &digest, element, &source, &items, channels, 0);
        for item in &items {
            for head in 0..HEADS {
                let at = item.block as usize * page + head * page_tokens * channels;
                let head_keys = &source[at..at + item.tokens as usize * channels];
                let expected = reference::build(element, head_keys, channels).expect("sizes fit");
                let at = (item.block as usize * HEADS + head) * bytes(channels);
                let found = &found[at..at + bytes(channels)];
                assert!(found == expected, "{element:?}, {channels} channels, {item:?}, head {head}");
            }
        }
        let failed = build(&rig, &digest, element, &source, &items, channels, 1);
        assert!(failed.iter().all(|&byte| byte == POISON), "a failed lane wrote");
    }
}

/// A batch over `blocks` blocks of a plane, with its digests and a query.
struct Scene {
    element: Element,
    channels: usize,
    page_tokens: usize,
    group: usize,
    max_blocks: usize,
    keys: Vec<u16>,
    digests: Vec<u8>,
    block_ids: Vec<i32>,
    lengths: Vec<i32>,
    starts: Vec<i32>,
    sealed: Vec<i32>,
    queries: Vec<u16>,
}

const BLOCKS: usize = 20;

fn scene(rig: &Rig, random: &mut Random, digest: &Digest, element: Element, channels: usize, group: usize) -> Scene {
    let (page_tokens, max_blocks) = (16, 37);
    let mut keys = keys(random, element, BLOCKS, page_tokens, channels);
    keys[5 * HEADS * page_tokens * channels] = element.from_f32(f32::INFINITY);
    let items = items(random, BLOCKS, 2 * HEADS * page_tokens * channels, |_| page_tokens);
    let digests = build(rig, digest, element, &keys, &items, channels, 0);
    let most = (max_blocks * page_tokens) as i32;
    let lengths = vec![most, 0, 1, random.below(100..400) as i32, 500];
    let seqs = lengths.len();
    Scene {
        element,
        channels,
        page_tokens,
        group,
        max_blocks,
        keys,
        digests,
        block_ids: (0..seqs * max_blocks)
            .map(|_| random.below(0..BLOCKS + 1) as i32 - i32::from(random.below(0..30) == 0))
            .collect(),
        starts: vec![0, 0, 0, 0, random.below(1..400) as i32],
        sealed: lengths.iter().map(|&l| l / 16 * 16 - if l > 300 { 32 } else { 0 }).collect(),
        lengths,
        queries: (0..seqs * HEADS * group * channels).map(|_| element.from_f32(random.normal())).collect(),
    }
}

impl Scene {
    fn seqs(&self) -> usize {
        self.lengths.len()
    }

    fn query(&self, seq: usize, head: usize) -> Vec<f32> {
        let at = (seq * HEADS * self.group + head) * self.channels;
        self.queries[at..at + self.channels].iter().map(|&bits| self.element.to_f32(bits)).collect()
    }

    fn scores(&self, rig: &Rig, digest: &Digest, scale: f32) -> Vec<f32> {
        let heads = HEADS * self.group;
        let count = self.seqs() * heads * self.max_blocks;
        let (queries, digests) = (rig.upload(&self.queries), rig.upload(&self.digests));
        let (ids, lengths) = (rig.upload(&self.block_ids), rig.upload(&self.lengths));
        let (starts, sealed) = (rig.upload(&self.starts), rig.upload(&self.sealed));
        let bounds = rig.poisoned(4 * count);
        let params = DigestScoresParams {
            queries: queries.address(),
            seq_stride: (heads * self.channels * 2) as u64,
            head_stride: (self.channels * 2) as u64,
            digests: digests.address(),
            block_ids: ids.address(),
            lengths: lengths.address(),
            sealed: sealed.address(),
            starts: starts.address(),
            bounds: bounds.address(),
            status: 0,
            seqs: self.seqs() as u32,
            max_blocks: self.max_blocks as u32,
            kv_heads: HEADS as u32,
            group: self.group as u32,
            channels: self.channels as u32,
            page_tokens: self.page_tokens as u32,
            blocks: BLOCKS as u32,
            scale,
        };
        let status = rig.upload(&[3u32]);
        let failed = DigestScoresParams { status: status.address(), ..params };
        // SAFETY: all memory lives until `finish` has returned.
        unsafe { digest.scores(&rig.stream, self.element, &failed) }.expect("launched");
        rig.finish();
        assert!(rig.download::<u8>(&bounds, 4 * count).iter().all(|&byte| byte == POISON), "a failed lane wrote");
        // SAFETY: as above.
        unsafe { digest.scores(&rig.stream, self.element, &params) }.expect("launched");
        rig.finish();
        rig.download(&bounds, count)
    }

    /// Return the largest product of a query with the keys of a block, exact: 22 bits a product in f64.
    fn largest(&self, query: &[f32], block: usize, kv_head: usize) -> f64 {
        let at = (block * HEADS + kv_head) * self.page_tokens * self.channels;
        let keys = &self.keys[at..at + self.page_tokens * self.channels];
        let dot = |key: &[u16]| {
            query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(self.element.to_f32(*k))).sum::<f64>()
        };
        keys.chunks_exact(self.channels).map(dot).fold(f64::NEG_INFINITY, f64::max)
    }
}

#[test]
fn no_product_exceeds_its_page_s_bound() {
    let (rig, mut random) = (Rig::new(), Random::new());
    let digest = Digest::new(&rig.device).expect("kernels load");
    let cases = [(Element::F16, 32, 3), (Element::Bf16, 128, 4), (Element::Bf16, 64, 9), (Element::F16, 576, 5)];
    for (element, channels, group) in cases {
        let mut scene = scene(&rig, &mut random, &digest, element, channels, group);
        // Queries of the first sequence: one is NaN, one is zero, one is tiny.
        scene.queries[..channels].fill(0x7fff);
        scene.queries[channels..2 * channels].fill(0);
        scene.queries[2 * channels..3 * channels].fill(1);
        let scale = 0.088_388_35f32;
        let found = scene.scores(&rig, &digest, scale);
        let digests = reference::Digests { bytes: &scene.digests, kv_heads: HEADS, channels };
        let batch = Batch {
            block_ids: &scene.block_ids,
            lengths: &scene.lengths,
            starts: &scene.starts,
            max_blocks: scene.max_blocks,
        };
        let mut finite = 0;
        for seq in 0..scene.seqs() {
            for head in 0..HEADS * group {
                let (query, kv_head) = (scene.query(seq, head), head / group);
                let sealed = scene.sealed[seq] as usize;
                let expected = reference::bounds(&digests, kv_head, &query, &batch, seq, scene.page_tokens, sealed);
                let expected = expected.expect("sizes fit");
                for (index, &want) in expected.iter().enumerate() {
                    let got = f64::from(found[(seq * HEADS * group + head) * scene.max_blocks + index]);
                    let want = want * f64::from(scale);
                    if !want.is_finite() {
                        assert_eq!(got, want, "sequence {seq}, head {head}, page {index}");
                        continue;
                    }
                    finite += 1;
                    let block = scene.block_ids[seq * scene.max_blocks + index] as usize;
                    let largest = scene.largest(&query, block, kv_head) * f64::from(scale);
                    assert!(got >= largest, "sequence {seq}, head {head}, page {index}: {got} for {largest}");
                    // As tight as the wire's, up to f32 rounding: both use the smaller of two bounds of about this size.
                    let size: f64 = query.iter().map(|q| f64::from(q.abs()) * 16.0).sum::<f64>() * f64::from(scale);
                    assert!((got - want).abs() <= 3e-4 * size + 1e-9, "{got} is far from the wire's {want}");
                }
            }
        }
        assert!(finite > 50, "only {finite} bounds were finite: the test compared little");
    }
}

#[test]
fn the_best_pages_are_chosen() {
    let (rig, mut random) = (Rig::new(), Random::new());
    let digest = Digest::new(&rig.device).expect("kernels load");
    // More columns than threads of a block, and fewer; many equal bounds, some unknown.
    for (seqs, heads, max_blocks, budget) in
        [(4usize, 3usize, 1300usize, 70usize), (5, 9, 40, 64), (2, 1, 513, 1), (3, 1, 700, 60)]
    {
        let mut bounds = vec![f32::NEG_INFINITY; seqs * heads * max_blocks];
        for seq in 0..seqs {
            // The first is full, so that with one head the last places go to some of many equal bounds.
            let end = [max_blocks, 0].get(seq).copied().unwrap_or_else(|| random.below(1..max_blocks + 1));
            let begin = if end > 30 { random.below(0..20) } else { 0 };
            for (head, i) in (0..heads).flat_map(|h| (begin..end).map(move |i| (h, i))) {
                let value = if random.below(0..3) == 0 { 5.0 } else { random.normal() * 3.0 };
                bounds[(seq * heads + head) * max_blocks + i] =
                    if seq == 2 && random.below(0..200) == 0 { f32::INFINITY } else { value };
            }
        }
        let (source, estimates) = (rig.upload(&bounds), rig.poisoned(4 * seqs * max_blocks));
        let (chosen, counts, omitted) =
            (rig.poisoned(4 * seqs * budget + 64), rig.poisoned(4 * seqs), rig.poisoned(4 * seqs));
        let choice = reference::Choice { budget, keep_first: 1, keep_last: 2 };
        let params = DigestSelectParams {
            bounds: source.address(),
            estimates: estimates.address(),
            chosen: chosen.address(),
            counts: counts.address(),
            omitted: omitted.address(),
            status: 0,
            seqs: seqs as u32,
            max_blocks: max_blocks as u32,
            heads: heads as u32,
            budget: budget as u32,
            keep_first: choice.keep_first as u32,
            keep_last: choice.keep_last as u32,
        };
        let status = rig.upload(&[3u32]);
        let failed = DigestSelectParams { status: status.address(), ..params };
        // SAFETY: all memory lives until `finish` has returned.
        unsafe { digest.select(&rig.stream, &failed) }.expect("launched");
        rig.finish();
        let outputs = [(&estimates, seqs * max_blocks), (&chosen, seqs * budget), (&counts, seqs), (&omitted, seqs)];
        for (output, words) in outputs {
            assert!(rig.download::<u8>(output, 4 * words).iter().all(|&byte| byte == POISON), "a failed lane wrote");
        }
        // SAFETY: as above.
        unsafe { digest.select(&rig.stream, &params) }.expect("launched");
        rig.finish();
        let found: Vec<f32> = rig.download(&estimates, seqs * max_blocks);
        let chosen: Vec<i32> = rig.download(&chosen, seqs * budget + 16);
        assert_eq!(chosen[seqs * budget..], [0xa5a5_a5a5u32 as i32; 16], "written beyond the choices");
        let (counts, omitted): (Vec<u32>, Vec<f32>) = (rig.download(&counts, seqs), rig.download(&omitted, seqs));
        for seq in 0..seqs {
            let wide: Vec<Vec<f64>> = (0..heads)
                .map(|h| bounds[(seq * heads + h) * max_blocks..][..max_blocks].iter().map(|&b| f64::from(b)).collect())
                .collect();
            let rows: Vec<&[f64]> = wide.iter().map(Vec::as_slice).collect();
            let found: Vec<f64> = found[seq * max_blocks..][..max_blocks].iter().map(|&e| f64::from(e)).collect();
            for (i, (got, want)) in found.iter().zip(reference::estimates(&rows, choice)).enumerate() {
                let close = *got == want || (got - want).abs() <= 1e-5 * want.abs();
                assert!(close, "sequence {seq}, page {i}: estimate {got}, not {want}");
            }
            // Given these estimates the choice is exact.
            let (best, left) = reference::choose(&found, budget);
            let mut expected: Vec<i32> = best.iter().map(|&i| i as i32).collect();
            assert_eq!(counts[seq] as usize, expected.len(), "sequence {seq}");
            expected.resize(budget, -1);
            assert_eq!(chosen[seq * budget..][..budget], expected, "sequence {seq}");
            assert!(
                (f64::from(omitted[seq]) - left).abs() <= 1e-4,
                "sequence {seq}: {} omitted, not {left}",
                omitted[seq]
            );
        }
    }
}
