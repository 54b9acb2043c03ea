//! Invalid arguments are refused before a launch, with a message that names the cause.

use crate::rig::Rig;
use kvtide_kernels::launch::{Append, Boundary, Crc, CrcList, Gather};
use kvtide_kernels::params::*;

/// An address that no refused launch may read.
const NOWHERE: u64 = 0x1000;

fn assert_says(result: kvtide_kernels::Result<()>, words: &str) {
    let error = result.expect_err(words).to_string();
    assert!(error.contains(words), "{error:?} does not say {words:?}");
}

#[test]
fn boundaries() {
    let rig = Rig::new();
    let boundary = Boundary::new(&rig.device).expect("kernels load");
    let good =
        BoundaryApplyParams { table: NOWHERE, updates: NOWHERE, count: 3, mask: 7, pages: 9, ..Default::default() };
    let apply = |p: BoundaryApplyParams| {
        // SAFETY: refused or empty: nothing is launched.
        unsafe { boundary.apply(&rig.stream, &p) }
    };
    assert_says(apply(BoundaryApplyParams { table: 0, ..good }), "page table: its address is 0");
    assert_says(apply(BoundaryApplyParams { updates: NOWHERE + 4, ..good }), "updates: 0x1004 is not a multiple of 8");
    assert_says(apply(BoundaryApplyParams { words: NOWHERE + 8, ..good }), "not a multiple of 16");
    assert_says(apply(BoundaryApplyParams { mask: 6, ..good }), "a power of two");
    assert_says(apply(BoundaryApplyParams { count: 9, ..good }), "9 is not within 0 and 8");
    apply(BoundaryApplyParams { table: 0, count: 0, ..good }).expect("nothing to do");

    let good = BoundaryTablesParams {
        table: NOWHERE,
        block_ids: NOWHERE,
        lengths: NOWHERE,
        misses: NOWHERE,
        seqs: 1,
        max_blocks: 1,
        planes: 2,
        plane_count: 1,
        page_tokens: 16,
        blocks: 5,
        ..Default::default()
    };
    let tables = |p: BoundaryTablesParams| {
        // SAFETY: as above.
        unsafe { boundary.tables(&rig.stream, &p) }
    };
    assert_says(tables(BoundaryTablesParams { plane: 2, ..good }), "plane: 3 is not within 1 and 2");
    assert_says(tables(BoundaryTablesParams { misses: 0, ..good }), "block tables or miss bits: its address is 0");
    assert_says(tables(BoundaryTablesParams { page_tokens: 0, ..good }), "tokens of a page");
    assert_says(tables(BoundaryTablesParams { blocks: u32::MAX, ..good }), "entries of the page table");
    assert_says(tables(BoundaryTablesParams { seqs: u32::MAX, max_blocks: 64, ..good }), "words of miss bits");
    tables(BoundaryTablesParams { seqs: 0, table: 0, ..good }).expect("nothing to do");
}

#[test]
fn appends() {
    let rig = Rig::new();
    let append = Append::new(&rig.device).expect("kernels load");
    let part = AppendPart {
        source: NOWHERE,
        token_stride: 64,
        head_stride: 64,
        heads: 1,
        row_bytes: 64,
        page_token_stride: 64,
        ..Default::default()
    };
    let good = AppendParams {
        parts: [part, AppendPart::default()],
        table: NOWHERE,
        block_ids: NOWHERE,
        lengths: NOWHERE,
        pages: NOWHERE,
        stride: 1024,
        rows: 2,
        seqs: 2,
        max_blocks: 1,
        blocks: 4,
        planes: 1,
        page_tokens: 16,
        frames: 4,
        ..Default::default()
    };
    let run = |p: AppendParams| {
        // SAFETY: refused or empty: nothing is launched.
        unsafe { append.append(&rig.stream, &p) }
    };
    let with = |part: AppendPart| AppendParams { parts: [part, AppendPart::default()], ..good };
    assert_says(run(AppendParams { stride: 1008, ..good }), "it ends at byte 1024, frames are 1008 bytes apart");
    assert_says(run(with(AppendPart { source: NOWHERE + 8, ..part })), "source of new rows: 0x1008");
    assert_says(run(with(AppendPart { row_bytes: 40, ..part })), "bytes of a row");
    assert_says(run(AppendParams { seqs: 1, ..good }), "sequences: 1 is not within 2");
    assert_says(run(AppendParams { pages: 0, ..good }), "pages: its address is 0");
    run(AppendParams { rows: 0, pages: 0, ..good }).expect("nothing to do");
    run(with(AppendPart { heads: 0, ..part })).expect("nothing to do");
}

#[test]
fn copies() {
    let rig = Rig::new();
    let gather = Gather::new(&rig.device).expect("kernels load");
    // SAFETY: refused or empty: nothing is launched; the same holds below.
    let list =
        |fragments, count, bytes, blocks| unsafe { gather.copy_list(&rig.stream, fragments, count, bytes, blocks) };
    assert_says(list(0, 1, 16, 1), "list of fragments: its address is 0");
    assert_says(list(NOWHERE, 1, 16, 0), "blocks: 0 is not within");
    assert_says(list(NOWHERE, u32::MAX, 8192, 1), "pieces of a copy");
    list(0, 0, 16, 1).expect("nothing to do");

    let layout = GatherLayout { bases: NOWHERE, head_stride: 64, token_stride: 64 };
    let good = GatherParams {
        from: layout,
        to: layout,
        items: NOWHERE,
        count: 1,
        layers: 1,
        parts: 2,
        heads: 1,
        tokens: 16,
        row_bytes: 64,
        ..Default::default()
    };
    // SAFETY: as above.
    let blocks = |p: GatherParams| unsafe { gather.gather(&rig.stream, &p, 4) };
    assert_says(blocks(GatherParams { parts: 3, ..good }), "parts: 3");
    assert_says(blocks(GatherParams { row_bytes: 8, ..good }), "bytes of a row");
    assert_says(blocks(GatherParams { to: GatherLayout { token_stride: 24, ..layout }, ..good }), "stride of tokens");
}

#[test]
fn sums() {
    let rig = Rig::new();
    let crc = Crc::new(&rig.device).expect("kernels load");
    let list = CrcList { items: NOWHERE, sums: NOWHERE, count: 1, bytes_max: 1 << 32 };
    // SAFETY: refused: nothing is launched.
    assert_says(unsafe { crc.crc32c(&rig.stream, &list) }, "bytes of a page: 4294967296");
}
