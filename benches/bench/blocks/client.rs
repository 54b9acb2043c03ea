//! One client of the concurrent benchmark: its work loop and its counters.

use super::{BenchError, BlockEngine, TIMEOUT, attach, spread, trying};
use crate::bench::nvme::failed;
use crate::bench::percentile;
use kvtide_types::random::Random;
use kvtide_wire::entry::Level;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Work done by a client, or by several at the same time.
#[derive(Debug, Default)]
pub(super) struct Stats {
    /// Nanoseconds of each lookup, or of each echoed byte.
    ns: Vec<u64>,
    bytes: u64,
    seconds: f64,
}

impl Stats {
    /// Return the bytes loaded a second.
    pub(super) fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }

    /// Add the work of another client at the same time.
    pub(super) fn beside(&mut self, other: Stats) {
        self.ns.extend(other.ns);
        self.bytes += other.bytes;
        self.seconds = self.seconds.max(other.seconds);
    }

    /// Add work done at another time.
    pub(super) fn add(&mut self, other: Stats) {
        let seconds = self.seconds + other.seconds;
        self.beside(other);
        self.seconds = seconds;
    }

    pub(super) fn percentile_us(&mut self, percent: usize) -> f64 {
        percentile(&mut self.ns, percent) as f64 / 1e3
    }
}

/// The work loop of a client.
pub(super) struct Work {
    engine: BlockEngine,
    echo: UnixStream,
    random: Random,
    own: Vec<u32>,
}

impl Work {
    const BLOCK_BYTES: u32 = 64 << 10;
    /// Blocks of a chain, and hashes of a lookup.
    const CHAIN: u32 = 1024;
    /// Number of cached chains.
    const CHAINS: u32 = 4;
    /// Number of cached blocks.
    pub(super) const CACHED: u32 = Work::CHAIN * Work::CHAINS;
    pub(super) const CACHED_BYTES: u64 = Work::CACHED as u64 * Work::BLOCK_BYTES as u64;
    /// Blocks of one load, and of the client's own tensor.
    const OWN: u32 = 32;

    fn chain(number: u32) -> impl Iterator<Item = u128> {
        (1..=u128::from(Work::CHAIN)).map(move |block| spread(u128::from(number + 1) << 64 | block))
    }

    /// Attach a client.
    pub(super) fn attach(socket: &Path, echo: UnixStream, number: u16) -> Result<Work, BenchError> {
        let engine = attach(socket, Work::BLOCK_BYTES, Work::OWN)?;
        Ok(Work { engine, echo, random: Random::new(number.into()), own: (0..Work::OWN).collect() })
    }

    /// Store all chains.
    pub(super) fn fill(&mut self) -> Result<(), BenchError> {
        for number in 0..Work::CHAINS {
            let hashes: Vec<u128> = Work::chain(number).collect();
            self.engine.store_chain(&hashes, &self.own, Level::Published, |_, _| Ok(()))?;
        }
        Ok(())
    }

    /// Run for `time`, with lookups or, without, with echoed bytes.
    pub(super) fn run(&mut self, time: Duration, lookups: bool) -> Result<Stats, BenchError> {
        let (began, mut stats) = (Instant::now(), Stats::default());
        while began.elapsed() < time {
            let chain = self.random.below(Work::CHAINS.into()) as u32;
            let known = Work::OWN + self.random.below(u64::from(Work::CHAIN - Work::OWN)) as u32;
            let ns = if lookups { self.look_up(chain, known)? } else { self.send_a_byte()? };
            stats.ns.push(ns);
            self.load(chain)?;
            stats.bytes += u64::from(Work::OWN) * u64::from(Work::BLOCK_BYTES);
        }
        stats.seconds = began.elapsed().as_secs_f64();
        Ok(stats)
    }

    fn look_up(&mut self, chain: u32, known: u32) -> Result<u64, BenchError> {
        let mut hashes: Vec<u128> = Work::chain(chain).collect();
        hashes[known as usize..].iter_mut().for_each(|hash| *hash ^= 2);
        let began = Instant::now();
        let found = trying("look up a prefix", self.engine.channel.lookup(&hashes, TIMEOUT))?;
        let ns = began.elapsed().as_nanos() as u64;
        if found.blocks != known {
            return Err(BenchError::Odd(format!("found {} of {known} blocks", found.blocks)));
        }
        Ok(ns)
    }

    fn send_a_byte(&mut self) -> Result<u64, BenchError> {
        let began = Instant::now();
        let sent = self.echo.write_all(&[1]).and_then(|()| self.echo.read_exact(&mut [0]));
        sent.map_err(|e| failed("echo a byte", e))?;
        Ok(began.elapsed().as_nanos() as u64)
    }

    fn load(&mut self, chain: u32) -> Result<(), BenchError> {
        let hashes: Vec<u128> = Work::chain(chain).take(Work::OWN as usize).collect();
        let lease = self.engine.lease(&hashes)?.seq;
        self.engine.load(lease, 0, &self.own)?;
        self.engine.release(lease)
    }
}
