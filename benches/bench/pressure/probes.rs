//! Threads concurrent with the load: metrics requests, lookups, a ping between two threads, demand reads.

use super::super::block_engine::BlockEngine;
use super::super::nvme::failed;
use super::BenchError;
use super::load::{TIMEOUT, attach, hash};
use kvtide_daemon::error::Error;
use kvtide_daemon::http::client::Address;
use kvtide_wire::entry::Level;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Pause between two scrapes.
const SCRAPE: Duration = Duration::from_millis(20);
/// Pause between two lookups, and between two pings.
const LOOKUP: Duration = Duration::from_millis(1);
/// Pause between two demand reads, as of fio's reader.
pub(super) const DEMAND: Duration = Duration::from_millis(20);
/// Blocks of the prefix of the lookups.
const PREFIX: u32 = 32;
/// Bytes of the sessions' own blocks.
const OWN_BYTES: u32 = 4 << 20;
/// Number of one-block prefixes that are read in turn; for larger blocks fewer, so that they fill an eighth of host memory.
const DEMAND_PREFIXES: u64 = 256;
/// Owners of the probes' hashes: above all engines.
const LOOKUP_OWNER: u16 = 1000;
const DEMAND_OWNER: u16 = 1001;

/// Progress of the load.
#[derive(Debug, Default)]
pub(super) struct Running {
    ended: AtomicBool,
    /// Bytes stored by the engines.
    bytes: AtomicU64,
}

impl Running {
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    pub(super) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn goes_on(&self) -> bool {
        !self.ended.load(Ordering::Relaxed)
    }
}

/// Results of the scraper.
#[derive(Debug, Default)]
pub(super) struct Scrapes {
    pub(super) us: Vec<u64>,
    /// Requests without a response.
    pub(super) unanswered: u64,
    /// Responses of `/healthz` other than 200.
    pub(super) unhealthy: u64,
}

/// Request `/metrics` and `/healthz` repeatedly.
pub(super) fn scrape(address: &Address, running: &Running) -> Scrapes {
    let mut scrapes = Scrapes::default();
    while running.goes_on() {
        for path in ["/metrics", "/healthz"] {
            let began = Instant::now();
            let answer = address.get(path);
            scrapes.us.push(began.elapsed().as_micros() as u64);
            match answer {
                Ok(_) => {}
                Err(Error::NotADaemon { .. }) => scrapes.unhealthy += u64::from(path == "/healthz"),
                Err(_) => scrapes.unanswered += 1,
            }
        }
        // PACE: ends with the load.
        std::thread::sleep(SCRAPE);
    }
    scrapes
}

/// Lookups of the same prefix.
pub(super) struct Lookups {
    session: BlockEngine,
    hashes: Vec<u128>,
}

impl Lookups {
    pub(super) fn attach(socket: &Path, block: u32) -> Result<Lookups, BenchError> {
        let own: Vec<u32> = (0..(OWN_BYTES / block).clamp(1, PREFIX)).collect();
        let mut session = attach(socket, block, own.len() as u32)?;
        let hashes: Vec<u128> = (0..PREFIX).map(|block| hash(LOOKUP_OWNER, 0, block)).collect();
        session.store_chain(&hashes, &own, Level::Published, |_, _| Ok(()))?;
        Ok(Lookups { session, hashes })
    }

    /// Run lookups. Return the nanoseconds of each, and the number that did not find the whole prefix.
    pub(super) fn run(mut self, running: &Running) -> (Vec<u64>, u64) {
        let (mut ns, mut short) = (Vec::new(), 0);
        while running.goes_on() {
            let began = Instant::now();
            let found = self.session.channel.lookup(&self.hashes, TIMEOUT);
            ns.push(began.elapsed().as_nanos() as u64);
            // A lookup that timed out counts with its time.
            short += u64::from(!found.is_ok_and(|found| found.blocks == PREFIX));
            // PACE: ends with the load.
            std::thread::sleep(LOOKUP);
        }
        (ns, short)
    }
}

/// Wake another thread and wait for its reply, at the rate of lookups. Return the nanoseconds of each round trip.
pub(super) fn ping(running: &Running) -> Result<Vec<u64>, BenchError> {
    let bell = || eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| failed("create an eventfd", e));
    let (there, back) = (bell()?, bell()?);
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| -> Result<(), BenchError> {
            // The last wake-up comes when the load has ended.
            loop {
                wait(&there)?;
                let last = !running.goes_on();
                ring(&back)?;
                if last {
                    return Ok(());
                }
            }
        });
        let mut ns = Vec::new();
        let rounds = (|| {
            while running.goes_on() {
                let began = Instant::now();
                ring(&there)?;
                wait(&back)?;
                ns.push(began.elapsed().as_nanos() as u64);
                // PACE: ends with the load.
                std::thread::sleep(LOOKUP);
            }
            Ok(())
        })();
        if !echo.is_finished() {
            ring(&there)?;
        }
        let echoed =
            echo.join().unwrap_or_else(|_| Err(BenchError::Odd("the second thread of the ping panicked".into())));
        rounds.and(echoed).map(|()| ns)
    })
}

fn ring(bell: &OwnedFd) -> Result<(), BenchError> {
    rustix::io::write(bell, &1u64.to_ne_bytes()).map(|_| ()).map_err(|e| failed("signal an eventfd", e))
}

fn wait(bell: &OwnedFd) -> Result<(), BenchError> {
    let mut count = [0; 8];
    rustix::io::retry_on_intr(|| rustix::io::read(bell, &mut count))
        .map(|_| ())
        .map_err(|e| failed("wait for an eventfd", e))
}

/// Loads of one-block prefixes that are only on NVMe.
pub(super) struct Demand {
    session: BlockEngine,
    /// For each prefix, the bytes that the engines had stored at its last use.
    used: Vec<u64>,
    /// Bytes after which a prefix has been evicted from host memory.
    pushed: u64,
}

impl Demand {
    pub(super) fn attach(socket: &Path, block: u32, host: u64) -> Result<Demand, BenchError> {
        let prefixes = DEMAND_PREFIXES.min(host / 8 / u64::from(block)).max(4) as u32;
        let mut session = attach(socket, block, 1)?;
        for prefix in 0..prefixes {
            session.store((0, 0), &[hash(DEMAND_OWNER, prefix, 0)], &[0], Level::Published)?;
        }
        Ok(Demand { session, used: vec![0; prefixes as usize], pushed: host + host / 4 })
    }

    /// Read until the load ends.
    pub(super) fn run(mut self, running: &Running) -> Result<Reads, BenchError> {
        let (mut reads, mut next) = (Reads::default(), 0);
        while running.goes_on() {
            // A lookup of a prefix in host memory would keep it there.
            let stored = running.bytes();
            if stored - self.used[next] >= self.pushed {
                self.used[next] = stored;
                self.read(next as u32, &mut reads)?;
                next = (next + 1) % self.used.len();
            }
            // PACE: ends with the load.
            std::thread::sleep(DEMAND);
        }
        Ok(reads)
    }

    /// Load a prefix that is only on NVMe.
    fn read(&mut self, prefix: u32, reads: &mut Reads) -> Result<(), BenchError> {
        let began = Instant::now();
        let leased = self.session.lease(&[hash(DEMAND_OWNER, prefix, 0)]);
        reads.lease_ns = reads.lease_ns.max(began.elapsed().as_nanos() as u64);
        let Ok(lease) = leased else {
            reads.gone += 1;
            return Ok(());
        };
        if lease.on_nvme == 1 && lease.in_host == 0 {
            let began = Instant::now();
            let loaded = self.session.load(lease.seq, 0, &[0]);
            // A failed load counts with its time.
            reads.ns.push(began.elapsed().as_nanos() as u64);
            reads.failed += u64::from(loaded.is_err());
        } else {
            reads.in_host += 1;
        }
        self.session.release(lease.seq)
    }
}

/// Results of the demand reads.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// Nanoseconds of each load.
    pub(super) ns: Vec<u64>,
    /// The longest lease.
    pub(super) lease_ns: u64,
    pub(super) failed: u64,
    /// Prefixes that were still in host memory, and prefixes that could not be leased.
    pub(super) in_host: u64,
    pub(super) gone: u64,
}
