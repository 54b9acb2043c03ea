//! A batch on the device: only changes since the last step are sent there.

use super::{
    fake::{LONG, PLANES, TOKENS},
    rig::{attached, attached_with, filled},
};
use kvtide_client::{
    Options, StepSeq,
    cuda::{Batch, BatchOptions},
};
use kvtide_wire::{geometry::PlaneKind, status::Status};

const SEQS: u32 = 4;
const MAX_BLOCKS: u32 = 5;

#[test]
fn rows_follow_the_sequences_of_each_step() {
    let (_fake, client, mut channel, mut bound) = attached();
    let seqs: Vec<u32> = [3, 1, 2].into_iter().map(|blocks| filled(&mut channel, &mut bound, blocks)).collect();
    channel.nop(LONG).expect("the daemon answers");
    let options = BatchOptions { seqs: SEQS, max_blocks: MAX_BLOCKS, table_planes: u32::from(PLANES) };
    let mut batch = Batch::new(&client, &bound.lane, options).expect("batch");
    let device = batch.device();
    let steps: [&[(usize, u64)]; 5] = [
        &[(0, 3 * TOKENS), (1, TOKENS), (2, 17)],
        &[(0, 3 * TOKENS), (2, 2 * TOKENS)],
        &[],
        &[(2, 1)],
        &[(1, 3), (2, 20), (0, 33)],
    ];
    for (number, step) in steps.iter().enumerate() {
        let step: Vec<StepSeq> = step.iter().map(|(at, tokens)| StepSeq { seq: seqs[*at], tokens: *tokens }).collect();
        bound.lane.begin(&step).expect("begin");
        batch.set(&step).expect("set");
        assert_eq!(batch.device(), device, "addresses stay");
        for plane in 0..PLANES {
            bound.lane.boundary(plane).expect("resident");
        }
        batch.tables(0..PLANES, -7).expect("built");
        let row = |at: usize| step.get(at).copied().unwrap_or_default();
        let blocks = |s: StepSeq| -> Vec<u32> {
            let all = client.seq_blocks(s.seq).unwrap_or_default();
            all.into_iter().take(s.tokens.div_ceil(TOKENS) as usize).collect()
        };
        let lengths = bound.words(device.lengths, SEQS as usize);
        assert_eq!(lengths, (0..4).map(|at| row(at).tokens as u32).collect::<Vec<_>>(), "step {number}");
        let ids = bound.words(device.block_ids, (SEQS * MAX_BLOCKS) as usize);
        let cells = (SEQS * MAX_BLOCKS) as usize;
        let tables = bound.words(device.block_tables, usize::from(PLANES) * cells);
        let misses = bound.words(device.misses, usize::from(PLANES) * SEQS as usize);
        assert!(misses.iter().all(|bits| *bits == 0), "all is resident");
        for at in 0..SEQS as usize {
            let blocks = blocks(row(at));
            for index in 0..MAX_BLOCKS as usize {
                let cell = at * MAX_BLOCKS as usize + index;
                assert_eq!(ids[cell], blocks.get(index).copied().unwrap_or(u32::MAX), "step {number}, row {at}");
                for plane in 0..PLANES {
                    let frame = blocks.get(index).and_then(|block| bound.lane.pte(*block, plane));
                    let entry = tables[usize::from(plane) * cells + cell] as i32;
                    assert_eq!(entry, frame.map_or(-7, |f| f as i32), "step {number}, row {at}, plane {plane}");
                }
            }
        }
        bound.lane.end().expect("end");
    }
}

/// A page before the window is not a miss, and every missing page within the window is.
#[test]
fn a_window_plane_misses_what_its_window_lacks() {
    const WINDOW: u32 = 20;
    let window = |options: &mut Options| options.space.planes[1].kind = PlaneKind::Window { tokens: WINDOW };
    let (fake, client, mut channel, mut bound) = attached_with(window);
    let (seq, short) = (filled(&mut channel, &mut bound, 4), filled(&mut channel, &mut bound, 1));
    channel.nop(LONG).expect("the daemon answers");
    let blocks = client.seq_blocks(seq).expect("blocks");
    for (index, plane) in [(0, 0), (0, 1), (3, 1)] {
        assert_eq!(fake.evict(blocks[index], plane), Status::Ok);
    }
    let options = BatchOptions { seqs: 2, max_blocks: MAX_BLOCKS, table_planes: 2 };
    let mut batch = Batch::new(&client, &bound.lane, options).expect("batch");
    let step = [StepSeq { seq, tokens: 4 * TOKENS }, StepSeq { seq: short, tokens: TOKENS }];
    bound.lane.begin(&step).expect("begin");
    batch.set(&step).expect("set");
    batch.tables(0..2, -1).expect("built"); // before the boundaries that would load the pages
    assert_eq!(batch.starts(0), 0, "the full plane reads all pages");
    assert_eq!(bound.words(batch.starts(1), 2), [2 * TOKENS as u32, 0], "64 - 20 tokens are in page 2");
    let device = batch.device();
    assert_eq!(bound.words(device.misses, 4), [0b0001, 0, 0b1000, 0]);
    let tables: Vec<i32> = bound.words(device.block_tables, 20).into_iter().map(|entry| entry as i32).collect();
    let shown: Vec<bool> = tables.iter().map(|entry| *entry >= 0).collect();
    let (yes, no) = (true, false);
    assert_eq!(shown[..10], [no, yes, yes, yes, no, yes, no, no, no, no]);
    assert_eq!(shown[10..], [no, no, yes, no, no, yes, no, no, no, no], "nothing before the window");
    bound.lane.end().expect("end");
}

#[test]
fn a_batch_that_cannot_be_is_refused() {
    let (_fake, client, mut channel, mut bound) = attached();
    let seq = filled(&mut channel, &mut bound, 2);
    let options = BatchOptions { seqs: 1, max_blocks: 1, table_planes: 0 };
    let other = client.lane(1).expect("lane");
    assert_eq!(Batch::new(&client, &other, options).expect_err("on no stream").status(), Status::State);
    let none = BatchOptions { seqs: 0, ..options };
    assert_eq!(Batch::new(&client, &bound.lane, none).expect_err("no rows").status(), Status::Range);
    let mut batch = Batch::new(&client, &bound.lane, options).expect("batch");
    let long = StepSeq { seq, tokens: 2 * TOKENS };
    assert_eq!(batch.set(&[long]).expect_err("two blocks").status(), Status::Range);
    let short = StepSeq { seq, tokens: TOKENS };
    assert_eq!(batch.set(&[short, short]).expect_err("two rows").status(), Status::Range);
    assert_eq!(batch.tables(0..1, -1).expect_err("it has no tables").status(), Status::Range);
    batch.set(&[short]).expect("fits");
    assert_eq!(bound.words(batch.device().lengths, 1), [TOKENS as u32]);
}
