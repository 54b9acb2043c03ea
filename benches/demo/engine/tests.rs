//! Tests of the comparison with stores that simulate faults.

use std::convert::Infallible;

use super::{Comparison, Logits, Run};
use crate::demo::attention::Page;
use crate::demo::kv::{KvStore, Plain};
use crate::demo::model::{CONFIG_JSON, Decoder, Scratch, WEIGHTS};
use crate::demo::prompt::prompt;
use crate::demo::sizes::{CHUNK, Sizes};

const SIZES: Sizes = Sizes { planes: 6, prefill: 200, decode: 12, page_bytes: Page::BYTES };

/// A plain array that shows its pages in a different order at every visit, and can flip one bit.
struct Unsteady {
    inner: Plain,
    visits: usize,
    /// Visit, page and channel at which a bit of the first token's key flips. The bit changes about half of the value, because a
    /// lower bit may be lost in the rounding of a score.
    flip: Option<(usize, usize, usize)>,
}

impl KvStore for Unsteady {
    type Error = Infallible;

    fn begin(&mut self, tokens: usize) -> Result<(), Infallible> {
        self.inner.begin(tokens)
    }

    fn tail(&mut self, plane: usize, index: usize) -> Result<&mut Page, Infallible> {
        self.inner.tail(plane, index)
    }

    fn visit(&mut self, plane: usize, mut read: impl FnMut(usize, &Page)) -> Result<(), Infallible> {
        let mut pages = Vec::new();
        self.inner.visit(plane, |index, page| pages.push((index, page.clone())))?;
        if let Some((visit, index, channel)) = self.flip
            && visit == self.visits
        {
            pages[index].1.heads[0].flip(0, channel, 1 << 22);
        }
        self.visits += 1;
        let turn = self.visits % pages.len();
        pages.rotate_left(turn);
        pages.iter().for_each(|(index, page)| read(*index, page));
        Ok(())
    }

    fn end(&mut self) -> Result<(), Infallible> {
        self.inner.end()
    }
}

fn plain() -> Plain {
    Plain::new(SIZES.planes, SIZES.tokens()).unwrap()
}

fn decode<S: KvStore<Error = Infallible>>(decoder: &Decoder, store: S, mut see: impl FnMut(usize, &[f32])) -> Vec<u16> {
    let mut scratch = Scratch::new(decoder.config(), CHUNK, SIZES.tokens());
    let mut run = Run::new(decoder, store);
    let Ok(_) = run.prefill(&mut scratch, &prompt(None, SIZES.prefill).unwrap(), &mut see);
    let mut tokens = Vec::new();
    for _ in 0..SIZES.decode {
        let Ok((token, position, logits)) = run.step(&mut scratch);
        see(position, logits);
        tokens.push(token);
    }
    assert_eq!(run.position(), SIZES.tokens());
    tokens
}

/// Run over a store and compare with the plain array.
fn comparison(flip: Option<(usize, usize, usize)>) -> Comparison {
    let decoder = Decoder::load(CONFIG_JSON, WEIGHTS).unwrap();
    let mut reference = Logits::new(SIZES.tokens(), decoder.config().vocab_size);
    let tokens = decode(&decoder, plain(), |start, rows| reference.keep(start, rows));
    let mut comparison = Comparison::default();
    let store = Unsteady { inner: plain(), visits: 0, flip };
    let found = decode(&decoder, store, |start, rows| reference.compare(start, rows, &mut comparison));
    assert_eq!(comparison.compared, (SIZES.tokens() * decoder.config().vocab_size) as u64);
    assert!(flip.is_some() || tokens == found);
    comparison
}

#[test]
fn the_order_in_which_pages_come_changes_no_bit() {
    let comparison = comparison(None);
    assert!(comparison.identical(SIZES.tokens() * 257), "{comparison:?}");
}

#[test]
fn one_bit_of_one_key_read_once_shows() {
    // The last decode step but one, plane 2, the first page.
    let steps = SIZES.steps().count();
    let flip = ((steps - 2) * SIZES.planes + 2, 0, 9);
    let comparison = comparison(Some(flip));
    assert!(comparison.different > 0);
    assert_eq!(comparison.first.unwrap().position, SIZES.tokens() - 2, "earlier positions are correct");
}

#[test]
fn a_rewound_run_decodes_the_same_again() {
    let decoder = Decoder::load(CONFIG_JSON, WEIGHTS).unwrap();
    let mut scratch = Scratch::new(decoder.config(), CHUNK, SIZES.tokens());
    let mut run = Run::new(&decoder, plain());
    let Ok(_) = run.prefill(&mut scratch, &prompt(None, SIZES.prefill).unwrap(), |_, _| {});
    let first = run.next();
    let mut decode = |run: &mut Run<'_, Plain>| -> Vec<Vec<u32>> {
        let step = |_| run.step(&mut scratch).map(|(_, _, logits)| logits.iter().map(|l| l.to_bits()).collect());
        let Ok(rows) = (0..SIZES.decode).map(step).collect::<Result<_, Infallible>>();
        rows
    };
    let once = decode(&mut run);
    run.rewind(SIZES.prefill, first);
    assert!(once == decode(&mut run));
    assert_eq!(run.step_times().len(), SIZES.decode);
}
