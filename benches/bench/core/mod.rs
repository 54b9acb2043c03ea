//! The core alone: one thread, with simulated devices that complete jobs immediately.
//!
//! The core is driven as by the daemon, event by event. The measured time includes the simulated engine's own work, so the figure
//! is a lower bound. Two loads alternate: dense attention over ten times the pages of tier 0 (a cyclic scan), and sequences that
//! are created, filled, written back and dropped.

mod device;
mod feed;
mod index;

use super::BenchError;
use super::report::{Report, Target};
use device::World;
use kvtide_tiering::Core;
use kvtide_tiering::api::{Limits, Plane, PlaneKind, Policy, SpaceConfig};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region};
use std::time::{Duration, Instant};

/// Planes of the space: an 8B model's layers.
const PLANES: u16 = 32;
/// Bytes of a page: 16 tokens of GQA with 8 heads of 128 in bf16, keys and values.
const PAGE_BYTES: u32 = 64 << 10;
/// Blocks of all sequences together: 64 Ki tokens.
const BLOCKS: u32 = 4096;
const BLOCKS_MAX: u32 = BLOCKS + BLOCKS / 8;
/// Pages that the core has tables for.
const PAGES: u64 = BLOCKS_MAX as u64 * PLANES as u64;
/// Sequences that share them.
const SEQS: u32 = 8;
/// Tier-0 frames: a tenth of the pages.
const FRAMES: u32 = BLOCKS * PLANES as u32 / 10;
/// How long each load is measured.
const TIME: Duration = Duration::from_secs(2);

fn config() -> SpaceConfig {
    SpaceConfig {
        page_tokens: 16,
        planes: vec![Plane { page_bytes: PAGE_BYTES, kind: PlaneKind::Full }; usize::from(PLANES)],
        shards: 1,
        limits: Limits {
            sessions_max: 4,
            blocks_max: BLOCKS_MAX,
            seqs_max: 64,
            seq_blocks_max: BLOCKS,
            lanes_max: 4,
            jobs_max: 256,
            requests_max: 256,
            host_bytes_max: u64::from(BLOCKS) * u64::from(PLANES) * u64::from(PAGE_BYTES) * 2,
            nvme_bytes_max: 0,
            ios_max: 64,
            entries_max: BLOCKS_MAX,
            log_requests_max: 16,
        },
        policy: Policy {
            host_high_percent: 98,
            host_low_percent: 95,
            scan_frames: 256,
            request_timeout_us: 10_000_000,
            ..Policy::plain()
        },
    }
}

/// Result of one load.
struct Load {
    transitions: u64,
    elapsed: Duration,
    allocations: u64,
}

/// Run `round` repeatedly for [`TIME`], after one warm-up call.
fn run(world: &mut World, mut round: impl FnMut(&mut World) -> Result<(), BenchError>) -> Result<Load, BenchError> {
    round(world)?;
    let before = world.core.counters().transitions;
    let region = Region::new(&INSTRUMENTED_SYSTEM);
    let began = Instant::now();
    while began.elapsed() < TIME {
        round(world)?;
    }
    let elapsed = began.elapsed();
    let stats = region.change();
    let allocations = (stats.allocations + stats.reallocations) as u64;
    Ok(Load { transitions: world.core.counters().transitions - before, elapsed, allocations })
}

/// Return a world with all sequences, filled.
fn filled() -> Result<World, BenchError> {
    let mut world = World::new(config(), FRAMES)?;
    for seq in 0..SEQS {
        world.fill(seq, BLOCKS / SEQS)?;
    }
    Ok(world)
}

fn scan(world: &mut World) -> Result<(), BenchError> {
    world.step(&std::array::from_fn::<u32, { SEQS as usize }, _>(|seq| seq as u32))
}

fn churn(world: &mut World) -> Result<(), BenchError> {
    world.come_and_go(SEQS, BLOCKS / 16)
}

/// Check that the allocation counter works.
fn check_counter() -> Result<(), BenchError> {
    let region = Region::new(&INSTRUMENTED_SYSTEM);
    drop(std::hint::black_box(vec![0u8; 100]));
    if region.change().allocations == 0 {
        return Err(BenchError::Odd("allocations are not counted: this binary uses another global allocator".into()));
    }
    Ok(())
}

/// Run the benchmark.
pub(super) fn measure() -> Result<Report, BenchError> {
    check_counter()?;
    let mut world = filled()?;
    let scan = run(&mut world, scan)?;
    let churn = run(&mut world, churn)?;
    let rate = |load: &Load| (load.transitions as f64 / load.elapsed.as_secs_f64()) as u64;
    let (transitions, elapsed) = (scan.transitions + churn.transitions, scan.elapsed + churn.elapsed);
    let both = Load { transitions, elapsed, allocations: scan.allocations + churn.allocations };
    let per_page = metadata_bytes_per_page(&world.core);
    let mut report = Report::default();
    let at_least = Some(Target::AtLeast(3e6));
    report.count("transitions_per_s", "page state transitions, one thread", rate(&both), "/s", at_least);
    report.count("metadata_bytes_per_page", "metadata", per_page, "bytes/page", Some(Target::AtMost(96.0)));
    report.count("allocations", "allocations during the measurement", both.allocations, "", Some(Target::AtMost(0.0)));
    index::measure(config(), &mut report)?;
    feed::measure(&config(), &mut report)?;
    report.note(format!(
        "scan alone {}/s, churn alone {}/s; {PAGES} pages, {FRAMES} frames",
        rate(&scan),
        rate(&churn)
    ));
    Ok(report)
}

/// Return what no machine changes, a line each: what the core did in each load, and the bytes of its tables.
pub(super) fn counts() -> Result<String, BenchError> {
    check_counter()?;
    let mut world = filled()?;
    let mut lines = vec![acted("fill", &world.core)];
    scan(&mut world)?;
    lines.push(acted("scan", &world.core));
    churn(&mut world)?;
    lines.push(acted("churn", &world.core));
    let region = Region::new(&INSTRUMENTED_SYSTEM);
    for _ in 0..2 {
        scan(&mut world)?;
        churn(&mut world)?;
    }
    let stats = region.change();
    lines.push(acted("both twice", &world.core));
    lines.push(format!("both twice: {} allocations", stats.allocations + stats.reallocations));
    lines.push(format!("metadata: {} bytes/page", metadata_bytes_per_page(&world.core)));
    let restored = index::core(config(), index::ENTRIES, true)?;
    lines.push(acted("restore", &restored));
    lines.push(format!("restore: {:.2} bytes/block", restored.index_bytes() as f64 / f64::from(index::ENTRIES)));
    lines.push(acted("evict", &feed::evict_all(&config(), false)?.1));
    lines.push(acted("evict, followed", &feed::evict_all(&config(), true)?.1));
    lines.push(format!("index: {:.2} bytes/block", index::bytes_per_block()?));
    Ok(lines.join("\n") + "\n")
}

fn acted(load: &str, core: &Core) -> String {
    let (trace, transitions) = (core.trace(), core.counters().transitions);
    format!("{load}: {} actions, hash {:016x}, {transitions} transitions", trace.actions(), trace.hash())
}

fn metadata_bytes_per_page(core: &Core) -> u64 {
    core.metadata_bytes() as u64 / PAGES
}
