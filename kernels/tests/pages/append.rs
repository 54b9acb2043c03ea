//! Append new tokens to pages: decode and prefill, separate heads and latent vectors, faults.

use crate::rig::{POISON, Rig, Rng};
use kvtide_kernels::launch::Append;
use kvtide_kernels::params::{AppendParams, AppendPart};
use kvtide_kernels::reference::append as reference;
use kvtide_kernels::reference::boundary::{Batch, Table};

const PLANES: usize = 2;
const PLANE: usize = 1;
const FIRST_FRAME: u32 = 40;
const FRAMES: usize = 48;
const MAX_BLOCKS: usize = 6;

struct Case {
    name: &'static str,
    page_tokens: usize,
    stride: usize,
    parts: Vec<AppendPart>,
    lengths: Vec<i32>,
    /// New tokens of each sequence; empty: one each, and no starts are passed.
    new: Vec<usize>,
}

/// Return K and V as an engine's fused tensor [tokens][K heads, V heads][dim], and the layout in a page of kvtide.
fn heads(page_tokens: u32, heads: u32, dim: u32) -> (Vec<AppendPart>, usize) {
    let row_bytes = 2 * dim;
    let token_stride = u64::from(2 * heads * row_bytes + 48);
    let part = |i: u32| AppendPart {
        source: u64::from(i * heads * row_bytes),
        token_stride,
        head_stride: u64::from(row_bytes),
        heads,
        row_bytes,
        page_offset: i * heads * page_tokens * row_bytes,
        page_head_stride: page_tokens * row_bytes,
        page_token_stride: row_bytes,
        reserved: 0,
    };
    (vec![part(0), part(1)], (2 * heads * page_tokens * row_bytes) as usize + 64)
}

/// Return a latent vector and a rope part that share the page's row.
fn latent(page_tokens: u32) -> (Vec<AppendPart>, usize) {
    let part = |source, row_bytes, page_offset| AppendPart {
        source,
        token_stride: 1024 + 128 + 16,
        head_stride: 0,
        heads: 1,
        row_bytes,
        page_offset,
        page_head_stride: 0,
        page_token_stride: 1152,
        reserved: 0,
    };
    (vec![part(0, 1024, 0), part(1024, 128, 1024)], 1152 * page_tokens as usize)
}

fn check(rig: &Rig, random: &mut Rng, append: &Append, case: &Case, failed: u32) {
    let seqs = case.lengths.len();
    let new = if case.new.is_empty() { vec![1; seqs] } else { case.new.clone() };
    let starts: Vec<usize> = (0..=seqs).map(|s| new[..s].iter().sum()).collect();
    let rows = starts[seqs];
    let token_stride = case.parts[0].token_stride as usize;
    let sources = random.bytes(rows * token_stride + 64);
    // Every page of the batch has its own frame, except those of the last sequence, which are absent or beyond the frames.
    let frames = random.shuffled(FRAMES);
    let mut table = vec![0u32; seqs * MAX_BLOCKS * PLANES];
    let block_ids: Vec<i32> = random.shuffled(seqs * MAX_BLOCKS).into_iter().map(|b| b as i32).collect();
    for (i, &block) in block_ids.iter().enumerate().take((seqs - 1) * MAX_BLOCKS) {
        table[block as usize * PLANES + PLANE] = 1 + FIRST_FRAME + frames[i] as u32;
    }
    let last = block_ids[(seqs - 1) * MAX_BLOCKS] as usize;
    table[last * PLANES + PLANE] = 1 + FIRST_FRAME + FRAMES as u32;

    let (on_device, pages) = (rig.upload(&sources), rig.poisoned(FRAMES * case.stride));
    let (entries, ids, lengths) = (rig.upload(&table), rig.upload(&block_ids), rig.upload(&case.lengths));
    let told: Vec<i32> = starts.iter().map(|&s| s as i32).collect();
    let (told, faults, status) = (rig.upload(&told), rig.upload(&[0u32]), rig.upload(&[failed]));
    let mut parts = [AppendPart::default(); 2];
    for (part, given) in parts.iter_mut().zip(&case.parts) {
        *part = AppendPart { source: on_device.address() + given.source, ..*given };
    }
    let params = AppendParams {
        parts,
        table: entries.address(),
        block_ids: ids.address(),
        lengths: lengths.address(),
        starts: if case.new.is_empty() { 0 } else { told.address() },
        pages: pages.address(),
        stride: case.stride as u64,
        status: status.address(),
        faults: faults.address(),
        rows: rows as u32,
        rows_per_cta: 0,
        seqs: seqs as u32,
        max_blocks: MAX_BLOCKS as u32,
        blocks: (seqs * MAX_BLOCKS) as u32,
        planes: PLANES as u32,
        plane: PLANE as u32,
        page_tokens: case.page_tokens as u32,
        first_frame: FIRST_FRAME,
        frames: FRAMES as u32,
    };
    // SAFETY: all memory lives until `finish` has returned.
    unsafe { append.append(&rig.stream, &params) }.expect("launched");
    rig.finish();
    let mut expected = vec![POISON; FRAMES * case.stride];
    let mut missed = 0;
    if failed == 0 {
        missed = reference::append(
            &mut expected,
            reference::Frames { stride: case.stride, page_tokens: case.page_tokens },
            &Table { entries: &table, planes: PLANES, first_frame: FIRST_FRAME, frames: u32::MAX },
            PLANE,
            &Batch { block_ids: &block_ids, lengths: &case.lengths, starts: &[], max_blocks: MAX_BLOCKS },
            &reference::Rows { starts: &starts, sources: &sources, parts: &case.parts },
        );
        assert!(missed > 0, "{}: the case was to have rows without a page", case.name);
    }
    assert!(rig.download::<u8>(&pages, expected.len()) == expected, "{}: pages differ", case.name);
    assert_eq!(rig.download::<u32>(&faults, 1), [missed as u32], "{}", case.name);
}

#[test]
fn rows_land_in_their_pages() {
    let (rig, mut random) = (Rig::new(), Rng::seeded());
    let append = Append::new(&rig.device).expect("kernels load");
    let (mha, mha_stride) = heads(16, 3, 32);
    let (wide, wide_stride) = heads(16, 5, 256);
    let (mla, mla_stride) = latent(16);
    let decode = vec![1, 16, 17, 0, -3, random.within(1..96) as i32, 96, 5];
    let ragged = vec![40, 1, 0, 33, 16, 96, 20];
    let new = vec![random.within(1..41), 1, 0, random.within(2..34), 16, 50, 20];
    let cases = [
        Case {
            name: "decode",
            page_tokens: 16,
            stride: mha_stride,
            parts: mha.clone(),
            lengths: decode.clone(),
            new: vec![],
        },
        Case { name: "latent", page_tokens: 16, stride: mla_stride, parts: mla.clone(), lengths: decode, new: vec![] },
        Case {
            name: "prefill",
            page_tokens: 16,
            stride: mha_stride,
            parts: mha,
            lengths: ragged.clone(),
            new: new.clone(),
        },
        Case {
            name: "wide",
            page_tokens: 16,
            stride: wide_stride,
            parts: wide,
            lengths: ragged.clone(),
            new: new.clone(),
        },
        // A verification step that was rolled back: rows beyond the sequence's tokens have no target.
        Case {
            name: "latent prefill",
            page_tokens: 16,
            stride: mla_stride,
            parts: mla,
            lengths: vec![10, 1, 0, 33, 16, 96, 20],
            new,
        },
    ];
    for case in &cases {
        check(&rig, &mut random, &append, case, 0);
    }
    check(&rig, &mut random, &append, &cases[2], 3);
}
