//! Comparison of policies on services of several kinds.

use super::super::machine::Bandwidths;
use super::super::trace::{Requests, requests::Request};
use super::drive::{self, Setup};
use super::kinds::{KINDS, loops, trace};
use super::{BLOCK_TOKENS, HOST_MIN, share};
use kvtide_tiering::api::{Admission, Eviction};

/// Maximum loss of `auto` on one kind of service at one size against the best other policy. The traces are so short that they
/// include the learning phase.
const LOSS_MAX: f64 = 0.025;
/// Minimum mean gain over all of them.
const GAIN_MIN: f64 = 0.01;

/// Return the settings of a cache of a percentage of the trace's blocks, part of them in host memory.
fn cache(trace: &Requests, eviction: Eviction, percent: f64, host_percent: f64) -> Setup {
    let capacity = share(trace.distinct(), percent);
    Setup {
        host: share(capacity, host_percent).max(trace.longest() + HOST_MIN),
        nvme: if host_percent < 100.0 { capacity } else { 0 },
        block_bytes: 4096 * BLOCK_TOKENS,
        bandwidths: Bandwidths { host: 25.0, nvme: 6.0 },
        admission: Admission::All,
        bytes_per_day: 0,
        eviction,
    }
}

/// Return the hit rate.
fn hits(trace: &Requests, eviction: Eviction, percent: f64, host_percent: f64) -> f64 {
    let setup = cache(trace, eviction, percent, host_percent);
    let outcome = drive::replay(trace, setup, format!("{eviction:?}, {percent} %")).expect("the replay succeeds");
    outcome.found as f64 / outcome.asked as f64
}

/// `auto` is never far from the best simple policy, and better on average: with host memory alone and with NVMe.
#[test]
fn auto_suits_services_of_every_kind() {
    let (mut more, mut cases) = (0.0, 0.0);
    for (seed, (kind, step)) in (1..).zip(KINDS) {
        let trace = trace(step, seed);
        for (percent, host) in [(6.0, 100.0), (6.0, 25.0), (15.0, 25.0)] {
            let of = |eviction| hits(&trace, eviction, percent, host);
            let others = [Eviction::Lru, Eviction::S3Fifo, Eviction::Arc].map(of);
            let (best, auto) = (others.into_iter().fold(0.0, f64::max), of(Eviction::Auto));
            let all =
                format!("{kind}, {percent} %, {host} % of it in host memory: auto {auto:.3}, others {others:.3?}");
            assert!(auto > best - LOSS_MAX, "{all}");
            more += auto - best;
            cases += 1.0;
        }
    }
    assert!(more > GAIN_MIN * cases, "in the mean {:+.4}", more / cases);
}

/// Return the same requests over a longer time, because the write budget works in minutes.
fn slower(trace: &Requests, times: u64) -> Requests {
    let line = |request: Request<'_>| {
        format!("{{\"timestamp\": {}, \"hash_ids\": {:?}}}\n", request.time_ms * times, request.blocks)
    };
    Requests::read(trace.iter().map(line).collect::<String>().as_bytes()).expect("well-formed")
}

/// Without a limit the default rule reaches the advised hit rate. With a low limit it is as good as the rule `budget`, and with the
/// advised limit it reaches the advised rate.
#[test]
fn a_run_finds_what_is_advised() {
    let trace = slower(&trace(loops, 7), 12);
    let run = |admission, bytes_per_day| {
        let setup = Setup { admission, bytes_per_day, ..cache(&trace, Eviction::Lru, 40.0, 10.0) };
        let outcome = drive::replay(&trace, setup, format!("{admission:?}, {bytes_per_day} bytes a day"))
            .expect("the replay succeeds");
        (outcome, outcome.found as f64 / outcome.asked as f64)
    };
    let (free, found) = run(Admission::All, 0);
    let (promised, _) = free.advised.expect("there are samples");
    assert!((found - promised).abs() < 0.03 && free.over_budget == 0, "found {found:.3}, advised {promised:.3}");

    let bytes = u128::from(free.written) * u128::from(4096 * BLOCK_TOKENS);
    let quarter = (bytes / 4 * 24 * 3600 * 1000 / u128::from(trace.span_ms())) as u64;
    let (_, found_budget) = run(Admission::Budget, quarter);
    let (short, found_short) = run(Admission::All, quarter);
    assert!(found_short > found_budget - 0.03, "found {found_short:.3}; the rule `budget` {found_budget:.3}");
    assert!(short.over_budget > 0 && found_short < found - 0.05, "found {found_short:.3} of {found:.3}");

    // An hour that begins with an empty bucket and a cold cache loses some blocks that later hours keep.
    let (promised, bytes_per_day) = short.advised.expect("there are samples");
    let (_, found_advised) = run(Admission::All, bytes_per_day);
    assert!(
        found_advised > found - 0.04,
        "found {found_advised:.3} at {bytes_per_day} bytes a day, {found:.3} without a limit"
    );
    assert!((found - promised).abs() < 0.03, "found {found:.3}, advised under the low limit {promised:.3}");
}
