//! Invalid launches are refused before anything is enqueued.

use crate::case::{Case, config};
use crate::common::Rng;
use kvtide_kernels::launch::attention::{Attention, Batch, Mass};
use kvtide_kernels::reference::{Element, attention::Layout};

#[test]
fn refusals_name_what_and_why() {
    let case = Case::new(&mut Rng::seeded(), config(Element::F16, Layout::Heads { head_dim: 64 }, 2, 4, 16), false);
    let mut attention = case.attention();
    let good = case.batch;
    // SAFETY: nothing is enqueued.
    let refused =
        |attention: &Attention, batch: Batch| unsafe { attention.whole(&case.stream, &batch) }.unwrap_err().to_string();
    assert_eq!(refused(&attention, Batch { q: 0, ..good }), "queries: its address is 0");
    assert!(refused(&attention, Batch { out: good.out + 8, ..good }).contains("not a multiple of 16"));
    assert!(refused(&attention, Batch { page_stride: 4096, ..good }).starts_with("bytes between pages"));
    assert!(refused(&attention, Batch { seqs: 6, ..good }).starts_with("sequences: 6"));
    assert!(refused(&attention, Batch { q_stride: 8, ..good }).starts_with("elements between queries"));
    assert!(refused(&attention, Batch { table_stride: 5, ..good }).starts_with("columns of the block table"));
    assert!(refused(&attention, Batch { pages_longest: 7, ..good }).starts_with("pages of the longest"));
    // SAFETY: nothing is enqueued.
    let begun = unsafe { attention.begin(&case.stream) }.unwrap_err().to_string();
    assert_eq!(begun, "pass: this attention was set up without workspace for passes");
    assert!(Mass::new(&case.device, &attention).is_err());
    // No sequence, no work.
    // SAFETY: nothing is enqueued.
    unsafe { attention.whole(&case.stream, &Batch { seqs: 0, ..good }) }.expect("nothing to do");
}
