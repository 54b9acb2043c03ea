//! Each page's share of a sequence's attention.

use crate::case::{Case, config, values};
use crate::common::{Rng, buffer, done};
use crate::whole::LATENT;
use kvtide_kernels::launch::attention::{Attention, Config, DECODE_ROWS_MAX, Mass, SCORE_WORDS, TOP_MAX, scores};
use kvtide_kernels::reference::{Element, attention::Layout};
use kvtide_wire::score::Scores;

fn reduced(case: &Case, attention: &Attention, top: usize) -> Vec<Option<Scores>> {
    let mass = Mass::new(&case.device, attention).expect("a kernel and workspace");
    let seqs = case.batch.seqs as usize;
    let out = buffer(&case.device, &vec![0x7f; 8 * seqs * SCORE_WORDS]);
    // SAFETY: all memory lives until the stream is done.
    unsafe { mass.reduce(&case.stream, attention, &case.batch, (3, 99), top as u32, out.address()) }.expect("launched");
    done(&case.stream);
    let words: Vec<u64> = values(&case.device, out.address(), seqs * SCORE_WORDS);
    words
        .chunks(SCORE_WORDS)
        .enumerate()
        .map(|(i, words)| scores(words.try_into().expect("words of one entry"), 10 + i as u32))
        .collect()
}

fn shares_are_right(config: Config, ragged: bool, top: usize) {
    let mut rng = Rng::seeded();
    let case = Case::new(&mut rng, Config { mass: true, ..config }, ragged);
    let mut attention = case.attention();
    if config.passes {
        case.in_passes(&mut attention, &mut rng);
    } else {
        case.whole(&attention);
    }
    let output = case.reference();
    // A logarithm of at most 12 in binary16 has units of 2^-7.
    let near = |got: f32, want: f64| got == want.ln() as f32 || (f64::from(got) - want.ln()).abs() < 0.02;
    for (seq, entry) in reduced(&case, &attention, top).into_iter().enumerate() {
        let entry = entry.expect("emitted");
        let mut want = case.with_reference(|r| if r.needed(seq).is_empty() { vec![] } else { r.mass(seq, &output) });
        want.retain(|(_, share)| *share > 0.0);
        assert_eq!((entry.seq, entry.plane, entry.step), (10 + seq as u32, 3, 99));
        assert_eq!(entry.top().len(), want.len().min(top), "sequence {seq} of {config:?}");
        let share_of =
            |page: u32| want.iter().find(|(index, _)| *index == page as usize).map_or(0.0, |(_, share)| *share);
        let mut named = 0.0;
        for (rank, entry) in entry.top().iter().enumerate() {
            assert!(near(entry.log_mass.to_f32(), share_of(entry.index)), "page {} of {seq}, {config:?}", entry.index);
            // Of two shares that are nearly equal either may come first.
            let above = want.iter().filter(|(_, share)| *share > share_of(entry.index) * 1.01).count();
            assert!(above <= rank, "page {} of sequence {seq} at rank {rank}", entry.index);
            named += share_of(entry.index);
        }
        let rest = want.iter().map(|(_, share)| share).sum::<f64>() - named;
        let rest = if want.len() <= top { 0.0 } else { rest };
        assert!(near(entry.rest.to_f32(), rest), "rest {} for ln {rest}: {config:?}", entry.rest.to_f32());
    }
}

#[test]
fn shares_of_pages_are_near_f64() {
    let heads = |dim| Layout::Heads { head_dim: dim };
    shares_are_right(config(Element::Bf16, heads(32), 2, 4, 16), false, 3);
    shares_are_right(Config { pages: 90, ..config(Element::F16, heads(32), 1, 2, 16) }, false, TOP_MAX);
    shares_are_right(Config { q_tokens: 3, window: 40, ..config(Element::F16, heads(64), 1, 5, 16) }, true, 2);
    shares_are_right(config(Element::Bf16, LATENT, 1, 3, 16), false, 4);
    shares_are_right(config(Element::Bf16, heads(32), 1, 1, 16), false, 0);
}

/// Prompts: more rows than decode's kernel supports, in one launch and in passes, with a window and prompts of all lengths.
#[test]
fn shares_of_many_queries_are_near_f64() {
    let heads = |dim| Layout::Heads { head_dim: dim };
    let many = |config: Config| Config { q_tokens: DECODE_ROWS_MAX / config.group + 3, ..config };
    shares_are_right(many(config(Element::Bf16, heads(32), 2, 4, 16)), true, 3);
    shares_are_right(many(config(Element::F16, heads(64), 1, 3, 32)), false, TOP_MAX);
    shares_are_right(Config { window: 40, ..many(config(Element::F16, heads(32), 1, 4, 16)) }, true, 2);
    shares_are_right(Config { passes: true, ..many(config(Element::Bf16, heads(32), 1, 8, 16)) }, true, 4);
}

#[test]
fn equal_pages_are_taken_in_order_and_silence_is_none() {
    let mut rng = Rng::seeded();
    let mut case = Case::new(
        &mut rng,
        Config { mass: true, ..config(Element::F16, Layout::Heads { head_dim: 32 }, 1, 4, 16) },
        false,
    );
    let stride = case.batch.table_stride as usize;
    let mut table = case.table.clone();
    let first = table[3 * stride];
    table[3 * stride..][..6].fill(first); // the same page six times
    table[4 * stride] = -1;
    case.set_table(table);
    let attention = case.attention();
    case.whole(&attention);
    let entries = reduced(&case, &attention, 4);
    let all = entries[3].as_ref().expect("emitted");
    assert_eq!(all.top().iter().map(|top| top.index).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!((all.rest.to_f32() - (2.0f32 / 6.0).ln()).abs() < 0.01);
    assert_eq!(entries[4], None);
    assert_eq!(entries[1].as_ref().expect("empty, but emitted").top().len(), 0);
}
