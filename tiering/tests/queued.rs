//! Requests that wait in an engine's queue: their prefix is attached, and they are parked with a due time. Their pages are in tier 0
//! when they are due, without taking resources from running steps.

use kvtide_fake::*;
use kvtide_tiering::api::*;
use kvtide_tiering::{Counters, Reason};

const PLANES: u16 = 2;
const PAGE: u64 = 1000;
/// A second.
const S: u64 = 1_000_000;

/// Published prefixes with the contents of their blocks, and a tier 0 of `frames` frames.
struct Cache {
    w: World,
    prefixes: Vec<Vec<Vec<u64>>>,
}

fn hashes(prefix: usize, blocks: usize) -> Vec<u128> {
    (0..blocks).map(|block| ((prefix as u128 + 1) << 80) | (block as u128 + 1)).collect()
}

impl Cache {
    /// Create prefixes in host memory, and also on NVMe if there is one.
    fn new(prefixes: usize, blocks: u32, frames: u32, nvme: bool) -> Cache {
        let mut cfg = config(vec![full(PAGE as u32); usize::from(PLANES)]);
        (cfg.limits.seqs_max, cfg.limits.blocks_max, cfg.limits.entries_max) = (128, 512, 512);
        cfg.limits.nvme_bytes_max = if nvme { 400 * u64::from(PLANES) * PAGE } else { 0 };
        let mut w = World::new(cfg);
        (w.disk.node_slots, w.disk.slab_slots) = (400, 400);
        w.attach(0, 2, &[frames]);
        let mut cache = Cache { w, prefixes: Vec::new() };
        for prefix in 0..prefixes {
            cache.w.ok(0, Request::SeqCreate { seq: 0 });
            let pages = cache.w.fill(0, 0, blocks, PLANES);
            let level = if nvme { Level::Stored } else { Level::Published };
            let hashes = hashes(prefix, blocks as usize);
            cache.w.ok(0, Request::Publish { seq: 0, first: 0, parent: 0, hashes: &hashes, level });
            cache.w.ok(0, Request::SeqDrop { seq: 0 });
            cache.prefixes.push(pages.into_iter().map(|page| page.1).collect());
        }
        cache
    }

    /// The same after a restart: only on NVMe.
    fn index_only(prefixes: usize, blocks: u32, frames: u32) -> Cache {
        let mut cache = Cache::new(prefixes, blocks, frames, true);
        cache.w.restart(vec![1 << 20]);
        cache.w.attach(0, 2, &[frames]);
        cache
    }

    fn attach(&mut self, seq: SeqId, prefix: usize) -> Vec<(BlockId, Vec<u64>)> {
        self.w.ok(0, Request::SeqCreate { seq });
        let contents = self.prefixes[prefix].clone();
        let attached =
            self.w.ok(0, Request::AttachPrefix { seq, hashes: &hashes(prefix, contents.len()), asked: Some(0) });
        assert_eq!(attached.value as usize, contents.len());
        attached.list.into_iter().zip(contents).collect()
    }

    /// Queue a request with a prefix, due in `due_us` microseconds.
    fn queue(&mut self, seq: SeqId, prefix: usize, due_us: u64) -> Vec<(BlockId, Vec<u64>)> {
        let pages = self.attach(seq, prefix);
        self.w.ok(0, Request::Park { seq, due_us });
        pages
    }

    /// Advance time and process all timers until `end`.
    fn pass_until(&mut self, end: u64) {
        while let Some(at) = self.w.core.next_deadline().filter(|&at| at <= end) {
            self.w.now = self.w.now.max(at);
            self.w.event(Event::Tick).unwrap();
        }
        self.w.now = end;
        self.w.event(Event::Tick).unwrap();
    }

    fn pass(&mut self, us: u64) {
        self.pass_until(self.w.now + us);
    }

    fn there(&self, pages: &[(BlockId, Vec<u64>)]) -> usize {
        let of = |page: &(BlockId, Vec<u64>)| (0..PLANES).filter(|p| self.w.read(0, page.0, *p).is_some()).count();
        pages.iter().map(of).sum()
    }

    fn all_there(&self, pages: &[(BlockId, Vec<u64>)]) -> bool {
        self.there(pages) == pages.len() * usize::from(PLANES)
    }

    fn counters(&self) -> Counters {
        *self.w.core.counters()
    }

    /// Return the outcomes: used, late, missed, wasted.
    fn outcomes(&self) -> (u64, u64, u64, u64) {
        let c = self.counters();
        (c.scheduled_used, c.scheduled_late, c.scheduled_missed, c.scheduled_wasted)
    }
}

/// Fill all of tier 0 with another sequence's pages, and drop it.
fn push_out(cache: &mut Cache, seq: SeqId, blocks: u32) {
    cache.w.ok(0, Request::SeqCreate { seq });
    cache.w.fill(0, seq, blocks, PLANES);
    cache.w.ok(0, Request::SeqDrop { seq });
}

#[test]
fn a_queued_request_waits_for_nothing_when_it_is_due() {
    for nvme in [false, true] {
        let mut cache = if nvme { Cache::index_only(2, 10, 30) } else { Cache::new(2, 10, 30, false) };
        push_out(&mut cache, 0, 15);
        // A queued request, and one that was not announced.
        let queued = cache.queue(1, 0, S);
        let due = cache.w.now + S;
        cache.pass_until(due - S / 2);
        assert_eq!((cache.there(&queued), cache.counters().scheduled_loads), (0, 0), "it is not due for long");
        cache.pass_until(due);
        assert!(cache.all_there(&queued), "{:?}", cache.counters());
        cache.w.ok(0, Request::Resume { seq: 1 });
        assert_eq!(cache.w.step(0, 0, 1, 1, &queued, PLANES), 0, "nothing is loaded in its step");
        assert_eq!((cache.w.faults, cache.counters().faults), (0, 0));
        assert_eq!((cache.outcomes(), cache.counters().scheduled_loads), ((20, 0, 0, 0), 20));
        assert_eq!(cache.counters().host_to_tier0.pages[Reason::Scheduled as usize], 20);
        assert_eq!(cache.counters().nvme_to_host.pages[Reason::Scheduled as usize], if nvme { 20 } else { 0 });
        let surprise = cache.attach(2, 1);
        assert!(cache.w.step(0, 1, 2, 2, &surprise, PLANES) >= 20);
        cache.w.core.check().unwrap();
    }
}

/// Requests that do not all fit are loaded in the order of their due times, not in the order of queueing. A request due later takes
/// nothing from one due earlier, and is loaded when that one has ended.
fn comes_in_the_order_of_due_times() {
    let mut cache = Cache::new(3, 10, 44, false);
    push_out(&mut cache, 0, 20);
    let last = cache.queue(1, 0, 3 * S);
    let first = cache.queue(2, 1, 2 * S);
    let second = cache.queue(3, 2, 2 * S + S / 2);
    cache.pass(2 * S);
    assert!(cache.all_there(&first), "the first one due");
    assert_eq!(cache.counters().scheduled_loads, 20, "there is time yet for the others");
    cache.pass(S / 2);
    assert!(cache.all_there(&first) && cache.all_there(&second));
    // There is room for a part of the third: repeated attempts move no page twice.
    cache.pass(S / 2);
    let before = cache.counters();
    assert!(cache.all_there(&second) && !cache.all_there(&last) && before.scheduled_held > 0, "{before:?}");
    cache.pass(S / 2);
    assert!(
        cache.counters().scheduled_loads == before.scheduled_loads
            && cache.counters().scheduled_held > before.scheduled_held
    );
    assert_eq!(cache.outcomes().3, 0);
    cache.w.ok(0, Request::SeqDrop { seq: 2 });
    cache.pass(S / 2);
    assert!(cache.all_there(&last), "{:?}", cache.counters());
}

/// A running step's pages stay, however many requests are queued: demand comes first.
fn takes_nothing_from_a_running_step() {
    let mut cache = Cache::new(2, 12, 48, false);
    cache.w.ok(0, Request::SeqCreate { seq: 0 });
    let runs = cache.w.fill(0, 0, 18, PLANES);
    let queued = [cache.queue(1, 0, S), cache.queue(2, 1, S)];
    let mut loads = 0;
    for step in 1..=20 {
        loads += cache.w.step(0, 0, step, 0, &runs, PLANES);
        assert!(cache.all_there(&runs), "step {step}");
        cache.pass(S / 10);
        assert!(cache.all_there(&runs), "after step {step}");
    }
    let brought: usize = queued.iter().map(|pages| cache.there(pages)).sum();
    assert!(brought > 0 && cache.counters().scheduled_held > 0, "{:?}", cache.counters());
    assert_eq!((loads, cache.counters().faults), (cache.counters().scheduled_loads, 0), "no step loaded a page");
}

/// The bandwidth of the links determines when the work starts, and how much of it is in flight.
fn begins_as_late_as_the_link_allows() {
    let mut cache = Cache::new(3, 24, 64, false);
    // A link of one byte per microsecond: a page takes a millisecond.
    let slow = |cache: &mut Cache| {
        while !cache.w.agents[&0].jobs.is_empty() {
            cache.w.now += PAGE;
            cache.w.run_job(0);
            cache.w.settle();
        }
    };
    push_out(&mut cache, 0, 30);
    cache.w.eager = false;
    cache.queue(1, 0, 0);
    let tag = cache.w.ask(0, Request::Advise { seq: 1, first: 0, count: 24, advice: Advice::WillNeed });
    slow(&mut cache);
    assert_eq!(cache.w.answer(0, tag).map(|done| done.status), Some(Status::Ok));
    cache.w.eager = true;
    cache.w.settle();
    cache.w.ok(0, Request::SeqDrop { seq: 1 });
    push_out(&mut cache, 0, 30);
    let before = cache.counters().host_to_tier0.total_pages();
    let due = cache.w.now + 10 * S;
    let queued = cache.queue(2, 1, 10 * S);
    // 48 pages take 48 ms, and twice that beside running steps.
    cache.pass_until(due - 150_000);
    assert_eq!(cache.counters().host_to_tier0.total_pages(), before, "that is early enough");
    cache.w.eager = false;
    cache.pass_until(due - 100_000);
    let sent =
        |cache: &Cache| cache.w.agents[&0].jobs.iter().filter(|(_, job)| matches!(job, Job::CopyIn { .. })).count();
    assert!((1..=4).contains(&sent(&cache)), "{} loads of a millisecond each are in flight", sent(&cache));
    slow(&mut cache);
    cache.w.eager = true;
    cache.w.settle();
    assert!(cache.w.now <= due && cache.all_there(&queued));
}

#[test]
fn requests_come_in_the_order_of_their_due_times() {
    comes_in_the_order_of_due_times();
}

#[test]
fn a_running_step_keeps_its_pages() {
    takes_nothing_from_a_running_step();
}

#[test]
fn work_begins_as_late_as_it_can() {
    begins_as_late_as_the_link_allows();
}

#[test]
fn one_that_goes_or_is_due_later_moves_nothing() {
    let mut cache = Cache::new(2, 10, 44, false);
    push_out(&mut cache, 0, 20);
    let moved = cache.queue(1, 0, S);
    cache.queue(2, 1, S);
    // The due time is postponed, and one request is dropped.
    cache.pass(S / 2);
    cache.w.ok(0, Request::Park { seq: 1, due_us: 3 * S });
    cache.w.ok(0, Request::SeqDrop { seq: 2 });
    cache.pass(S);
    assert_eq!((cache.counters().scheduled_loads, cache.w.core.next_deadline().is_some()), (0, true));
    cache.pass(2 * S);
    assert!(cache.all_there(&moved));
    // It has no due time: its loaded pages are not protected, and no timer is set.
    cache.w.ok(0, Request::Park { seq: 1, due_us: 0 });
    cache.pass(2 * S);
    assert_eq!(cache.w.core.next_deadline(), None);
    cache.w.ok(0, Request::Resume { seq: 1 });
    // A reused sequence index does not inherit state.
    cache.w.ok(0, Request::SeqDrop { seq: 1 });
    let loads = cache.counters().host_to_tier0.total_pages();
    cache.attach(1, 1);
    cache.pass(5 * S);
    assert_eq!((cache.w.core.next_deadline(), cache.counters().host_to_tier0.total_pages()), (None, loads));
}

#[test]
fn what_comes_late_or_goes_before_it_is_needed_is_counted() {
    let mut cache = Cache::new(2, 10, 44, false);
    push_out(&mut cache, 0, 20);
    let due = cache.w.now + S;
    cache.queue(1, 0, S);
    cache.w.eager = false;
    cache.pass_until(due);
    // Before a link is measured eight loads may be in flight, of 20 pages.
    let tag = cache.w.ask(0, Request::Resume { seq: 1 });
    assert_eq!(cache.w.answer(0, tag).map(|done| done.status), Some(Status::Ok));
    assert_eq!((cache.outcomes(), cache.counters().scheduled_loads), ((0, 8, 12, 0), 8));
    cache.w.eager = true;
    cache.w.settle();
    cache.w.ok(0, Request::SeqDrop { seq: 1 });
    assert_eq!(cache.outcomes(), (0, 8, 12, 0), "they were late already");
    // Loaded in time, and displaced by a running sequence.
    push_out(&mut cache, 0, 22);
    let queued = cache.queue(2, 1, S);
    cache.pass(S);
    assert!(cache.all_there(&queued));
    assert_eq!(cache.counters().scheduled_loads, 28);
    cache.w.ok(0, Request::SeqCreate { seq: 3 });
    cache.w.fill(0, 3, 20, PLANES);
    let gone = 20 - cache.there(&queued) as u64;
    assert!(gone > 0);
    assert_eq!(cache.outcomes().3, gone);
    cache.w.ok(0, Request::Resume { seq: 2 });
    assert_eq!(cache.outcomes(), (20 - gone, 8, 12 + gone, gone));
}

/// Pages of an overdue request are not kept forever: other due requests get its frames.
#[test]
fn one_that_is_overdue_gives_way() {
    let mut cache = Cache::new(2, 10, 24, false);
    let forgotten = cache.queue(1, 0, S);
    cache.pass(S);
    let waits = cache.queue(2, 1, S);
    cache.pass(S);
    assert!(cache.all_there(&forgotten) && !cache.all_there(&waits), "{:?}", cache.counters());
    // Steps of another sequence, so that frames age as well.
    cache.w.ok(0, Request::SeqCreate { seq: 3 });
    let runs = cache.w.fill(0, 3, 1, PLANES);
    for step in 1..=40 {
        cache.w.step(0, 0, step, 3, &runs, PLANES);
        cache.pass(S / 20);
    }
    assert!(cache.all_there(&waits), "{:?}", cache.counters());
}

/// More requests are queued than are planned at a time: all are loaded when they are due.
#[test]
fn a_long_queue_is_planned_for_from_its_head() {
    let mut cache = Cache::new(100, 2, 60, false);
    for at in 0..100usize {
        // The order of queueing differs from the order of due times.
        let prefix = at * 37 % 100;
        cache.queue(prefix as SeqId + 1, prefix, (prefix as u64 + 1) * S);
    }
    let start = cache.w.now;
    for prefix in 0..100u64 {
        cache.pass_until(start + (prefix + 1) * S);
        cache.w.ok(0, Request::Resume { seq: prefix as SeqId + 1 });
        cache.w.ok(0, Request::SeqDrop { seq: prefix as SeqId + 1 });
    }
    let (used, late, missed, wasted) = cache.outcomes();
    let c = cache.counters();
    assert_eq!((late, missed, wasted, used), (0, 0, 0, c.scheduled_loads), "{c:?}");
    assert!(c.scheduled_loads > 300, "most had left tier 0: {c:?}");
}

/// With `approx` sequences that are short of frames, pages that a queued request can omit displace no pages.
#[test]
fn an_approximate_request_brings_what_it_must_have() {
    let mut cache = Cache::new(1, 20, 36, false);
    push_out(&mut cache, 0, 16);
    cache.w.ok(0, Request::SeqCreate { seq: 0 });
    let other = cache.w.fill(0, 0, 14, PLANES);
    let queued = cache.attach(1, 0);
    cache.w.ok(0, Request::Contract { seq: 1, contract: Contract::Approx { permille: 250 } });
    cache.w.ok(0, Request::Park { seq: 1, due_us: S });
    cache.pass(S / 2);
    let before = cache.there(&other);
    cache.pass(S / 2);
    let ends = [0, 18, 19].map(|at| cache.there(&queued[at..=at]));
    assert_eq!(ends, [2; 3], "sinks and recency: {:?}", cache.counters());
    let lost = before - cache.there(&other);
    assert!(lost <= 6, "{lost} of another's pages went for what may be left out");
}

/// Return the number of load jobs sent and not executed, for these pages or in their place.
fn loads(cache: &Cache, pages: &[(BlockId, Vec<u64>)], in_place: bool) -> usize {
    let of = |wanted: BlockId| pages.iter().any(|page| page.0 == wanted);
    let is = |job: &Job| match job {
        Job::CopyIn { victim, .. } if in_place => victim.is_some_and(|victim| of(victim.block)),
        Job::CopyIn { block, .. } => of(*block),
        _ => false,
    };
    cache.w.agents[&0].jobs.iter().filter(|(_, job)| is(job)).count()
}

/// Create a sequence with a prefix and a page that is being filled.
fn with_a_tail(cache: &mut Cache, seq: SeqId, prefix: usize) -> Vec<(BlockId, Vec<u64>)> {
    let pages = cache.attach(seq, prefix);
    let block = cache.w.ok(0, Request::Reserve { seq, count: 1 }).list[0];
    (0..PLANES).for_each(|plane| _ = cache.w.write(0, block, plane));
    let tokens = cache.w.core.seq_tokens(0, seq).unwrap();
    cache.w.ok(0, Request::Commit { seq, tokens: tokens + 1 });
    pages
}

/// Pages attached by a dropped sequence do not count as pages of the sequence that reuses its index.
#[test]
fn a_slot_that_is_used_again_has_no_pages_of_before() {
    let mut cache = Cache::new(2, 10, 26, false);
    // Two sequences have the prefix, the later one is dropped, and a request is queued with its index.
    let idle = cache.attach(2, 0);
    cache.attach(1, 0);
    cache.w.step(0, 0, 1, 2, &idle, PLANES);
    cache.w.ok(0, Request::SeqDrop { seq: 1 });
    let queued = cache.queue(1, 1, S);
    cache.w.ok(0, Request::SeqCreate { seq: 3 });
    let runs = cache.w.fill(0, 3, 1, PLANES);
    for step in 2..=40 {
        cache.w.step(0, 0, step, 3, &runs, PLANES);
    }
    cache.pass(S);
    assert!(cache.all_there(&queued), "{} {:?}", cache.there(&queued), cache.counters());
}

/// Pages of a sequence that is being resumed are not taken for a queued one, although it has no due time any more.
#[test]
fn a_resume_under_way_keeps_what_was_brought_for_it() {
    let mut cache = Cache::new(2, 10, 26, false);
    let resumed = with_a_tail(&mut cache, 1, 0);
    cache.w.ok(0, Request::Park { seq: 1, due_us: S });
    push_out(&mut cache, 0, 11);
    let waits = cache.attach(2, 1);
    // The tail is loaded last.
    cache.w.eager = false;
    cache.pass(S);
    while !cache.all_there(&resumed) {
        assert!(cache.w.run_job(0), "{:?}", cache.counters());
        cache.w.settle();
    }
    let tag = cache.w.ask(0, Request::Resume { seq: 1 });
    assert_eq!(cache.w.answer(0, tag), None, "its tail has to come");
    // One of the tail's pages has arrived, so another load may be in flight.
    assert!(cache.w.run_job(0));
    cache.w.settle();
    assert_eq!(cache.w.answer(0, tag), None, "the other page of its tail is still to come");
    cache.w.ok(0, Request::Park { seq: 2, due_us: S / 2 });
    cache.pass(S / 2);
    assert_eq!(loads(&cache, &resumed, true), 0, "{:?}", cache.w.agents[&0].jobs);
    assert!(cache.all_there(&resumed) && cache.counters().scheduled_held > 0, "{:?}", cache.counters());
    assert!(!cache.all_there(&waits));
}

/// Reads from NVMe stay a bounded number of blocks ahead of the loads: pages read too early would evict later ones from host.
#[test]
fn reads_are_not_far_ahead_of_loads() {
    const AHEAD: u64 = 16;
    let mut cache = Cache::index_only(1, 40, 90);
    cache.queue(1, 0, S);
    cache.w.eager = false;
    cache.pass(S);
    while cache.w.run_io(0) {
        cache.w.settle();
    }
    // Before a link is measured eight loads are in flight: those of four blocks.
    let read = |cache: &Cache| cache.counters().nvme_to_host.pages[Reason::Scheduled as usize] / u64::from(PLANES);
    assert_eq!((cache.counters().scheduled_loads, read(&cache)), (8, 4 + AHEAD));
    while cache.w.run_job(0) {}
    cache.w.settle();
    while cache.w.run_io(0) {
        cache.w.settle();
    }
    assert!(read(&cache) > 4 + AHEAD, "the loads went on, and so do the reads");
}

/// A request with its own park in progress waits for it, and does not delay requests due later.
#[test]
fn one_that_is_busy_holds_up_nobody() {
    let mut cache = Cache::new(2, 10, 44, false);
    let first = with_a_tail(&mut cache, 1, 0);
    push_out(&mut cache, 0, 20);
    let second = cache.attach(2, 1);
    cache.w.eager = false;
    let tag = cache.w.ask(0, Request::Park { seq: 1, due_us: S / 2 });
    assert_eq!(cache.w.answer(0, tag), None, "its tail has to go");
    cache.w.ok(0, Request::Park { seq: 2, due_us: S * 3 / 4 });
    // The park itself may take a second.
    cache.pass(S * 3 / 4);
    assert_eq!(loads(&cache, &first, false), 0, "it is busy");
    assert!(loads(&cache, &second, false) > 0, "{:?}", cache.counters());
}

/// Faults that cost only time: each makes a test of this file fail.
#[cfg(feature = "mutants")]
#[test]
fn faults_that_cost_time_are_noticed() {
    use kvtide_tiering::mutants::{self, Mutant};
    let faults: [(Mutant, fn()); 3] = [
        (Mutant::ScheduledTakesNeeded, takes_nothing_from_a_running_step),
        (Mutant::ScheduledOutOfOrder, comes_in_the_order_of_due_times),
        (Mutant::ScheduledIgnoresDue, begins_as_late_as_the_link_allows),
    ];
    for (mutant, test) in faults {
        test();
        mutants::select(Some(mutant));
        let noticed = std::panic::catch_unwind(test).is_err();
        mutants::select(None);
        assert!(noticed, "{mutant:?}");
    }
}
