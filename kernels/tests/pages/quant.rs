//! Codecs: scales bit by bit, nearest codes, and conversion back into a layout.

use crate::rig::{POISON, Random, Rig};
use kvtide_kernels::launch::{Codec, Quant};
use kvtide_kernels::params::{GatherLayout, QuantItem, QuantParams};
use kvtide_kernels::reference::Element;

/// Shape of a case: an engine's layout has tokens before heads, K and V separate, and a gap behind each row.
#[derive(Clone, Copy, Debug)]
struct Shape {
    layers: u32,
    parts: u32,
    heads: u32,
    page_tokens: u32,
    channels: u32,
}

const GAP: usize = 16;

impl Shape {
    fn row(&self) -> usize {
        2 * self.channels as usize + GAP
    }

    fn part(&self) -> usize {
        self.heads as usize * self.page_tokens as usize * self.row()
    }

    fn block(&self) -> usize {
        (self.layers * self.parts) as usize * self.part()
    }

    fn at(&self, layer: u32, part: u32, head: u32, token: u32, channel: u32) -> usize {
        (layer * self.parts + part) as usize * self.part()
            + (token * self.heads + head) as usize * self.row()
            + 2 * channel as usize
    }

    fn params(&self, codec: Codec, count: usize, image_stride: u64) -> QuantParams {
        QuantParams {
            layout: GatherLayout {
                bases: 0,
                head_stride: self.row() as u64,
                token_stride: u64::from(self.heads) * self.row() as u64,
            },
            image_stride,
            count: count as u32,
            layers: self.layers,
            parts: self.parts,
            heads: self.heads,
            page_tokens: self.page_tokens,
            channels: self.channels,
            codec: codec.code(),
            ..Default::default()
        }
    }
}

/// Return KV-like numbers: channels of different ranges, some outliers, constant ones, zeros.
fn numbers(random: &mut Random, shape: &Shape, element: Element, count: usize) -> Vec<u8> {
    let mut bytes = vec![POISON; count * shape.block()];
    let reach: Vec<f32> = (0..shape.channels).map(|_| (random.below(0..12) as f32 - 6.0).exp2()).collect();
    let shift: Vec<f32> = (0..shape.channels).map(|_| random.normal() * 4.0).collect();
    for item in 0..count {
        for (layer, part) in (0..shape.layers).flat_map(|l| (0..shape.parts).map(move |p| (l, p))) {
            for (head, token) in (0..shape.heads).flat_map(|h| (0..shape.page_tokens).map(move |t| (h, t))) {
                for channel in 0..shape.channels {
                    let c = channel as usize;
                    let value = match c % 9 {
                        3 => 0.0,
                        5 => shift[c],
                        _ => random.normal() * reach[c] + shift[c],
                    };
                    let at = item * shape.block() + shape.at(layer, part, head, token, channel);
                    bytes[at..at + 2].copy_from_slice(&element.from_f32(value).to_le_bytes());
                }
            }
        }
    }
    bytes
}

fn number(bytes: &[u8], element: Element, at: usize) -> f32 {
    element.to_f32(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn check(rig: &Rig, random: &mut Random, quant: &Quant, shape: Shape, codec: Codec, element: Element) {
    let image = codec.image(shape.parts, shape.heads, shape.page_tokens, shape.channels).expect("supported");
    let tokens = [shape.page_tokens, 0, random.below(1..shape.page_tokens as usize + 1) as u32];
    let count = tokens.len();
    let stride = image.bytes();
    let (item_bytes, name) = (stride * u64::from(shape.layers), format!("{codec:?} {element:?} {shape:?}"));
    let rows = numbers(random, &shape, element, count);
    let (source, images) = (rig.upload(&rows), rig.poisoned(item_bytes as usize * count));
    let base = |address: u64| -> Vec<u64> {
        (0..shape.layers * shape.parts).map(|i| address + u64::from(i) * shape.part() as u64).collect()
    };
    let bases = rig.upload(&base(source.address()));
    let items: Vec<QuantItem> = (0..count)
        .map(|i| QuantItem {
            rows: (i * shape.block()) as u64,
            image: images.address() + i as u64 * item_bytes,
            tokens: tokens[i],
            reserved: 0,
        })
        .collect();
    let (items, refused) = (rig.pinned(&items), rig.poisoned(4 * count));
    let mut params = shape.params(codec, count, stride);
    (params.layout.bases, params.items, params.refused) = (bases.address(), items.address(), refused.address());
    // SAFETY: all memory lives until `finish` has returned.
    unsafe { quant.quantize(&rig.stream, element, &params, 3) }.expect("launched");
    rig.finish();
    assert_eq!(rig.download::<u32>(&refused, count), vec![0; count], "{name}");
    let found: Vec<u8> = rig.download(&images, item_bytes as usize * count);

    // Back into poisoned memory.
    let target = rig.poisoned(rows.len());
    let target_bases = rig.upload(&base(target.address()));
    params.layout.bases = target_bases.address();
    // SAFETY: as above.
    unsafe { quant.dequantize(&rig.stream, element, &params, 64) }.expect("launched");
    rig.finish();
    let back: Vec<u8> = rig.download(&target, rows.len());
    let mut expected = vec![POISON; rows.len()];

    for (item, &tokens) in tokens.iter().enumerate() {
        for layer in 0..shape.layers {
            let at = item * item_bytes as usize + layer as usize * stride as usize;
            let device = &found[at..at + stride as usize];
            let place = |p, h, t, c| item * shape.block() + shape.at(layer, p, h, t, c);
            let host = image.quantize(tokens, |p, h, t, c| number(&rows, element, place(p, h, t, c))).expect("finite");
            for (part, head) in (0..shape.parts).flat_map(|p| (0..shape.heads).map(move |h| (p, h))) {
                for (t, c) in (0..shape.page_tokens).flat_map(|t| (0..shape.channels).map(move |c| (t, c))) {
                    let word = image.scale(device, part, head, t, c);
                    assert_eq!(word, image.scale(&host, part, head, t, c), "{name}: scale of {part} {head} {t} {c}");
                    let code = image.code(device, part, head, t, c);
                    if t >= tokens {
                        assert_eq!(code, 0, "{name}: a token that does not count");
                        continue;
                    }
                    let exact = f64::from(number(&rows, element, place(part, head, t, c)));
                    let value = image.value(device, part, head, t, c);
                    let best = image.value(&host, part, head, t, c);
                    let (_, step) = codec.zero_and_step(word);
                    // A tie may round either way, because the device multiplies by a reciprocal. No code may be worse than that.
                    let slack = 1e-4 * step + 1e-5 * exact.abs();
                    let (error, least) = ((value - exact).abs(), (best - exact).abs());
                    assert!(
                        error <= least + slack,
                        "{name}: {part} {head} {t} {c}: {exact} became {value}, not {best}"
                    );
                    let bits = element.from_f32(value as f32).to_le_bytes();
                    expected[place(part, head, t, c)..][..2].copy_from_slice(&bits);
                }
            }
        }
    }
    assert!(back == expected, "{name}: dequantised rows differ");
}

#[test]
fn blocks_are_coded_and_come_back() {
    let (rig, mut random) = (Rig::new(), Random::new());
    let quant = Quant::new(&rig.device).expect("kernels load");
    let shapes = [
        Shape { layers: 2, parts: 2, heads: 2, page_tokens: 16, channels: 64 },
        Shape { layers: 1, parts: 2, heads: 1, page_tokens: 128, channels: 32 },
        Shape { layers: 1, parts: 2, heads: 3, page_tokens: 40, channels: 256 },
        Shape { layers: 1, parts: 1, heads: 1, page_tokens: 64, channels: 576 },
    ];
    for (i, shape) in shapes.into_iter().enumerate() {
        for (j, codec) in Codec::ALL.into_iter().enumerate() {
            // Both types of every codec, and of every shape.
            let element = if (i + j) % 2 == 0 { Element::Bf16 } else { Element::F16 };
            check(&rig, &mut random, &quant, shape, codec, element);
        }
    }
}

#[test]
fn a_block_without_a_scale_is_refused_alone() {
    let (rig, mut random) = (Rig::new(), Random::new());
    let quant = Quant::new(&rig.device).expect("kernels load");
    let shape = Shape { layers: 1, parts: 2, heads: 2, page_tokens: 16, channels: 64 };
    let element = Element::Bf16;
    for codec in Codec::ALL {
        let mut rows = numbers(&mut random, &shape, element, 4);
        // The last is too large for a binary16 scale, but not for fp8's.
        for (item, part, bad) in [(0, 0, f32::NAN), (1, 1, f32::NEG_INFINITY), (2, 1, 1e30)] {
            let (head, token, channel) =
                (random.below(0..2) as u32, random.below(0..16) as u32, random.below(0..64) as u32);
            let at = item * shape.block() + shape.at(0, part, head, token, channel);
            rows[at..at + 2].copy_from_slice(&element.from_f32(bad).to_le_bytes());
        }
        let stride = codec.image(2, 2, 16, 64).expect("supported").bytes();
        let (source, images) = (rig.upload(&rows), rig.poisoned(4 * stride as usize));
        let bases = rig.upload(&[source.address(), source.address() + shape.part() as u64]);
        let items: Vec<QuantItem> = (0..4)
            .map(|i| QuantItem {
                rows: (i * shape.block()) as u64,
                image: images.address() + i as u64 * stride,
                tokens: 16,
                reserved: 0,
            })
            .collect();
        let (items, refused) = (rig.upload(&items), rig.poisoned(16));
        let mut params = shape.params(codec, 4, stride);
        (params.layout.bases, params.items, params.refused) = (bases.address(), items.address(), refused.address());
        // SAFETY: all memory lives until `finish` has returned.
        unsafe { quant.quantize(&rig.stream, element, &params, 64) }.expect("launched");
        rig.finish();
        let large = u32::from(codec != Codec::Fp8);
        assert_eq!(rig.download::<u32>(&refused, 4), [1, 1, large, 0], "{codec:?}");

        // A lane that failed emits nothing.
        let (images, status) = (rig.poisoned(4 * stride as usize), rig.upload(&[5u32]));
        let items: Vec<QuantItem> = (0..4)
            .map(|i| QuantItem { rows: 0, image: images.address() + i * stride, tokens: 16, reserved: 0 })
            .collect();
        let items = rig.upload(&items);
        (params.items, params.status) = (items.address(), status.address());
        // SAFETY: as above.
        unsafe { quant.quantize(&rig.stream, element, &params, 64) }.expect("launched");
        rig.finish();
        let bytes = 4 * stride as usize;
        assert!(rig.download::<u8>(&images, bytes) == vec![POISON; bytes], "{codec:?}: a failed lane wrote");
    }
}
