//! The daemon as its engines and its operator meet it: real processes, bad input, and kills.
//!
//! Engines that must be processes of their own are this test binary again, running one of [`roles`].
#![allow(clippy::unwrap_used)] // helpers of tests too: a panic there is a failure with a place

mod blocks;
mod canary;
mod clients;
mod config;
mod crowds;
mod given_up;
mod hostile;
mod http;
mod large;
mod lifecycle;
mod logged;
mod memory;
mod names;
mod nvme;
mod operators;
mod peers;
mod policy;
mod queued;
mod raw;
mod recorder;
mod reload;
mod requests;
mod resize;
mod restart;
mod roles;
mod sketches;
mod spaces;
mod stall;
mod systemd;
mod tenants;
mod threads;
mod tokens;
mod tool;
mod vanished;
mod warm;

use kvtide_daemon::cli::private_daemon::{Options, PrivateDaemon};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Bound of every wait in these tests; far above what a loaded machine needs.
const BOUND: Duration = Duration::from_secs(30);

/// A private daemon of the binary under test.
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

/// Asks the daemon how it stands until `wanted` holds; panics with the last answer if it does not within the bound.
fn until_status(daemon: &mut PrivateDaemon, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + BOUND;
    loop {
        let status = daemon.status().unwrap();
        if wanted(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "never {what}: {status:#}\n{}", daemon.log());
    }
}

/// Sessions of the status dump that are live, and those that linger.
fn sessions(status: &Value) -> (usize, usize) {
    let all = status["sessions"].as_array().unwrap();
    let live = all.iter().filter(|session| session["live"] == true).count();
    (live, all.len() - live)
}
