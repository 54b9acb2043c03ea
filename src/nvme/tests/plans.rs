//! Property tests of plans: every byte of every page is transferred once, in units that the device accepts.

use crate::plan::{PIECES_MAX, REQUEST_BYTES_MAX, Rules, Run, Span};
use crate::store::Align;
use kvtide_types::IoKind;
use proptest::prelude::*;

const CHUNK: u64 = 64 << 10;

/// Pages of a slot: gaps and sizes, some in whole sectors, and addresses.
fn spans() -> impl Strategy<Value = Vec<Span>> {
    let size =
        prop_oneof![3 => (1u64..40).prop_map(|n| n * 512), 2 => 1u64..9000, 1 => (1u64..4).prop_map(|n| n * 100_000)];
    let gap = prop_oneof![4 => Just(0u64), 2 => 0u64..64, 1 => 0u64..20_000];
    let page = (gap, size, 0usize..3, any::<bool>());
    prop::collection::vec(page, 1..40).prop_map(|pages| {
        let mut end = 0;
        let span = |(gap, bytes, address, whole): (u64, u64, usize, bool)| {
            let at = if whole { (end + gap).next_multiple_of(512) } else { end + gap };
            end = at + bytes;
            Span { at, bytes, address: 0x10_0000 + [0, 512, 8][address], buffer: None }
        };
        pages.into_iter().map(span).collect()
    })
}

fn overlap(run: &Run, span: &Span) -> u64 {
    (run.at + run.bytes).min(span.at + span.bytes).saturating_sub(run.at.max(span.at))
}

proptest! {
    #[test]
    fn every_byte_moves_once_in_units_that_the_device_takes(
        spans in spans(), unit in prop::sample::select(vec![1u64, 512, 4096]), write in any::<bool>(), whole in any::<bool>(),
    ) {
        let rules = Rules { align: Align { offset: unit, memory: unit }, chunk_bytes: CHUNK };
        let kind = if write { IoKind::Write } else { IoKind::Read };
        let mut runs = Vec::new();
        rules.plan(kind, whole, &spans, &mut runs);
        for run in &runs {
            prop_assert!(run.bytes > 0 && run.at % unit == 0 && run.bytes % unit == 0, "{:?}", run);
            prop_assert!(run.pages > 0 && run.first + run.pages <= spans.len());
            let pages = &spans[run.first..run.first + run.pages];
            prop_assert!(pages.iter().all(|span| overlap(run, span) > 0), "{:?}", run);
            if run.staged {
                prop_assert!(run.bytes <= CHUNK);
                let covered: u64 = spans.iter().map(|span| overlap(run, span)).sum();
                prop_assert_eq!(run.fill, write && !whole && covered < run.bytes, "{:?}", run);
            } else {
                prop_assert!(!run.fill && run.pages <= PIECES_MAX);
                prop_assert!(run.bytes <= REQUEST_BYTES_MAX || run.pages == 1);
                prop_assert!(pages.iter().all(|span| (span.address as u64).is_multiple_of(unit)));
                prop_assert_eq!(pages.iter().map(|span| span.bytes).sum::<u64>(), run.bytes);
                prop_assert_eq!(pages[0].at, run.at);
                prop_assert!(pages.windows(2).all(|pair| pair[0].at + pair[0].bytes == pair[1].at));
            }
        }
        // No two requests share a byte, so that none overwrites another.
        let mut ends: Vec<(u64, u64)> = runs.iter().map(|run| (run.at, run.at + run.bytes)).collect();
        ends.sort_unstable();
        prop_assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{:?}", ends);
        for (index, span) in spans.iter().enumerate() {
            let moved: u64 = runs.iter().filter(|run| (run.first..run.first + run.pages).contains(&index))
                .map(|run| overlap(run, span)).sum();
            prop_assert_eq!(moved, span.bytes, "page {}", index);
        }
    }
}

#[test]
fn a_block_of_whole_sectors_is_one_request() {
    let rules = Rules { align: Align { offset: 512, memory: 512 }, chunk_bytes: CHUNK };
    let spans: Vec<Span> =
        (0..32).map(|n| Span { at: n * 65536, bytes: 65536, address: 4096 * n as usize, buffer: None }).collect();
    let mut runs = Vec::new();
    rules.plan(IoKind::Read, true, &spans, &mut runs);
    assert_eq!(runs, [Run { at: 0, bytes: 32 * 65536, first: 0, pages: 32, staged: false, fill: false }]);
}
