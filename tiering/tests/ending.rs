//! Sequences that are nearly finished: what they hold will be free soon, so it is not written down ahead of need, and leaves tier 0
//! after what others hold. What an engine says of it changes speed alone.
#![allow(clippy::unwrap_used)]

mod fake;
use fake::*;
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

/// A sequence of [`PAGES`] pages; before them its engine says that so many tokens are to come.
fn sequence(w: &mut World, seq: SeqId, remaining: Option<u32>) -> Vec<(BlockId, Vec<u64>)> {
    w.ok(0, Request::SeqCreate { seq });
    if let Some(tokens) = remaining {
        w.ok(0, Request::Advise { seq, first: 0, count: 0, advice: Advice::Remaining(tokens) });
    }
    w.fill(0, seq, PAGES, 1)
}

/// How many of these pages host memory has.
fn below(w: &World, pages: &[(BlockId, Vec<u64>)]) -> usize {
    let host: BTreeSet<u64> = w.host.values().copied().collect();
    pages.iter().filter(|(_, contents)| host.contains(&contents[0])).count()
}

/// How many of them show in tier 0.
fn above(w: &World, pages: &[(BlockId, Vec<u64>)]) -> usize {
    pages.iter().filter(|(block, _)| w.agents[&0].table.contains_key(&(*block, 0))).count()
}

/// Of an older and a newer sequence the pages that were written down, when so many tokens were to come of the older.
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
    // 8 tokens are to come after what it has committed.
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
    // All are about to end, and none does: twice what tier 0 holds.
    let all: Vec<_> = (0..8).map(|seq| sequence(&mut w, seq, Some(PAGES * 4))).collect();
    assert!(all.iter().map(|pages| below(&w, pages)).sum::<usize>() >= 16);
    w.step(0, 0, 1, 0, &all[0], 1);
}

#[test]
fn its_pages_leave_tier_0_after_those_of_others() {
    let left = |remaining| {
        // All pages have a copy below at once.
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
