//! A small attention trace for tests: slowly changing random queries over random keys.

use half::f16;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, serialize};
use std::collections::HashMap;

/// Tokens of a page, planes, KV heads, query heads, channels, position of the first step, steps.
pub const SIZES: [usize; 7] = [4, 3, 1, 2, 8, 160, 60];
/// Bytes of a page in bf16.
pub const PAGE_BYTES: u32 = 4 * 8 * 4;

struct Random(u64);

impl Random {
    /// Return an approximately normal number with variance 1.
    fn next(&mut self) -> f32 {
        let mut sum = -6.0;
        for _ in 0..12 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            sum += (self.0 >> 40) as f32 / (1u64 << 24) as f32;
        }
        sum
    }
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| f16::from_f32(*number).to_le_bytes()).collect()
}

/// Return the trace as a file, with changes in its metadata.
pub fn file(changes: &[(&str, &str)]) -> Vec<u8> {
    let [page_tokens, planes, kv_heads, q_heads, channels, context_start, steps] = SIZES;
    let tokens = context_start + steps;
    let pages = tokens.div_ceil(page_tokens);
    let mut random = Random(7);
    let keys: Vec<f32> = (0..planes * kv_heads * tokens * channels).map(|_| random.next()).collect();
    let mut q = vec![0.0; steps * planes * q_heads * channels];
    let each = planes * q_heads * channels;
    for i in 0..q.len() {
        let before = if i < each { 0.0 } else { 0.9 * q[i - each] };
        q[i] = before + if i < each { 3.0 } else { 1.0 } * random.next();
    }
    let mut ahead: Vec<f32> = q.iter().map(|number| number + 0.3 * random.next()).collect();
    ahead.chunks_exact_mut(each).for_each(|step| step[..q_heads * channels].fill(0.0));
    let scale = 1.0 / (channels as f32).sqrt();
    let mut mass = vec![0.0; steps * planes * kv_heads * pages];
    for (row, shares) in mass.chunks_exact_mut(pages).enumerate() {
        let (step, plane, head) = (row / (planes * kv_heads), row / kv_heads % planes, row % kv_heads);
        let group = q_heads / kv_heads;
        for query in 0..group {
            let at = ((step * planes + plane) * q_heads + head * group + query) * channels;
            let weight = |token: usize| {
                let key = ((plane * kv_heads + head) * tokens + token) * channels;
                (scale * (0..channels).map(|c| q[at + c] * keys[key + c]).sum::<f32>()).exp()
            };
            let sum: f32 = (0..=context_start + step).map(weight).sum();
            (0..=context_start + step).for_each(|t| shares[t / page_tokens] += weight(t) / sum / group as f32);
        }
    }
    let words = [
        ("page_tokens", page_tokens.to_string()),
        ("planes", planes.to_string()),
        ("kv_heads", kv_heads.to_string()),
        ("q_heads", q_heads.to_string()),
        ("head_dim", channels.to_string()),
        ("context_start", context_start.to_string()),
        ("steps", steps.to_string()),
        ("pages", pages.to_string()),
        ("softmax_scale", scale.to_string()),
    ];
    let mut words: HashMap<String, String> = words.map(|(name, word)| (name.into(), word)).into();
    words.extend(changes.iter().map(|(name, word)| (name.to_string(), word.to_string())));
    let tensors = [
        ("mass", vec![steps, planes, kv_heads, pages], bytes(&mass)),
        ("q", vec![steps, planes, q_heads, channels], bytes(&q)),
        ("q_ahead", vec![steps, planes, q_heads, channels], bytes(&ahead)),
        ("keys", vec![planes, kv_heads, tokens, channels], bytes(&keys)),
    ];
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| (*name, TensorView::new(Dtype::F16, shape.clone(), bytes).expect("shapes fit")));
    serialize(views, Some(words)).expect("names differ")
}
