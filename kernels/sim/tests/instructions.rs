//! Matrix fragments, conversions, shuffles and votes, compared with the PTX ISA and the CUDA C++ guide.

mod common;

use common::{Cuda, Params};

/// As samples/instructions.cu declares it.
#[repr(C)]
struct Instruction {
    a: u64,
    b: u64,
    out: u64,
    bf16: u32,
    way: u32,
}

// SAFETY: repr(C), and the same fields.
unsafe impl Params for Instruction {}

/// A sufficiently random generator: xorshift.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Return a number from -8 to 8 in steps of 1/8, exact in both formats.
fn small(draw: &mut Draw, bf16: bool) -> (u16, f64) {
    let value = (draw.next() % 129) as f32 / 8.0 - 8.0;
    let bits = if bf16 { half::bf16::from_f32(value).to_bits() } else { half::f16::from_f32(value).to_bits() };
    (bits, f64::from(value))
}

/// Three ways to load the fragments, both formats: every element of the product equals the f64 one, because all sums are exact.
#[test]
fn products_have_the_fragments_of_the_isa() {
    let cuda = Cuda::new(&["kvt_sim_product"]);
    let mut draw = Draw(0x9e37_79b9_7f4a_7c15);
    for bf16 in [false, true] {
        for way in 0..3 {
            let a: Vec<(u16, f64)> = (0..256).map(|_| small(&mut draw, bf16)).collect();
            let b: Vec<(u16, f64)> = (0..128).map(|_| small(&mut draw, bf16)).collect();
            let bits = |m: &[(u16, f64)]| m.iter().map(|e| e.0).collect::<Vec<_>>();
            let (at_a, at_b, out) = (cuda.allocate(512), cuda.allocate(256), cuda.allocate(512));
            cuda.put(at_a, &bits(&a));
            cuda.put(at_b, &bits(&b));
            let stream = cuda.stream();
            let params = Instruction { a: at_a, b: at_b, out, bf16: bf16.into(), way };
            cuda.launch("kvt_sim_product", 1, 32, 2048, &params, stream);
            assert_eq!(cuda.finish(stream), 0);
            let product = cuda.get::<f32>(out, 128);
            for (at, &got) in product.iter().enumerate() {
                let (row, column) = (at / 8, at % 8);
                let sum: f64 = (0..16).map(|k| a[row * 16 + k].1 * b[k * 8 + column].1).sum();
                assert_eq!(f64::from(got), sum, "row {row}, column {column}, bf16 {bf16}, way {way}");
            }
        }
    }
}

#[test]
fn conversions_round_to_the_nearest_and_ties_to_even() {
    let cuda = Cuda::new(&["kvt_sim_convert"]);
    let mut draw = Draw(0x2545_f491_4f6c_dd1d);
    // All exponents, then values near the ends and the middles of each format's steps.
    let mut words: Vec<u32> = (0..200_000).map(|_| draw.next() as u32).collect();
    for step in 0..=0xff_u32 {
        for near in [0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0x7_ffff, 0x8_0000, 0x8_0001] {
            words.push((step << 23) + near);
            words.push((step << 23) + 0x10_0000 + near);
            words.push(0x8000_0000 | ((step << 23) + 0x70_0000 + near));
        }
    }
    let (at, out) = (cuda.allocate(words.len() * 4), cuda.allocate(words.len() * 4));
    cuda.put(at, &words);
    let stream = cuda.stream();
    cuda.launch(
        "kvt_sim_convert",
        16,
        128,
        0,
        &Instruction { a: at, b: 0, out, bf16: 0, way: words.len() as u32 },
        stream,
    );
    assert_eq!(cuda.finish(stream), 0);
    for (&word, halves) in words.iter().zip(cuda.get::<u32>(out, words.len())) {
        let x = f32::from_bits(word);
        if x.is_nan() {
            assert_eq!(halves, 0x7fff_7fff, "{word:#010x}: the canonical NaN");
            continue;
        }
        assert_eq!(halves as u16, half::f16::from_f32(x).to_bits(), "f16 of {x:e}");
        assert_eq!((halves >> 16) as u16, half::bf16::from_f32(x).to_bits(), "bf16 of {x:e}");
    }
}

#[test]
fn lanes_shuffle_and_vote_as_the_guide_says() {
    let cuda = Cuda::new(&["kvt_sim_lanes"]);
    let (out, stream) = (cuda.allocate(32 * 32), cuda.stream());
    cuda.launch("kvt_sim_lanes", 1, 32, 0, &Instruction { a: 0, b: 0, out, bf16: 0, way: 0 }, stream);
    assert_eq!(cuda.finish(stream), 0);
    let got = cuda.get::<u32>(out, 32 * 8);
    let thirds = (0..32).filter(|lane| lane % 3 == 0).fold(0_u32, |mask, lane| mask | 1 << lane);
    for lane in 0..32_u32 {
        let first = lane / 8 * 8;
        let expected = [
            first + 3,
            if lane % 16 >= 2 { lane - 2 } else { lane },
            if lane % 8 + 3 < 8 { lane + 3 } else { lane },
            lane ^ 5,
            thirds,
            if lane < 16 { 0xfff8 } else { 0xffe0_0000 },
            2,
            16,
        ];
        assert_eq!(got[lane as usize * 8..][..8], expected, "lane {lane}");
    }
}

#[test]
fn meetings_of_some_threads_order_their_memory() {
    let cuda = Cuda::new(&["kvt_sim_meetings"]);
    let (out, stream) = (cuda.allocate(3 * 128 * 4), cuda.stream());
    for _ in 0..20 {
        cuda.launch("kvt_sim_meetings", 3, 128, 0, &Instruction { a: 0, b: 0, out, bf16: 0, way: 0 }, stream);
        assert_eq!(cuda.finish(stream), 0);
        for (t, got) in (0..128).cycle().zip(cuda.get::<u32>(out, 3 * 128)) {
            let other = t / 64 * 64 + (t + 32) % 64;
            assert_eq!(got, (t ^ 1) + (other ^ 1) * 10 + 128, "thread {t}");
        }
    }
}
