//! NVMe admission: by the admission rule and the write budget, whole prefix chains at a time.

use kvtide_fake::*;
use kvtide_tiering::api::*;

const PAGE: u64 = 4096;
/// Bytes of a block: two planes.
const BLOCK: u64 = 2 * PAGE;
const DAY_US: u64 = 24 * 3600 * 1_000_000;

fn world(admission: Admission, bytes_per_day: u64, host: u32) -> World {
    let mut cfg = config(vec![full(PAGE as u32), full(PAGE as u32)]);
    cfg.limits.host_bytes_max = u64::from(host) * PAGE;
    cfg.limits.nvme_bytes_max = 200 * BLOCK;
    (cfg.policy.nvme_admission, cfg.policy.nvme_bytes_per_day) = (admission, bytes_per_day);
    (cfg.policy.clean_low_percent, cfg.policy.clean_high_percent) = (100, 100);
    let mut w = World::sized(cfg, (host, host), (200, 50));
    w.attach(0, 1, &[64]);
    w
}

/// A space whose bucket begins empty and fills from now on.
fn empty(admission: Admission, bytes_per_day: u64, host: u32) -> World {
    let mut w = world(admission, 0, host);
    set(&mut w, |policy| policy.nvme_bytes_per_day = bytes_per_day);
    w.event(Event::Tick).unwrap();
    w
}

fn set(w: &mut World, change: impl FnOnce(&mut Policy)) {
    let SpaceConfig { mut policy, limits, .. } = w.core.config().clone();
    change(&mut policy);
    let Limits { host_bytes_max, nvme_bytes_max, .. } = limits;
    w.event(Event::Reconfigure { policy, host_bytes_max, nvme_bytes_max }).unwrap();
}

/// Let time pass without any request, with ticks only when the core wants them.
fn idle(w: &mut World, us: u64) {
    let until = w.now + us;
    while let Some(due_us) = w.core.next_deadline().filter(|&due_us| due_us <= until) {
        w.now = w.now.max(due_us);
        w.event(Event::Tick).unwrap();
    }
    w.now = until;
}

/// Return the time in which `blocks` blocks of budget accrue.
fn time_of(blocks: u64, bytes_per_day: u64) -> u64 {
    (blocks * BLOCK * DAY_US).div_ceil(bytes_per_day)
}

fn pass(w: &mut World, us: u64) {
    w.pass(us);
}

/// Publish and drop a sequence that attaches the cached prefix of `hashes` and adds the rest; return the number of attached blocks.
fn run(w: &mut World, hashes: &[u128], level: Level) -> (u64, Status) {
    w.ok(0, Request::SeqCreate { seq: 0 });
    let found = w.ok(0, Request::AttachPrefix { seq: 0, hashes, asked: Some(0) }).value;
    w.fill(0, 0, hashes.len() as u32 - found as u32, 2);
    let (first, rest) = (found as u32, &hashes[found as usize..]);
    let parent = if first == 0 { 0 } else { hashes[first as usize - 1] };
    let published = w.call(0, Request::Publish { seq: 0, first, parent, hashes: rest, level });
    w.ok(0, Request::SeqDrop { seq: 0 });
    (found, published.status)
}

fn recorded(w: &World) -> Vec<u128> {
    let mut hashes: Vec<u128> = w.log.reachable().into_iter().map(|(_, hash)| hash).collect();
    hashes.sort_unstable();
    hashes
}

#[test]
fn a_second_touch_admits_and_a_first_does_not() {
    let mut w = world(Admission::SecondTouch, 0, 64);
    run(&mut w, &[1, 2, 3], Level::Published);
    run(&mut w, &[10, 11], Level::Published);
    assert_eq!((w.disk.written, w.core.counters().refused_unworthy), (0, 5));
    // Two of the blocks are looked up, and a new one is their child.
    assert_eq!(run(&mut w, &[1, 2, 4], Level::Published).0, 2);
    assert_eq!(recorded(&w), [1, 2], "only blocks that were used again");
    let c = w.core.counters();
    assert_eq!((c.admitted, c.second_uses), (2, 2));
    assert_eq!((c.nvme_bytes_admitted, c.nvme_bytes_forced), (2 * BLOCK, 0));
    assert_eq!(w.core.budget_report().committed_bytes, 0, "all committed bytes are written");
}

/// A dropped block is remembered: computed again, it is admitted.
#[test]
fn what_comes_back_after_it_was_dropped_is_known() {
    let mut w = world(Admission::SecondTouch, 0, 16);
    run(&mut w, &[1, 2], Level::Published);
    for other in 0..10 {
        run(&mut w, &[100 + 2 * other, 101 + 2 * other], Level::Published);
    }
    let c = *w.core.counters();
    assert!(c.refused_dropped > 0 && w.disk.written == 0, "rejected blocks are evicted unwritten: {c:?}");
    assert_eq!(run(&mut w, &[1, 2], Level::Published).0, 0, "it is not there any more");
    assert_eq!(recorded(&w), [1, 2]);
}

/// Blocks that were not admitted are evicted least recently used first, and never before a block that was looked up since.
#[test]
fn refused_entries_give_way_least_recently_used_first() {
    let mut w = world(Admission::SecondTouch, 0, 16);
    let one_step = |w: &mut World, step: u64| {
        // Time in host memory is counted in steps.
        w.ok(0, Request::SeqCreate { seq: 1 });
        w.ok(0, Request::Step { lane: 0, step, seqs: &[1] });
        w.ok(0, Request::StepEnd { lane: 0, step });
        w.ok(0, Request::SeqDrop { seq: 1 });
    };
    for i in 0..12u128 {
        run(&mut w, &[1 + i], Level::Published);
        one_step(&mut w, 1 + i as u64);
    }
    w.ok(0, Request::SeqCreate { seq: 0 });
    let mut still = Vec::new();
    for i in 0..12u128 {
        still.push(w.ok(0, Request::AttachPrefix { seq: 0, hashes: &[1 + i], asked: Some(0) }).value == 1);
        w.ok(0, Request::Truncate { seq: 0, tokens: 0 });
    }
    let first = still.iter().position(|&there| there).unwrap();
    assert!(first >= 4 && still[first..].iter().all(|&there| there), "{still:?}");
}

#[test]
fn bytes_a_day_bound_what_is_admitted_and_debt_is_paid_first() {
    let per_day = 24 * 100 * BLOCK;
    let mut w = empty(Admission::All, per_day, 64);
    run(&mut w, &[1, 2, 3], Level::Published);
    assert_eq!((w.disk.written, w.core.counters().refused_budget), (0, 3), "the bucket is empty");
    w.now += time_of(4, per_day);
    // The three oldest blocks that were looked up use the available bytes. The rest is kept for blocks that are used again.
    assert_eq!(run(&mut w, &[1, 2, 3, 4, 5], Level::Published).0, 3);
    assert_eq!(recorded(&w), [1, 2, 3]);
    assert_eq!((w.core.budget_report().left_bytes, w.core.counters().nvme_bytes_admitted), (BLOCK, 3 * BLOCK));
    // Blocks of running sequences are written without regard to the budget.
    w.ok(0, Request::SeqCreate { seq: 1 });
    w.fill(0, 1, 56, 2);
    let forced = w.core.counters().nvme_bytes_forced;
    assert!(forced > 0 && w.core.budget_report().debt_bytes == forced - BLOCK, "{:?}", w.core.budget_report());
    w.ok(0, Request::SeqDrop { seq: 1 });
    pass(&mut w, time_of(forced / BLOCK, per_day));
    assert!(w.core.budget_report().debt_bytes == 0 && w.core.budget_report().left_bytes < 2 * BLOCK);
    run(&mut w, &[50], Level::Published);
    assert!(!recorded(&w).contains(&50));
    w.now += time_of(1, per_day);
    assert_eq!(run(&mut w, &[50], Level::Published).0, 1);
    assert!(recorded(&w).contains(&50));
}

/// An engine that publishes and then is idle: what the bucket refused is written as it refills, without any request, and no more.
#[test]
fn refused_blocks_are_written_as_the_bucket_refills_without_a_request() {
    let per_day = 24 * 100 * BLOCK;
    for rule in [Admission::All, Admission::Budget] {
        let mut w = empty(rule, per_day, 64);
        assert_eq!(w.core.next_deadline(), None, "{rule:?}: nothing waits");
        let hashes: Vec<u128> = (1..=20).collect();
        run(&mut w, &hashes, Level::Published);
        assert_eq!(recorded(&w), []);
        let refused = w.core.counters().refused_budget + w.core.counters().refused_unworthy;
        for blocks in 1..40 {
            idle(&mut w, time_of(1, per_day));
            assert!(w.disk.written <= blocks * BLOCK, "{rule:?}: {} in the time of {blocks}", w.disk.written);
        }
        assert_eq!(recorded(&w), hashes, "{rule:?}");
        let c = w.core.counters();
        assert_eq!(
            (c.refused_budget + c.refused_unworthy, c.admitted),
            (refused, 20),
            "decisions on requests alone count"
        );
        assert_eq!((w.core.budget_report().waiting_blocks, w.core.next_deadline()), (0, None), "{rule:?}");
    }
    // `second-touch` waits for bytes only with blocks that were used before.
    let mut w = empty(Admission::SecondTouch, per_day, 64);
    run(&mut w, &[1, 2, 3], Level::Published);
    assert_eq!((w.core.budget_report().waiting_blocks, w.core.next_deadline()), (0, None));
    run(&mut w, &[1, 2], Level::Published);
    assert_eq!(w.core.budget_report().waiting_blocks, 2);
    idle(&mut w, time_of(40, per_day));
    assert_eq!((recorded(&w), w.core.budget_report().waiting_blocks), (vec![1, 2], 0));
}

/// A pass over many blocks takes several ticks, each of which is due at once.
#[test]
fn a_pass_over_refused_blocks_is_cut_into_ticks() {
    let blocks = 500;
    let mut cfg = config(vec![full(PAGE as u32)]);
    (cfg.limits.blocks_max, cfg.limits.entries_max) = (blocks, blocks);
    (cfg.limits.host_bytes_max, cfg.limits.nvme_bytes_max) = (u64::from(blocks) * PAGE, u64::from(blocks) * PAGE);
    let mut w = World::sized(cfg, (blocks, blocks), (blocks, blocks));
    w.attach(0, 1, &[64]);
    set(&mut w, |policy| policy.nvme_bytes_per_day = 1);
    for hash in 1..=u128::from(blocks) - 100 {
        w.ok(0, Request::SeqCreate { seq: 0 });
        w.fill(0, 0, 1, 1);
        w.call(0, Request::Publish { seq: 0, first: 0, parent: 0, hashes: &[hash], level: Level::Published });
        w.ok(0, Request::SeqDrop { seq: 0 });
    }
    let waiting = |w: &World| w.core.budget_report().waiting_blocks;
    assert_eq!(waiting(&w), u64::from(blocks) - 100);
    // A new rate is due at once.
    set(&mut w, |policy| policy.nvme_bytes_per_day = 0);
    assert_eq!(w.core.next_deadline(), Some(w.now));
    w.event(Event::Tick).unwrap();
    assert!(w.core.is_admitting() && waiting(&w) > 0, "the first tick judged all blocks");
    idle(&mut w, 0);
    assert_eq!((waiting(&w), recorded(&w).len() as u32), (0, blocks - 100));
}

/// A new space writes its first blocks at once. One with blocks of an earlier run has no start: restarts write no more.
#[test]
fn a_new_space_begins_with_five_minutes_worth_and_a_recovered_one_with_nothing() {
    let per_day = 24 * 12 * 16 * BLOCK;
    let mut w = world(Admission::All, per_day, 64);
    assert_eq!(w.core.budget_report().left_bytes, 16 * BLOCK);
    run(&mut w, &[1, 2, 3], Level::Stored);
    assert_eq!(recorded(&w), [1, 2, 3]);
    // A share of the disks' budget that becomes smaller takes its part of the start with it.
    set(&mut w, |policy| policy.nvme_bytes_per_day /= 2);
    assert_eq!(w.core.budget_report().left_bytes, 13 * BLOCK / 2);
    w.restart(vec![64]);
    assert_eq!(w.core.budget_report().left_bytes, 0);
}

/// When the space ends, what is cached is lost, so nothing is kept for blocks that are used again.
#[test]
fn at_the_end_everything_is_written_that_the_bucket_allows() {
    let per_day = 24 * 100 * BLOCK;
    let mut w = empty(Admission::All, per_day, 64);
    run(&mut w, &[1, 2, 3, 4], Level::Published);
    idle(&mut w, time_of(2, per_day));
    assert_eq!(recorded(&w), [], "a quarter of five minutes' worth is kept");
    w.event(Event::Ending).unwrap();
    assert!(w.core.is_admitting());
    idle(&mut w, 0);
    assert_eq!((recorded(&w), w.core.is_admitting()), (vec![1, 2], false));
    assert_eq!(w.core.next_deadline(), None, "nothing is written later");
}

/// Whatever is due is served also where there is nothing to write to.
#[test]
fn without_nvme_no_decision_stays_due() {
    let mut w = World::new(config(vec![full(PAGE as u32)]));
    w.attach(0, 1, &[64]);
    set(&mut w, |policy| policy.nvme_admission = Admission::Budget);
    w.event(Event::Ending).unwrap();
    assert!(w.core.is_admitting());
    w.event(Event::Tick).unwrap();
    assert_eq!((w.core.is_admitting(), w.core.next_deadline()), (false, None));
}

/// Whoever asks for a level learns that the budget is the reason, and gets it later.
#[test]
fn a_refusal_for_want_of_bytes_names_the_budget() {
    let per_day = 24 * 100 * BLOCK;
    let mut w = empty(Admission::All, per_day, 64);
    assert_eq!(run(&mut w, &[1], Level::Stored).1, Status::OverBudget);
    assert_eq!(w.core.budget_report().waiting_blocks, 1);
    idle(&mut w, time_of(10, per_day));
    assert_eq!((recorded(&w), w.core.budget_report().waiting_blocks), (vec![1], 0));
    // A block that is dropped waits no longer.
    run(&mut w, &(100..150).collect::<Vec<_>>(), Level::Published);
    assert!(w.core.budget_report().waiting_blocks > 0);
    for _ in 0..10 {
        w.event(Event::Evict { hash: None }).unwrap();
    }
    assert_eq!(w.core.budget_report().waiting_blocks, 0);
}

/// A block is admitted together with its ancestors, or not at all.
#[test]
fn a_prefix_chain_is_admitted_whole() {
    let per_day = 24 * 100 * BLOCK;
    let mut w = empty(Admission::SecondTouch, per_day, 64);
    w.ok(0, Request::SeqCreate { seq: 0 });
    w.fill(0, 0, 6, 2);
    let publish = |w: &mut World, first: u32, hashes: &[u128], level| {
        let parent = u128::from(first);
        w.call(0, Request::Publish { seq: 0, first, parent, hashes, level })
    };
    publish(&mut w, 0, &[1, 2, 3, 4], Level::Published);
    pass(&mut w, time_of(4, per_day));
    let refused = publish(&mut w, 4, &[5], Level::Stored);
    assert_eq!((refused.status, refused.value), (Status::OverBudget, Level::Published as u64), "five blocks for four");
    assert_eq!((w.disk.written, w.core.budget_report().committed_bytes), (0, 0));
    w.now += time_of(2, per_day);
    let stored = publish(&mut w, 4, &[5, 6], Level::Stored);
    assert_eq!((stored.status, stored.value), (Status::Ok, Level::Stored as u64));
    assert_eq!(recorded(&w), [1, 2, 3, 4, 5, 6]);
    assert_eq!((w.core.counters().admitted, w.core.budget_report().left_bytes), (6, 0));
}

/// Under every rule, scarce bytes go first to blocks with a second use: computed again after a drop, or found in host memory. New
/// blocks get none of them.
#[test]
fn under_a_short_budget_a_second_use_is_written_before_new_blocks() {
    let per_day = 24 * 12 * 100 * BLOCK;
    for rule in [Admission::All, Admission::SecondTouch, Admission::Budget] {
        let mut w = empty(rule, per_day, 16);
        run(&mut w, &[1, 2], Level::Published);
        for other in 0..10 {
            run(&mut w, &[100 + 2 * other, 101 + 2 * other], Level::Published);
        }
        assert_eq!(w.disk.written, 0, "{rule:?}: the bucket is empty");
        // A ninth of five minutes' worth accrues, and new blocks arrive first.
        pass(&mut w, time_of(11, per_day));
        run(&mut w, &[50, 51, 52, 53], Level::Published);
        assert_eq!(recorded(&w), [], "{rule:?}: new blocks take bytes that are short");
        assert_eq!(run(&mut w, &[1, 2], Level::Published).0, 0, "{rule:?}: it was dropped");
        assert_eq!(run(&mut w, &[52], Level::Published).0, 0, "{rule:?}: no beginning of a prefix");
        assert_eq!(run(&mut w, &[50, 51], Level::Published).0, 2, "{rule:?}: it is in host memory");
        assert_eq!(recorded(&w), [1, 2, 50, 51], "{rule:?}");
    }
}

/// Blocks lost to the write budget are counted; blocks that the rule rejects are not.
#[test]
fn what_more_bytes_would_have_kept_is_counted() {
    let lost = |rule, per_day| {
        let mut w = empty(rule, per_day, 16);
        for _ in 0..2 {
            for other in 0..10 {
                run(&mut w, &[100 + 2 * other, 101 + 2 * other], Level::Published);
            }
        }
        let c = *w.core.counters();
        assert_eq!(c.over_budget_drop_bytes, c.over_budget_drops * BLOCK);
        (c.over_budget_drops, c.refused_dropped)
    };
    let (all, dropped) = lost(Admission::All, 1);
    assert!(dropped > 20 && all == dropped, "every block of {dropped}: {all}");
    for rule in [Admission::SecondTouch, Admission::Budget] {
        let (second, dropped) = lost(rule, 1);
        assert!(
            second > 0 && second < dropped,
            "{rule:?}: blocks used once are rejected by the rule: {second} of {dropped}"
        );
    }
    assert_eq!(lost(Admission::All, 0), (0, 0));
    assert_eq!(lost(Admission::SecondTouch, 0).0, 0, "without a bound nothing is lost to it");
}

/// With a nearly empty bucket `budget` admits blocks that were used before; with a full one, every block.
#[test]
fn budget_moves_its_threshold_with_the_bucket() {
    let per_day = 24 * 12 * 100 * BLOCK;
    let mut w = empty(Admission::Budget, per_day, 128);
    pass(&mut w, time_of(10, per_day));
    run(&mut w, &[1, 2], Level::Published);
    assert_eq!(recorded(&w), [], "a tenth of five minutes' worth: new blocks are rejected");
    run(&mut w, &[1, 2], Level::Published);
    assert_eq!(recorded(&w), [1, 2], "blocks used again are admitted");
    pass(&mut w, time_of(100, per_day));
    run(&mut w, &[10, 11, 12], Level::Published);
    assert_eq!(recorded(&w), [1, 2, 10, 11, 12], "a full bucket takes everything");
}

/// A new rate and a new rule hold from the next decision on.
#[test]
fn a_new_rate_holds_at_once() {
    let mut w = empty(Admission::SecondTouch, BLOCK, 64);
    pass(&mut w, 1_000_000);
    run(&mut w, &[1, 2, 3], Level::Published);
    assert_eq!(recorded(&w), []);
    set(&mut w, |policy| (policy.nvme_admission, policy.nvme_bytes_per_day) = (Admission::All, 0));
    idle(&mut w, 0);
    assert_eq!((recorded(&w), w.core.budget_report().bytes_per_day), (vec![1, 2, 3], 0));
    set(&mut w, |policy| policy.nvme_bytes_per_day = BLOCK);
    run(&mut w, &[7], Level::Published);
    assert_eq!(recorded(&w), [1, 2, 3]);
    idle(&mut w, DAY_US);
    assert_eq!(recorded(&w), [1, 2, 3, 7]);
}

/// The copies of all shards are admitted with the first: a block without one of them is not found after a restart.
#[test]
fn the_shard_copies_of_an_entry_are_admitted_together() {
    let mut cfg = config(vec![full(PAGE as u32), full(PAGE as u32)]);
    cfg.shards = 2;
    cfg.limits.host_bytes_max = 64 * PAGE;
    cfg.limits.nvme_bytes_max = 200 * BLOCK;
    cfg.policy.nvme_admission = Admission::SecondTouch;
    (cfg.policy.clean_low_percent, cfg.policy.clean_high_percent) = (100, 100);
    let mut w = World::sized(cfg, (64, 64), (200, 50));
    w.attach_shard(0, 0, 1, &[32]).unwrap();
    w.attach_shard(1, 1, 1, &[32]).unwrap();
    for s in [1, 0] {
        w.ok(s, Request::SeqCreate { seq: 0 });
        w.fill(s, 0, 2, 2);
        w.ok(s, Request::Publish { seq: 0, first: 0, parent: 0, hashes: &[1, 2], level: Level::Published });
    }
    assert_eq!(w.log.records.len(), 0, "each shard's first use is one use");
    w.ok(0, Request::SeqCreate { seq: 1 });
    assert_eq!(w.ok(0, Request::AttachPrefix { seq: 1, hashes: &[1, 2], asked: Some(0) }).value, 2);
    let mut of: Vec<_> = w.log.reachable();
    of.sort_unstable();
    assert_eq!(of, [(0, 1), (0, 2), (1, 1), (1, 2)]);
    assert_eq!(w.core.counters().admitted, 4);
}
