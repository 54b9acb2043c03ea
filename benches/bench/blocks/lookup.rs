//! Lookups of longest prefixes of 1,024 blocks, full and partial, and leases on them, with many blocks cached.

use super::super::percentile;
use super::{BenchError, TIMEOUT, attach, daemon, python, spread, trying};
use kvtide_types::random::Random;
use kvtide_wire::entry::Level;
use std::path::Path;
use std::time::Instant;

/// Blocks of a chain, and hashes of a lookup.
const CHAIN: u32 = 1024;
/// Bytes of a block: the minimum of a frame, because the bytes are not accessed.
const BLOCK_BYTES: u32 = 64;
/// Hashes of one store.
const STORE: u32 = 102;
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
    (1..=u128::from(CHAIN)).map(|block| spread(u128::from(number) << 64 | block)).collect()
}

pub(super) fn measure(blocks: u32, interpreter: Option<&Path>) -> Result<Lookups, BenchError> {
    let chains = blocks / CHAIN;
    let mut daemon = daemon(2 * u64::from(blocks) * u64::from(BLOCK_BYTES) + (128 << 20), blocks)?;
    let mut engine = attach(daemon.socket(), BLOCK_BYTES, STORE)?;
    let own: Vec<u32> = (0..STORE).collect();
    let began = Instant::now();
    for number in 0..chains {
        engine.store_chain(&chain(number), &own, Level::Published, |_, _| Ok(()))?;
    }
    let stored_per_s = (f64::from(chains * CHAIN) / began.elapsed().as_secs_f64()) as u64;
    let (mut times, mut random) = (Vec::with_capacity(ROUNDS as usize), Random::new(1));
    for _ in 0..ROUNDS {
        // Any number of the prompt's blocks is cached.
        let known = random.below(u64::from(CHAIN) + 1) as u32;
        let mut hashes = chain(random.below(chains.into()) as u32);
        hashes[known as usize..].iter_mut().for_each(|hash| *hash = hash.wrapping_add(2));
        let began = Instant::now();
        let found = trying("look up a prefix", engine.channel.lookup(&hashes, TIMEOUT))?;
        times.push(began.elapsed().as_nanos() as u64);
        if found.blocks != known {
            return Err(BenchError::Odd(format!("found {} of {known} blocks", found.blocks)));
        }
    }
    let mut leases = Vec::with_capacity(LEASES as usize);
    for number in 0..LEASES {
        let hashes = chain(number % chains);
        let began = Instant::now();
        let lease = engine.lease(&hashes)?;
        leases.push(began.elapsed().as_nanos() as u64);
        engine.release(lease.seq)?;
    }
    let python = interpreter.map(|interpreter| python::measure(interpreter, daemon.socket(), BLOCK_BYTES, chains));
    let python_us = python.transpose()?;
    daemon.stop()?;
    let us = |times: &mut [u64], percent| percentile(times, percent) as f64 / 1e3;
    let (p50_us, p99_us) = (us(&mut times, 50), us(&mut times, 99));
    Ok(Lookups { p50_us, p99_us, lease_us: us(&mut leases, 50), stored_per_s, python_us })
}
