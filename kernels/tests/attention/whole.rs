//! All pages readable, one launch.

use crate::case::{Case, config};
use crate::common::Rng;
use kvtide_kernels::launch::attention::Config;
use kvtide_kernels::reference::{Element, attention::Layout};

pub const LATENT: Layout = Layout::Latent { latent: 512, rope: 64 };

fn near(config: Config, ragged: bool) {
    let case = Case::new(&mut Rng::seeded(), config, ragged);
    let attention = case.attention();
    let first = case.whole(&attention);
    case.check(&first, &case.reference());
    // The last block combines: the bits do not depend on which block that is.
    assert!(case.whole(&attention) == first, "two runs differ: {config:?}");
}

fn heads(element: Element, head_dim: usize, kv_heads: u32, group: u32, page_tokens: u32) -> Config {
    config(element, Layout::Heads { head_dim }, kv_heads, group, page_tokens)
}

#[test]
fn decode_of_every_head_dim_is_near_f64() {
    for (head_dim, kv_heads, group, page_tokens) in [(32, 2, 8, 16), (64, 3, 3, 32), (128, 2, 4, 64), (256, 1, 1, 16)] {
        near(heads(Element::Bf16, head_dim, kv_heads, group, page_tokens), false);
        near(heads(Element::F16, head_dim, kv_heads, group, page_tokens), false);
    }
}

#[test]
fn decode_of_every_page_size_is_near_f64() {
    for (page_tokens, group) in [(16, 1), (48, 2), (80, 5), (96, 7), (112, 8), (128, 6)] {
        near(heads(Element::Bf16, 32, 1, group, page_tokens), false);
    }
}

#[test]
fn decode_of_every_group_is_near_f64() {
    for group in 1..=16 {
        near(heads(Element::F16, 32, 1, group, 16), false);
    }
    near(heads(Element::Bf16, 128, 1, 16, 16), false);
    near(heads(Element::F16, 256, 1, 12, 16), false);
}

#[test]
fn many_chunks_are_combined_in_two_steps() {
    // 40 chunks: groups of 16, 16 and 8.
    near(Config { pages: 40, chunk_tokens: 16, ..heads(Element::Bf16, 32, 2, 4, 16) }, false);
    near(Config { pages: 33, chunk_tokens: 16, ..heads(Element::F16, 32, 1, 12, 16) }, false);
}

/// More units of work than the emulated device runs blocks at a time, of sequences of very different lengths. Up to 32 sequences
/// are found by their lane alone, more by a lane and its sequences' lengths, more than 1,024 in several steps.
#[test]
fn ragged_batches_of_many_sequences_are_near_f64() {
    let mut rng = Rng::seeded();
    for (seqs, pages, heads_of_kv, window) in [(30, 40, 2, 0), (70, 24, 1, 40), (1100, 2, 1, 0)] {
        let config = Config {
            seqs,
            pages,
            chunk_tokens: 16,
            window,
            q_tokens: if seqs == 70 { 3 } else { 1 },
            ..heads(Element::Bf16, 32, heads_of_kv, 2, 16)
        };
        let most = pages as usize * 16;
        let length = |i: u32, rng: &mut Rng| if i.is_multiple_of(5) { 0 } else { 1 + rng.below(most) as i32 };
        let lengths: Vec<i32> = (0..seqs).map(|i| length(i, &mut rng)).collect();
        let mut case = Case::with(&mut rng, config, lengths, seqs == 70, 0.0);
        let attention = case.attention();
        let first = case.whole(&attention);
        case.check(&first, &case.reference());
        // The lengths alone decide about the work: a tighter bound for the longest sequence changes nothing.
        let longest = *case.lengths.iter().max().expect("a sequence");
        case.batch.pages_longest = (longest as u32).div_ceil(16);
        assert!(case.whole(&attention) == first, "{config:?}");
    }
}

#[test]
fn windows_and_verify_are_near_f64() {
    near(Config { window: 20, ..heads(Element::F16, 64, 2, 2, 16) }, false);
    near(Config { window: 37, q_tokens: 3, ..heads(Element::Bf16, 32, 2, 3, 16) }, true);
    near(Config { q_tokens: 4, ..heads(Element::F16, 128, 1, 4, 16) }, false);
    near(Config { q_tokens: 9, pages: 4, ..heads(Element::Bf16, 64, 1, 7, 32) }, true);
}

#[test]
fn prefill_is_near_f64() {
    near(Config { q_tokens: 40, pages: 3, ..heads(Element::Bf16, 64, 1, 3, 32) }, true);
    near(Config { q_tokens: 66, pages: 5, window: 30, ..heads(Element::F16, 32, 2, 1, 16) }, false);
    near(Config { q_tokens: 20, pages: 2, ..heads(Element::F16, 128, 1, 4, 64) }, false);
    near(Config { q_tokens: 34, pages: 3, ..heads(Element::Bf16, 256, 1, 2, 16) }, true);
}

#[test]
fn latent_vectors_are_near_f64() {
    near(config(Element::Bf16, LATENT, 1, 16, 16), false);
    near(Config { q_tokens: 2, pages: 3, ..config(Element::F16, LATENT, 1, 20, 32) }, true);
}

#[test]
fn without_a_table_pages_lie_in_order() {
    let mut rng = Rng::seeded();
    let mut case = Case::new(&mut rng, heads(Element::Bf16, 32, 1, 4, 16), false);
    // Sequence s reads frames s · pages + i.
    let attention = case.attention();
    let (pages, columns) = (case.config.pages, case.batch.table_stride);
    let frame = |i: u32| (i / columns * pages + (i % columns).min(pages - 1)) as i32;
    case.set_table((0..columns * case.batch.seqs).map(frame).collect());
    let by_table = case.whole(&attention);
    case.batch.block_table = 0;
    case.batch.table_stride = pages;
    assert!(case.whole(&attention) == by_table);
}

#[test]
fn an_unreadable_page_silences_its_sequence_alone() {
    let mut rng = Rng::seeded();
    for config in [
        heads(Element::Bf16, 32, 2, 4, 16),
        Config { q_tokens: 70, ..heads(Element::Bf16, 32, 1, 1, 16) },
        config(Element::F16, LATENT, 1, 5, 16),
    ] {
        let mut case = Case::new(&mut rng, config, false);
        let attention = case.attention();
        let all = case.whole(&attention);
        let readable = case.table.clone();
        let mut table = readable.clone();
        table[3 * case.batch.table_stride as usize] = -1; // its first page, which every query sees
        case.set_table(table);
        let without = case.whole(&attention);
        let tasks = all.emitted.len() / 5;
        for (task, &flag) in without.emitted.iter().enumerate() {
            assert_eq!(flag, u32::from(task / tasks != 3), "task {task} of {}", all.emitted.len());
        }
        let rows = case.q_starts().to_vec();
        for (token, (got, before)) in
            without.out.chunks(case.out_stride()).zip(all.out.chunks(case.out_stride())).enumerate()
        {
            let silent = (rows[3]..rows[4]).contains(&token);
            assert!(if silent { got.iter().all(|&x| x == 0x7f7f) } else { got == before }, "token {token}: {config:?}");
        }
        // No state is left: with the page back the result is as before.
        case.set_table(readable);
        assert!(case.whole(&attention) == all, "{config:?}");
    }
}

#[test]
fn a_failed_lane_and_too_long_a_sequence_emit_nothing() {
    let mut rng = Rng::seeded();
    for config in [
        heads(Element::F16, 64, 1, 4, 16),
        Config { q_tokens: 66, ..heads(Element::F16, 32, 1, 1, 16) },
        config(Element::F16, LATENT, 1, 4, 16),
    ] {
        let case = Case::new(&mut rng, config, false);
        let attention = case.attention();
        let all = case.whole(&attention);
        case.set_status(7);
        let failed = case.whole(&attention);
        assert!(failed.emitted.iter().all(|&flag| flag == 0) && failed.out.iter().all(|&x| x == 0x7f7f), "{config:?}");
        case.set_status(0);
        assert!(case.whole(&attention) == all);
        // Sequence 3 has one page more than this launch supports; others may have, too.
        let longest = case.config.pages - 1;
        let mut short = case;
        short.config.pages = longest;
        short.batch.pages_longest = longest;
        let attention = short.attention();
        let cut = short.whole(&attention);
        let tasks = cut.emitted.len() / 5;
        let tokens = (config.page_tokens * longest) as i32;
        for (task, &flag) in cut.emitted.iter().enumerate() {
            assert_eq!(flag, u32::from(short.lengths[task / tasks] <= tokens), "task {task}: {config:?}");
        }
    }
}
