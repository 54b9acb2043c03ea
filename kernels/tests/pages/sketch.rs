//! Sketches byte by byte, and the shares that they predict.

use crate::rig::{POISON, Rig, Rng};
use kvtide_kernels::launch::Sketch;
use kvtide_kernels::params::{SKETCH_OPEN, SKETCH_UNKNOWN, SketchBuildParams, SketchItem, SketchScoresParams};
use kvtide_kernels::reference::Element;
use kvtide_wire::digest::sketch;

const HEADS: usize = 2;

/// Shape of sketches and of their pages.
#[derive(Clone, Copy)]
struct Form {
    channels: usize,
    groups: usize,
    page_tokens: usize,
    tile_tokens: usize,
}

impl Form {
    fn page(&self) -> usize {
        HEADS * self.page_tokens * self.channels
    }

    fn bytes(&self) -> usize {
        sketch::bytes(self.channels, self.groups)
    }

    /// Return the keys of a head of a page; pages consist of tiles of [token][head][channel].
    fn keys_of(&self, element: Element, page: &[u16], head: usize, tokens: usize) -> Vec<f32> {
        let at = |token: usize| {
            let (tile, within) = (token / self.tile_tokens, token % self.tile_tokens);
            ((tile * HEADS + head) * self.tile_tokens + within) * self.channels
        };
        (0..tokens).flat_map(|t| page[at(t)..][..self.channels].iter().map(|bits| element.to_f32(*bits))).collect()
    }

    fn expected(&self, keys: &[f32]) -> Vec<u8> {
        let mut scratch = vec![0.0; sketch::scratch(keys.len() / self.channels, self.channels, self.groups)];
        let mut bytes = vec![0; self.bytes()];
        sketch::build(keys, self.channels, &mut scratch, &mut bytes).expect("sizes fit");
        bytes
    }
}

/// Build sketches of `pages`, in slots of reverse order.
fn build(rig: &Rig, element: Element, form: Form, pages: &[Vec<u16>], tokens: &[usize], status: u32) -> Vec<u8> {
    let kernels = Sketch::new(&rig.device).expect("kernels load");
    let source = rig.upload(&pages.concat());
    let items: Vec<SketchItem> = (0..pages.len())
        .map(|at| SketchItem {
            page: source.address() + (at * form.page() * 2) as u64,
            slot: (pages.len() - 1 - at) as u32,
            tokens: tokens[at] as u32,
        })
        .collect();
    let size = pages.len() * HEADS * form.bytes();
    let (sketches, items, status) = (rig.poisoned(size + 64), rig.pinned(&items), rig.upload(&[status]));
    let tile = form.tile_tokens * form.channels * 2;
    let params = SketchBuildParams {
        keys: 0,
        head_stride: tile as u64,
        tile_stride: (HEADS * tile) as u64,
        token_stride: (form.channels * 2) as u64,
        items: items.address(),
        sketches: sketches.address(),
        status: status.address(),
        count: pages.len() as u32,
        heads: HEADS as u32,
        channels: form.channels as u32,
        groups: form.groups as u32,
        tile_tokens: form.tile_tokens as u32,
        slots: pages.len() as u32,
    };
    // SAFETY: all memory lives until `finish` has returned.
    unsafe { kernels.build(&rig.stream, element, &params) }.expect("launched");
    rig.finish();
    let mut found: Vec<u8> = rig.download(&sketches, size + 64);
    assert_eq!(found.split_off(size), [POISON; 64], "written beyond the sketches");
    found
}

/// Return pages of clustered keys, as in a model, with channels of different ranges.
fn clumps(random: &mut Rng, element: Element, form: Form, pages: usize) -> Vec<Vec<u16>> {
    let reach: Vec<f32> = (0..form.channels).map(|_| (random.within(0..8) as f32 - 4.0).exp2()).collect();
    let page = |random: &mut Rng| {
        let centres: Vec<f32> = (0..5 * form.channels).map(|_| random.normal()).collect();
        let key = |random: &mut Rng| {
            let from = random.within(0..5) * form.channels;
            let key = centres[from..][..form.channels].iter().zip(&reach);
            key.map(|(c, r)| element.from_f32((c + 0.2 * random.normal()) * r)).collect::<Vec<u16>>()
        };
        (0..HEADS * form.page_tokens).flat_map(|_| key(random)).collect()
    };
    (0..pages).map(|_| page(random)).collect()
}

#[test]
fn sketches_are_the_wire_s_byte_by_byte() {
    let (rig, mut random) = (Rig::new(), Rng::seeded());
    let cases =
        [(8, 1, 16, 16), (64, 7, 16, 8), (128, 16, 64, 64), (256, 32, 128, 32), (24, 32, 7, 7), (576, 4, 16, 16)];
    for (i, (channels, groups, page_tokens, tile_tokens)) in cases.into_iter().enumerate() {
        let element = if i % 2 == 0 { Element::F16 } else { Element::Bf16 };
        let form = Form { channels, groups, page_tokens, tile_tokens };
        let mut pages = clumps(&mut random, element, form, 6);
        let any = |random: &mut Rng| random.within(0..form.tile_tokens * form.channels);
        // In the first head: a NaN, an infinity, a key beyond binary16, only zeros, keys that repeat.
        pages[0][any(&mut random)] = 0x7fff;
        pages[1][any(&mut random)] = element.from_f32(f32::NEG_INFINITY);
        pages[2][any(&mut random)] = element.from_f32(1e5);
        pages[3].fill(0x8000);
        let first = pages[4][..channels].to_vec();
        pages[4].chunks_exact_mut(channels).for_each(|key| key.copy_from_slice(&first));
        let mut tokens = vec![page_tokens; pages.len()];
        tokens[5] = random.within(1..page_tokens + 1);
        let found = build(&rig, element, form, &pages, &tokens, 0);
        for (at, page) in pages.iter().enumerate() {
            for head in 0..HEADS {
                let expected = form.expected(&form.keys_of(element, page, head, tokens[at]));
                let slot = pages.len() - 1 - at;
                let found = &found[(slot * HEADS + head) * form.bytes()..][..form.bytes()];
                assert!(found == expected, "{element:?}, case {i}, page {at}, head {head}:\n{found:?}\n{expected:?}");
            }
        }
        let failed = build(&rig, element, form, &pages, &tokens, 1);
        assert!(failed.iter().all(|byte| *byte == POISON), "a failed lane wrote");
    }
}

#[test]
fn shares_are_those_of_the_wire() {
    let (rig, mut random) = (Rig::new(), Rng::seeded());
    let kernels = Sketch::new(&rig.device).expect("kernels load");
    for (channels, groups, group, count) in [(64, 7, 2, 37), (128, 16, 4, 300), (24, 2, 1, 1)] {
        let form = Form { channels, groups, page_tokens: 16, tile_tokens: 16 };
        let (slots, heads) = (20, HEADS * group);
        let mut pages = clumps(&mut random, Element::F16, form, slots);
        pages[3][0] = 0x7e00; // its first head has no estimate
        let sketches = build(&rig, Element::F16, form, &pages, &vec![16; slots], 0);
        let mut places: Vec<u32> = (0..count).map(|_| random.within(0..slots) as u32).collect();
        (places[count / 2], places[count - 1]) = (SKETCH_UNKNOWN, SKETCH_OPEN);
        let mut queries: Vec<f32> = (0..heads * channels).map(|_| random.normal() * 0.3).collect();
        queries[channels - 1] = f32::NAN; // the first head's query has no estimate
        let scale = 0.5;
        let (at, sums) = (rig.upload(&sketches), rig.poisoned(heads * count * 4));
        let (asked, listed, shares) = (rig.upload(&queries), rig.pinned(&places), rig.poisoned(count * 4 + 16));
        let params = SketchScoresParams {
            queries: asked.address(),
            sketches: at.address(),
            places: listed.address(),
            sums: sums.address(),
            shares: shares.address(),
            pages: count as u32,
            kv_heads: HEADS as u32,
            group: group as u32,
            channels: channels as u32,
            groups: groups as u32,
            slots: slots as u32,
            scale,
            ..SketchScoresParams::default()
        };
        // SAFETY: all memory lives until `finish` has returned.
        unsafe { kernels.shares(&rig.stream, &params) }.expect("launched");
        rig.finish();
        let found: Vec<f32> = rig.download(&sums, heads * count);
        let mut expected = vec![0.0; count];
        for head in 0..heads {
            let query = &queries[head * channels..][..channels];
            let sum = |place: &u32| match *place {
                SKETCH_OPEN => f32::NEG_INFINITY,
                SKETCH_UNKNOWN => f32::INFINITY,
                slot => {
                    let of = &sketches[(slot as usize * HEADS + head / group) * form.bytes()..][..form.bytes()];
                    let mut sum = [0.0];
                    sketch::score(query, channels, of, scale, &mut sum).expect("sizes fit");
                    sum[0]
                }
            };
            let sums: Vec<f32> = places.iter().map(sum).collect();
            let bits = |sums: &[f32]| sums.iter().map(|sum| sum.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&found[head * count..][..count]), bits(&sums), "head {head}");
            sketch::add_shares(&sums, 1.0 / heads as f32, &mut expected);
        }
        let found: Vec<f32> = rig.download(&shares, count);
        let close = |(found, expected): (&f32, &f32)| (found - expected).abs() <= 1e-5 * expected.max(1e-3);
        assert!(found.iter().zip(&expected).all(close), "{found:?}\n{expected:?}");
        let rest: Vec<u8> = rig.download(&shares, count * 4 + 16);
        assert_eq!(rest[count * 4..], [POISON; 16], "written beyond the shares");
    }
}
