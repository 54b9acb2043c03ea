//! Pages in passes: the same bits as in one launch.

use crate::case::{Case, bytes_of, config};
use crate::common::{Rng, buffer};
use crate::whole::LATENT;
use kvtide_kernels::launch::attention::Config;
use kvtide_kernels::reference::{Element, attention::Layout};

fn same_bits(config: Config, ragged: bool) {
    let mut rng = Rng::seeded();
    let swing = if config.layout == LATENT { 0.0 } else { 512.0 };
    let case = Case::swinging(&mut rng, Config { passes: true, ..config }, ragged, swing);
    let mut attention = case.attention();
    let whole = case.whole(&attention);
    // Twice: results of the first round in the workspace must not count any more.
    for round in 0..2 {
        let mut items = case.items(&mut rng);
        // The last pass contains a page that a query certainly sees: the longest sequence's last one.
        let needed = items.iter().position(|item| *item == [3, config.pages - 1]).expect("it has all pages");
        let end = items.len() - 1;
        items.swap(needed, end);
        let list = buffer(&case.device, bytes_of(&items));
        case.poison();
        // SAFETY: all memory lives until the launches have ended, which `written` waits for.
        unsafe { attention.begin(&case.stream) }.expect("begun");
        let mut at = 0;
        while at < end {
            let count = 1 + rng.below(end - at);
            // SAFETY: as above.
            unsafe { attention.part(&case.stream, &case.batch, list.address() + 8 * at as u64, count as u32) }
                .expect("launched");
            at += count;
        }
        // SAFETY: as above.
        unsafe { attention.merge(&case.stream, &case.batch) }.expect("launched");
        let incomplete = case.written(&attention);
        assert!(incomplete.emitted.contains(&0), "round {round}: a page was missing");
        // SAFETY: as above.
        unsafe { attention.part(&case.stream, &case.batch, list.address() + 8 * end as u64, 1) }.expect("launched");
        // SAFETY: as above.
        unsafe { attention.merge(&case.stream, &case.batch) }.expect("launched");
        let merged = case.written(&attention);
        assert!(merged == whole, "round {round}: {config:?}");
    }
}

fn heads(element: Element, head_dim: usize, kv_heads: u32, group: u32, page_tokens: u32) -> Config {
    config(element, Layout::Heads { head_dim }, kv_heads, group, page_tokens)
}

#[test]
fn decode_in_passes_gives_the_same_bits() {
    // Chunks of more pages than streams, so that the order of folds matters.
    same_bits(Config { chunk_tokens: 96, ..heads(Element::Bf16, 128, 2, 4, 16) }, false);
    same_bits(Config { chunk_tokens: 192, ..heads(Element::F16, 64, 1, 11, 32) }, false);
    same_bits(Config { chunk_tokens: 96, ..heads(Element::F16, 256, 1, 8, 16) }, false);
    same_bits(Config { pages: 20, chunk_tokens: 96, ..heads(Element::F16, 32, 2, 8, 16) }, false);
    same_bits(heads(Element::Bf16, 32, 1, 3, 16), false);
}

#[test]
fn verify_and_prefill_in_passes_give_the_same_bits() {
    same_bits(Config { q_tokens: 5, ..heads(Element::Bf16, 32, 1, 3, 16) }, true);
    same_bits(Config { q_tokens: 30, pages: 3, ..heads(Element::F16, 64, 1, 3, 32) }, true);
    same_bits(Config { q_tokens: 66, pages: 5, ..heads(Element::Bf16, 32, 1, 1, 16) }, false);
}

#[test]
fn latent_vectors_in_passes_give_the_same_bits() {
    same_bits(config(Element::Bf16, LATENT, 1, 16, 16), false);
    same_bits(Config { q_tokens: 2, pages: 3, ..config(Element::F16, LATENT, 1, 12, 32) }, false);
}

/// A page that is not readable when its pass runs gives no result, even if it is listed.
#[test]
fn a_listed_page_that_is_not_readable_counts_as_missing() {
    let mut rng = Rng::seeded();
    let mut case = Case::new(&mut rng, Config { passes: true, ..heads(Element::Bf16, 32, 1, 4, 16) }, false);
    let mut attention = case.attention();
    let items = case.items(&mut rng);
    let list = buffer(&case.device, bytes_of(&items));
    let absent = 3 * case.batch.table_stride as usize + 1;
    let mut table = case.table.clone();
    table[absent] = -1;
    case.set_table(table);
    case.poison();
    // SAFETY: all memory lives until the launches have ended, which `written` waits for.
    unsafe {
        attention.begin(&case.stream).expect("begun");
        attention.part(&case.stream, &case.batch, list.address(), items.len() as u32).expect("launched");
        attention.merge(&case.stream, &case.batch).expect("launched");
    }
    assert_eq!(case.written(&attention).emitted, [1, 1, 1, 0, 1]);
}
