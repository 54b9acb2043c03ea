//! Policies against each other, on services of several kinds.

use super::super::machine::Bandwidths;
use super::super::trace::Requests;
use super::drive::{self, Setup};
use super::kinds::{KINDS, trace};
use super::{BLOCK_TOKENS, HOST_MIN, share};
use kvtide_tiering::api::{Admission, Eviction};

/// What `auto` may lose on one kind of service at one size, against the best of the others there: these traces are so short that
/// learning is a part of them.
const LOSS_MAX: f64 = 0.025;
/// What it must win in the mean of all of them.
const GAIN_MIN: f64 = 0.01;

/// The share of blocks that is found again.
fn hits(trace: &Requests, eviction: Eviction, percent: f64, host_percent: f64) -> f64 {
    let capacity = share(trace.distinct(), percent);
    let setup = Setup {
        host: share(capacity, host_percent).max(trace.longest() + HOST_MIN),
        nvme: if host_percent < 100.0 { capacity } else { 0 },
        block_bytes: 4096 * BLOCK_TOKENS,
        bandwidths: Bandwidths { host: 25.0, nvme: 6.0 },
        admission: Admission::All,
        bytes_per_day: 0,
        eviction,
    };
    let outcome = drive::replay(trace, setup, format!("{eviction:?}, {percent} %")).expect("it runs");
    outcome.found as f64 / outcome.asked as f64
}

/// `auto` is nowhere far from the best of the simple policies, and better in the mean: with host memory alone and with NVMe.
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
