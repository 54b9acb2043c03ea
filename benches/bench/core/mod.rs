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
use kvtide_tiering::api::{Limits, Plane, PlaneKind, Policy, SpaceConfig};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region};
use std::time::{Duration, Instant};

/// Planes of the space: an 8B model's layers.
const PLANES: u16 = 32;
/// Bytes of a page: 16 tokens of GQA with 8 heads of 128 in bf16, keys and values.
const PAGE_BYTES: u32 = 64 << 10;
/// Blocks of all sequences together: 64 Ki tokens.
const BLOCKS: u32 = 4096;
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
            blocks_max: BLOCKS + BLOCKS / 8,
            seqs_max: 64,
            seq_blocks_max: BLOCKS,
            lanes_max: 4,
            jobs_max: 256,
            requests_max: 256,
            host_bytes_max: u64::from(BLOCKS) * u64::from(PLANES) * u64::from(PAGE_BYTES) * 2,
            nvme_bytes_max: 0,
            ios_max: 64,
            entries_max: BLOCKS + BLOCKS / 8,
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
    let mut world = World::new(config(), FRAMES)?;
    let each = BLOCKS / SEQS;
    for seq in 0..SEQS {
        world.fill(seq, each)?;
    }
    let seqs: Vec<u32> = (0..SEQS).collect();
    let scan = run(&mut world, |world| world.step(&seqs))?;
    let churn = run(&mut world, |world| world.come_and_go(SEQS, BLOCKS / 16))?;
    let rate = |load: &Load| (load.transitions as f64 / load.elapsed.as_secs_f64()) as u64;
    let (transitions, elapsed) = (scan.transitions + churn.transitions, scan.elapsed + churn.elapsed);
    let both = Load { transitions, elapsed, allocations: scan.allocations + churn.allocations };
    let pages = u64::from(config().limits.blocks_max) * u64::from(PLANES);
    let per_page = world.core.metadata_bytes() as u64 / pages;
    let mut report = Report::default();
    let at_least = Some(Target::AtLeast(3e6));
    report.count("transitions_per_s", "page state transitions, one thread", rate(&both), "/s", at_least);
    report.count("metadata_bytes_per_page", "metadata", per_page, "bytes/page", Some(Target::AtMost(96.0)));
    report.count("allocations", "allocations during the measurement", both.allocations, "", Some(Target::AtMost(0.0)));
    index::measure(config(), &mut report)?;
    feed::measure(&config(), &mut report)?;
    report.note(format!(
        "scan alone {}/s, churn alone {}/s; {pages} pages, {FRAMES} frames",
        rate(&scan),
        rate(&churn)
    ));
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A refactoring must not change the core's actions. The test compares a hash of all actions of both loads.
    #[test]
    fn both_loads_cause_the_same_actions_as_ever() {
        let mut world = World::new(config(), FRAMES).expect("a world");
        let each = BLOCKS / SEQS;
        (0..SEQS).for_each(|seq| world.fill(seq, each).expect("it is filled"));
        let seqs: Vec<u32> = (0..SEQS).collect();
        for _ in 0..3 {
            world.step(&seqs).expect("a step");
            world.come_and_go(SEQS, BLOCKS / 16).expect("it comes and goes");
        }
        let trace = world.core.trace();
        assert_eq!((trace.actions(), format!("{:016x}", trace.hash())), (677_513, "1a0fc7e095f18953".into()));
    }
}
