//! Lookups of longest prefixes of 1,024 blocks, full and partial, and leases on them, with many blocks cached.

use super::super::percentile;
use super::{BenchError, Engine, TIMEOUT, daemon, python, trying};
use std::path::Path;
use std::time::{Duration, Instant};

/// Blocks of a chain, and hashes of a lookup.
const CHAIN: u32 = 1024;
/// Bytes of a block: the minimum of a frame, because the bytes are not accessed.
const BLOCK_BYTES: u32 = 64;
/// Hashes of one store.
const STORE: usize = 102;
const ROUNDS: u32 = 2000;
const LEASES: u32 = 200;

/// Results.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookups {
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) lease_us: f64,
    pub(super) stored_per_s: u64,
    /// Lookups from Python, p50 and p99, if an interpreter is given.
    pub(super) python_us: Option<(f64, f64)>,
}

fn chain(number: u32) -> Vec<u128> {
    // Any 128 bits work; these are spread like hashes.
    let spread = |i: u32| u128::from(number) << 64 | u128::from(i + 1);
    (0..CHAIN).map(|i| spread(i).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) | 1).collect()
}

pub(super) fn measure(blocks: u32, interpreter: Option<&Path>) -> Result<Lookups, BenchError> {
    let chains = blocks / CHAIN;
    let mut daemon = daemon(2 * u64::from(blocks) * u64::from(BLOCK_BYTES) + (128 << 20), blocks)?;
    let mut engine = Engine::attach(daemon.socket(), BLOCK_BYTES, STORE as u32)?;
    let own: Vec<u32> = (0..STORE as u32).collect();
    let began = Instant::now();
    for number in 0..chains {
        let hashes = chain(number);
        for (i, part) in hashes.chunks(STORE).enumerate() {
            let first = i * STORE;
            let parent = if first == 0 { 0 } else { hashes[first - 1] };
            engine.store((first as u32, parent), part, &own[..part.len()])?;
        }
    }
    let stored_per_s = (f64::from(chains * CHAIN) / began.elapsed().as_secs_f64()) as u64;
    let (mut times, mut turn) = (Vec::with_capacity(ROUNDS as usize), 1u32);
    for _ in 0..ROUNDS {
        turn = turn.wrapping_mul(0x9e37_79b1).wrapping_add(0x85eb_ca6b);
        // Any number of the prompt's blocks is cached.
        let (known, mut hashes) = ((turn >> 16) % (CHAIN + 1), chain(turn % chains));
        hashes[known as usize..].iter_mut().for_each(|hash| *hash = hash.wrapping_add(2));
        let began = Instant::now();
        let found = trying("look up a prefix", engine.channel.lookup(&hashes, TIMEOUT))?;
        times.push(nanos(began.elapsed()));
        if found.blocks != known {
            return Err(BenchError::Odd(format!("found {} of {known} blocks", found.blocks)));
        }
    }
    let mut leases = Vec::with_capacity(LEASES as usize);
    for number in 0..LEASES {
        let last = chain(number % chains)[CHAIN as usize - 1];
        let began = Instant::now();
        let lease = trying("lease a prefix", engine.channel.lease(last, CHAIN, TIMEOUT, TIMEOUT))?;
        leases.push(nanos(began.elapsed()));
        trying("release a lease", engine.channel.drop_seq(lease.seq))?;
    }
    let python = interpreter.map(|interpreter| python::measure(interpreter, daemon.socket(), BLOCK_BYTES, chains));
    let python_us = python.transpose()?;
    daemon.stop()?;
    let us = |times: &mut [u64], percent| percentile(times, percent) as f64 / 1e3;
    let (p50_us, p99_us) = (us(&mut times, 50), us(&mut times, 99));
    Ok(Lookups { p50_us, p99_us, lease_us: us(&mut leases, 50), stored_per_s, python_us })
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
