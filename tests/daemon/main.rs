//! End-to-end tests of the daemon: real processes, invalid input, and kills.
//!
//! Engines in their own processes are this test binary, started again with one of the [`roles`].
#![allow(clippy::unwrap_used)] // helpers of tests too: a panic there is a failure with a place

mod adapters;
mod blocks;
mod clients;
mod config;
mod crowds;
mod examples;
mod guarantee;
mod hostile;
mod http;
mod identities;
mod integrity_sample;
mod large;
mod lifecycle;
mod logged;
mod memory;
mod names;
mod nvme;
mod operate;
mod operators;
mod peers;
mod policy;
mod prometheus;
mod queued;
mod raw;
mod recorder;
mod relay;
mod reload;
mod requests;
mod resize;
mod restart;
mod roles;
mod shared;
mod sketches;
mod spaces;
mod stall;
mod systemd;
mod tenants;
mod threads;
mod tokens;
mod tool;
mod trace;
mod vanished;
mod warm;
mod why;

use kvtide_bench::private_daemon::{Options, PrivateDaemon};
use serde_json::Value;
use std::fmt::Display;
use std::time::{Duration, Instant};

/// Time limit of every wait in these tests; far more than a loaded machine needs.
const BOUND: Duration = Duration::from_secs(30);

/// Start a private daemon from the binary under test.
fn daemon(config: &str) -> PrivateDaemon {
    PrivateDaemon::start(&options(config)).unwrap()
}

fn options(config: &str) -> Options {
    Options {
        binary: Some(env!("CARGO_BIN_EXE_kvtide").into()),
        host_bytes: Some(64 << 20),
        slab_bytes: Some(1 << 20),
        config: Some(config.to_owned()),
        ..Options::default()
    }
}

/// Wait until `wanted` holds. Panic with `what` if it does not hold within [`BOUND`].
#[track_caller]
fn until<T: Display>(what: impl Fn() -> T, mut wanted: impl FnMut() -> bool) {
    let deadline = Instant::now() + BOUND;
    while !wanted() {
        assert!(Instant::now() < deadline, "{}", what());
        std::thread::yield_now();
    }
}

/// Request the daemon's status until `wanted` holds. Panic with the last status if it does not hold within [`BOUND`].
fn until_status(daemon: &mut PrivateDaemon, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + BOUND;
    loop {
        let status = daemon.status().unwrap();
        if wanted(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "timed out waiting until {what}: {status:#}\n{}", daemon.log());
    }
}

/// Return the number of live sessions in a status, and of sessions that wait for their process to exit.
fn sessions(status: &Value) -> (usize, usize) {
    let all = status["sessions"].as_array().unwrap();
    let live = all.iter().filter(|session| session["live"] == true).count();
    (live, all.len() - live)
}
