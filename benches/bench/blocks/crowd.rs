//! Eight clients at one daemon: the longest lookup under concurrency, and their total throughput compared with one client alone.
//!
//! Each client is a thread with its own session. It repeatedly looks up a prefix of 1,024 blocks, leases the part it needs, loads it,
//! and releases the lease. The machine's own share is measured with the same clients and loads, which instead of each lookup send a
//! byte to a thread that echoes it.

use super::client::{Stats, Work};
use super::{BenchError, daemon};
use crate::bench::median;
use crate::bench::nvme::failed;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const CLIENTS: u16 = 8;
const ROUNDS: usize = 5;
/// Measured time per round of one client alone, and of all clients.
const TIME: Duration = Duration::from_millis(600);

/// Results.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    /// Of the lookups of all clients.
    pub(super) lookups: Stats,
    /// Of the echoed bytes.
    pub(super) machine: Stats,
    /// Total throughput divided by that of one client, for each round.
    ratios: Vec<f64>,
    alone: Vec<f64>,
    all: Vec<f64>,
}

impl Crowd {
    pub(super) fn ratio(&self) -> f64 {
        median(&self.ratios)
    }

    pub(super) fn note(&self) -> String {
        format!(
            "one client alone {:.2} GB/s, with as many lookups as loads of 2 MiB; {CLIENTS} clients together {:.2} GB/s",
            median(&self.alone) / 1e9,
            median(&self.all) / 1e9
        )
    }
}

/// Return a connection to a new thread that echoes every byte, so that wake-ups depend on the scheduler only.
fn echo() -> Result<UnixStream, BenchError> {
    let (ours, mut theirs) = UnixStream::pair().map_err(|e| failed("make a pair of sockets", e))?;
    let serve = move || {
        let mut byte = [0];
        while theirs.read_exact(&mut byte).is_ok() && theirs.write_all(&byte).is_ok() {}
    };
    std::thread::Builder::new().name("echo".into()).spawn(serve).map_err(|e| failed("start a thread", e))?;
    Ok(ours)
}

pub(super) fn measure() -> Result<Crowd, BenchError> {
    let mut daemon = daemon(Work::CACHED_BYTES * 2 + (64 << 20), 4 * Work::CACHED)?;
    let attach = |number| Work::attach(daemon.socket(), echo()?, number);
    let mut clients = (0..CLIENTS).map(attach).collect::<Result<Vec<Work>, BenchError>>()?;
    clients[0].fill()?;
    let mut crowd = Crowd::default();
    for round in 0..=ROUNDS {
        let alone = clients[0].run(TIME, true)?;
        let all = together(&mut clients, true)?;
        let beside = together(&mut clients, false)?;
        // The first round maps memory.
        if round > 0 {
            crowd.ratios.push(all.rate() / alone.rate());
            crowd.alone.push(alone.rate());
            crowd.all.push(all.rate());
            crowd.lookups.add(all);
            crowd.machine.add(beside);
        }
    }
    drop(clients);
    daemon.stop()?;
    Ok(crowd)
}

/// Run all clients at the same time, with lookups or with echoed bytes.
fn together(clients: &mut [Work], lookups: bool) -> Result<Stats, BenchError> {
    std::thread::scope(|scope| {
        let running: Vec<_> = clients.iter_mut().map(|work| scope.spawn(move || work.run(TIME, lookups))).collect();
        let mut all = Stats::default();
        for client in running {
            all.beside(client.join().map_err(|_| BenchError::Odd("a client panicked".into()))??);
        }
        Ok(all)
    })
}
