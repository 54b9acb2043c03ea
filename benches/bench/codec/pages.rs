//! Real pages: the KV of the demo's model over its text, in the layouts of engines.

use super::super::BenchError;
use crate::demo::attention::{HEAD_DIM, KV_HEADS, PAGE_TOKENS, Page, TILE};
use crate::demo::kv::{KvStore, Plain};
use crate::demo::model::{CONFIG_JSON, Decoder, Scratch, WEIGHTS};
use crate::demo::prompt::prompt;
use zerocopy::IntoBytes;

/// Tokens of a prefill chunk.
const CHUNK: usize = 256;

/// Element type of the KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    F32,
    /// The upper half of an f32, rounded to nearest even.
    Bf16,
}

/// Layout of pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// Key in the report.
    pub key: &'static str,
    /// Label in the report.
    pub what: &'static str,
    numbers: Number,
    tokens: usize,
    /// The demo's page layout; otherwise keys, then values, token by token, as in paged attention kernels.
    tiled: bool,
}

/// The measured layouts.
pub(super) const FORMS: [Form; 4] = [
    Form { key: "f32_64", what: "f32, 64 tokens, demo layout", numbers: Number::F32, tokens: 64, tiled: true },
    Form { key: "bf16_64", what: "bf16, 64 tokens, demo layout", numbers: Number::Bf16, tokens: 64, tiled: true },
    Form { key: "bf16_rows_64", what: "bf16, 64 tokens, row by row", numbers: Number::Bf16, tokens: 64, tiled: false },
    Form {
        key: "bf16_rows_256",
        what: "bf16, 256 tokens, row by row",
        numbers: Number::Bf16,
        tokens: 256,
        tiled: false,
    },
];

/// The KV of a prompt: the pages of every plane, plane after plane.
pub(super) struct Kv {
    pages: Vec<Page>,
    pages_a_plane: usize,
}

impl Kv {
    /// Prefill the last `tokens` tokens of the demo's text, in whole pages.
    pub fn compute(tokens: usize) -> Result<Kv, BenchError> {
        let odd = |error: String| BenchError::Odd(error);
        let decoder = Decoder::load(CONFIG_JSON, WEIGHTS).map_err(|e| odd(e.to_string()))?;
        let text = prompt(None, tokens).map_err(|e| odd(e.to_string()))?;
        let config = decoder.config().clone();
        let plain = Plain::new(config.num_hidden_layers, tokens);
        let failed = |source| BenchError::System { tried: "allocate memory for the KV".into(), source };
        let mut store = plain.map_err(failed)?;
        let mut scratch = Scratch::new(&config, CHUNK, tokens);
        let mut logits = vec![0.0; CHUNK * config.vocab_size];
        for (chunk, start) in text.chunks(CHUNK).zip((0..).step_by(CHUNK)) {
            let logits = &mut logits[..chunk.len() * config.vocab_size];
            let Ok(()) = decoder.forward(&mut scratch, &mut store, chunk, start, logits);
        }
        let mut pages = Vec::new();
        for plane in 0..config.num_hidden_layers {
            let Ok(()) = store.visit(plane, |_, page| pages.push(page.clone()));
        }
        Ok(Kv { pages, pages_a_plane: tokens / PAGE_TOKENS })
    }

    /// Return the pages in a layout, concatenated, and the bytes of one.
    pub fn pages(&self, form: Form) -> (Vec<u8>, usize) {
        let mut bytes = Vec::new();
        let together = form.tokens / PAGE_TOKENS;
        for plane in self.pages.chunks(self.pages_a_plane) {
            for pages in plane.chunks_exact(together) {
                if form.tiled {
                    let numbers = pages.iter().flat_map(|page| page.as_bytes().as_chunks::<4>().0);
                    numbers.for_each(|number| form.push(&mut bytes, f32::from_ne_bytes(*number)));
                } else {
                    for part in [key, value] {
                        for (page, slot) in pages.iter().flat_map(|page| (0..PAGE_TOKENS).map(move |slot| (page, slot)))
                        {
                            for (head, channel) in (0..KV_HEADS).flat_map(|head| (0..HEAD_DIM).map(move |c| (head, c)))
                            {
                                form.push(&mut bytes, part(page, head, slot, channel));
                            }
                        }
                    }
                }
            }
        }
        let width = if form.numbers == Number::F32 { 4 } else { 2 };
        (bytes, form.tokens * KV_HEADS * HEAD_DIM * 2 * width)
    }
}

fn key(page: &Page, head: usize, slot: usize, channel: usize) -> f32 {
    page.heads[head].keys[slot / TILE][channel][slot % TILE]
}

fn value(page: &Page, head: usize, slot: usize, channel: usize) -> f32 {
    page.heads[head].values[channel / TILE][slot][channel % TILE]
}

impl Form {
    fn push(self, bytes: &mut Vec<u8>, number: f32) {
        match self.numbers {
            Number::F32 => bytes.extend(number.to_le_bytes()),
            Number::Bf16 => bytes.extend(half::bf16::from_f32(number).to_le_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_holds_the_same_numbers() {
        let kv = Kv::compute(512).unwrap();
        let (demo, page) = kv.pages(FORMS[0]);
        assert_eq!((page, demo.len() / page), (Page::BYTES, 6 * 512 / PAGE_TOKENS));
        let (tiled, _) = kv.pages(FORMS[1]);
        let rounded: Vec<[u8; 2]> = demo
            .as_chunks::<4>()
            .0
            .iter()
            .map(|number| half::bf16::from_f32(f32::from_le_bytes(*number)).to_le_bytes())
            .collect();
        assert_eq!(tiled.as_chunks::<2>().0, rounded);
        let sorted = |bytes: &[u8]| {
            let mut numbers: Vec<[u8; 2]> = bytes.as_chunks::<2>().0.to_vec();
            numbers.sort_unstable();
            numbers
        };
        for form in &FORMS[2..] {
            let (rows, page) = kv.pages(*form);
            assert!(rows.len().is_multiple_of(page) && sorted(&rows) == sorted(&tiled), "{}", form.key);
        }
    }
}
