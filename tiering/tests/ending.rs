//! Nearly finished sequences: their pages will soon be free, so they are not written back ahead of need, and leave tier 0 after
//! other pages. The engine's hint changes only speed.

use kvtide_fake::*;
use kvtide_tiering::api::*;
use std::collections::BTreeSet;

const FRAMES: u32 = 16;
/// Pages of a sequence, each of 4 tokens.
const PAGES: u32 = 4;

fn world(clean_percent: u8) -> World {
    let mut cfg = config(vec![full(1000)]);
    (cfg.policy.clean_low_percent, cfg.policy.clean_high_percent) = (clean_percent, clean_percent);
    cfg.policy.retention.ending_tokens = 8;
    let mut w = World::new(cfg);
    w.attach(0, 1, &[FRAMES]);
    w
}

/// Create a sequence of [`PAGES`] pages; before that its engine announces the remaining tokens.
fn sequence(w: &mut World, seq: SeqId, remaining: Option<u32>) -> Vec<(BlockId, Vec<u64>)> {
    w.ok(0, Request::SeqCreate { seq });
    if let Some(tokens) = remaining {
        w.ok(0, Request::Advise { seq, first: 0, count: 0, advice: Advice::Remaining(tokens) });
    }
    w.fill(0, seq, PAGES, 1)
}

/// Return how many of these pages are in host memory.
fn below(w: &World, pages: &[(BlockId, Vec<u64>)]) -> usize {
    let host: BTreeSet<u64> = w.host.values().copied().collect();
    pages.iter().filter(|(_, contents)| host.contains(&contents[0])).count()
}

/// Return how many of these pages are in tier 0.
fn above(w: &World, pages: &[(BlockId, Vec<u64>)]) -> usize {
    pages.iter().filter(|(block, _)| w.agents[&0].table.frame(*block, 0).is_some()).count()
}

/// Return the number of pages written back of an older and a newer sequence, for an announcement of the older one.
fn written(remaining: Option<u32>, shared: bool) -> [usize; 2] {
    let mut w = world(75);
    let older = sequence(&mut w, 0, remaining);
    if shared {
        w.ok(0, Request::Fork { parent: 0, child: 2 });
    }
    let newer = sequence(&mut w, 1, None);
    [below(&w, &older), below(&w, &newer)]
}

#[test]
fn what_a_nearly_finished_sequence_alone_has_is_not_written_ahead_of_need() {
    let tokens = PAGES * 4;
    let [older, newer] = written(None, false);
    assert!(older > 0 && newer == 0, "the coldest are written: {older} and {newer}");
    // 8 tokens remain after the committed ones.
    let [older, newer] = written(Some(tokens + 8), false);
    assert!(older == 0 && newer > 0, "{older} and {newer}");
    for remaining in [tokens + 9, u32::MAX, tokens - 1, 0] {
        let [older, newer] = written(Some(remaining), false);
        assert!(older > 0 && newer == 0, "{remaining}: far from its end, unknown, or past it: {older} and {newer}");
    }
    let [older, _] = written(Some(tokens + 8), true);
    assert!(older > 0, "a fork goes on with them");
}

#[test]
fn it_is_written_when_somebody_needs_the_frames() {
    let mut w = world(50);
    // All sequences are nearly finished, and none ends: twice the size of tier 0.
    let all: Vec<_> = (0..8).map(|seq| sequence(&mut w, seq, Some(PAGES * 4))).collect();
    assert!(all.iter().map(|pages| below(&w, pages)).sum::<usize>() >= 16);
    w.step(0, 0, 1, 0, &all[0], 1);
}

#[test]
fn its_pages_leave_tier_0_after_those_of_others() {
    let left = |remaining| {
        // All pages have a copy in host at once.
        let mut w = world(100);
        let older = sequence(&mut w, 0, remaining);
        let newer = sequence(&mut w, 1, None);
        if remaining.is_some() {
            w.ok(0, Request::Advise { seq: 0, first: 0, count: 0, advice: Advice::Remaining(4) });
        }
        let more: Vec<_> = (2..5).map(|seq| sequence(&mut w, seq, None)).collect();
        assert_eq!(more.len(), 3);
        (above(&w, &older), above(&w, &newer))
    };
    let (older, newer) = left(None);
    assert!(older < newer, "the oldest go first: {older} and {newer} are left");
    let (older, newer) = left(Some(1000));
    assert!(older > newer, "{older} and {newer} are left");
}
