//! Tests of the decoder against independently computed logits, and against itself with other chunk sizes.

use safetensors::SafeTensors;

use super::{BOS, CONFIG_JSON, Decoder, Scratch, WEIGHTS};
use crate::demo::kv::Plain;

const TEXT: &[u8] = include_bytes!("../assets/text.txt");
/// Made by `golden/golden.py`, in f64, from the first `TOKENS` tokens; every 16th position.
const GOLDEN: &[u8] = include_bytes!("../golden/golden.safetensors");
const TOKENS: usize = 320;
const EVERY: usize = 16;

fn tokens() -> Vec<u16> {
    std::iter::once(BOS).chain(TEXT.iter().map(|b| u16::from(*b))).take(TOKENS).collect()
}

fn run(decoder: &Decoder, tokens: &[u16], chunk: usize) -> Vec<f32> {
    let config = decoder.config();
    let mut scratch = Scratch::new(config, chunk, tokens.len());
    let mut store = Plain::new(config.num_hidden_layers, tokens.len()).unwrap();
    let mut logits = vec![0.0; tokens.len() * config.vocab_size];
    for (i, (tokens, logits)) in tokens.chunks(chunk).zip(logits.chunks_mut(chunk * config.vocab_size)).enumerate() {
        let Ok(()) = decoder.forward(&mut scratch, &mut store, tokens, i * chunk, logits);
    }
    logits
}

#[test]
fn logits_agree_with_an_independent_implementation() {
    let decoder = Decoder::load(CONFIG_JSON, WEIGHTS).unwrap();
    let vocabulary = decoder.config().vocab_size;
    let logits = run(&decoder, &tokens(), 100);
    let golden = SafeTensors::deserialize(GOLDEN).unwrap();
    let golden = golden.tensor("logits").unwrap();
    assert_eq!(golden.shape(), [TOKENS / EVERY, vocabulary]);
    let golden = golden.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
    let rows = logits.chunks_exact(vocabulary).step_by(EVERY).flatten();
    let worst = rows.zip(golden).map(|(found, exact)| (found - exact).abs()).fold(0.0, f32::max);
    // f32 rounding through six layers, on a scale of 20.
    assert!(worst < 1e-3, "worst logit is off by {worst}");
}

#[test]
fn the_size_of_a_chunk_changes_no_bit() {
    let decoder = Decoder::load(CONFIG_JSON, WEIGHTS).unwrap();
    let tokens = &tokens()[..150];
    let bits = |chunk| run(&decoder, tokens, chunk).into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let whole = bits(150);
    assert!(whole == bits(64), "chunks of a page");
    assert!(whole == bits(7), "chunks that cross page boundaries");
    assert!(whole == bits(1), "token by token");
}
