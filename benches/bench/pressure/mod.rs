//! `kvtide bench pressure`: engines that store several times the host memory through a private daemon, faster than its disk,
//! alternated with fio on a file in the same state.
//!
//! - `load`: the engines, and the lookups of all their blocks afterwards
//! - `probes`: concurrent threads: metrics requests, lookups, a wake-up ping, demand reads
//! - `store`: the daemon and its disk, new or previously written
//! - `fio`: the limit
//! - `figures`: figures of a row next to their targets
//!
//! A row is a block size, a state of the store and a number of engines. Every row has its own daemon with default settings. A chain
//! ends at its first rejected block. `rate_ratio` is the bytes found afterwards divided by the seconds of storing and by fio's
//! rate.

mod figures;
mod fio;
mod load;
mod probes;
mod store;

use super::folder::Folder;
use super::nvme::{LOOK, Stop, failed};
use super::report::{Report, Target};
use super::{BenchError, Output, percentile, progress};
use figures::{Beside, Row, Run};
use fio::Fio;
use kvtide_daemon::config::ByteSize;
use load::{Engine, Found, Shape, Stored};
use probes::{Demand, Lookups, Running};
use std::path::{Path, PathBuf};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};
use store::{Setup, Store};

/// Block size of the row without a disk.
const FILLED_BLOCK: u32 = 8 << 10;
/// Bytes left free on the file system.
const LEFT_FREE: u64 = 1 << 30;
/// Time after which unchanged free bytes are final.
const FREED: Duration = Duration::from_secs(2);

/// Flags of `kvtide bench pressure`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PressureArgs {
    /// Directory on the disk; files of several times the stored bytes are created and removed at the end
    #[arg(long)]
    dir: PathBuf,
    /// Block sizes
    #[arg(long, value_delimiter = ',', default_value = "4KiB,16KiB,64KiB,2MiB")]
    blocks: Vec<ByteSize>,
    /// Numbers of engines
    #[arg(long, value_delimiter = ',', default_value = "1,4", value_parser = clap::value_parser!(u16).range(1..=64))]
    engines: Vec<u16>,
    /// States of the store: a new file, or one that was written once before
    #[arg(long, value_delimiter = ',', default_value = "fresh,prepared")]
    state: Vec<State>,
    /// Host memory of the private daemon
    #[arg(long, default_value = "1GiB")]
    host: ByteSize,
    /// Stored bytes as a multiple of host memory
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=1000))]
    times: u32,
    /// NVMe capacity (default: ten times the stored bytes if fresh, four times if prepared, less if the disk is smaller)
    #[arg(long)]
    capacity: Option<ByteSize>,
    /// Another `kvtide` binary of the same protocol to alternate with
    #[arg(long, value_name = "PATH")]
    kvtided: Option<PathBuf>,
    #[command(flatten)]
    pub(super) output: Output,
}

/// State of the store's file at the begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum State {
    Fresh,
    Prepared,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Fresh => "fresh",
            State::Prepared => "prepared",
        }
    }
}

impl PressureArgs {
    fn check(&self) -> Result<(), BenchError> {
        let wrong = |what, value, expected: &str| BenchError::Setting { what, value, expected: expected.into() };
        if !self.dir.is_dir() {
            let why = std::io::Error::from(std::io::ErrorKind::NotADirectory);
            return Err(failed(format!("use {}", self.dir.display()), why));
        }
        let block = |block: &&ByteSize| !(4096..=64 << 20).contains(&block.0) || !block.0.is_multiple_of(4096);
        if let Some(block) = self.blocks.iter().find(block) {
            return Err(wrong("--blocks", block.0, "multiples of 4096, from 4096 to 67108864"));
        }
        if self.host.0 < 64 << 20 {
            return Err(wrong("--host", self.host.0, "at least 67108864"));
        }
        let stored = self.host.0.checked_mul(self.times.into());
        if stored.is_none_or(|stored| stored > 1 << 44) {
            return Err(wrong("--times", self.times.into(), "at most 16 TiB stored"));
        }
        Ok(())
    }

    fn shape(&self, block: ByteSize, engines: u16) -> Shape {
        Shape { block: block.0 as u32, engines, host: self.host.0, bytes: self.host.0 * u64::from(self.times) }
    }

    /// Return the free bytes of the file system. Wait for `wanted` while they grow: the file system frees a large removed file over
    /// seconds.
    fn free_bytes(&self, wanted: u64, stop: &Stop) -> Result<u64, BenchError> {
        let (mut most, mut grown) = (0, Instant::now());
        loop {
            let vfs = rustix::fs::statvfs(&self.dir);
            let vfs = vfs.map_err(|e| failed(format!("read the file system status of {}", self.dir.display()), e))?;
            let free = vfs.f_bavail * vfs.f_frsize;
            if free > most {
                (most, grown) = (free, Instant::now());
            }
            if free >= wanted || grown.elapsed() > FREED {
                return Ok(free);
            }
            stop.check()?;
            // PACE: ends when the free bytes no longer grow, which the size of the disk bounds.
            std::thread::sleep(LOOK);
        }
    }

    /// Return the bytes of the NVMe tier.
    fn capacity(&self, state: State, stored: u64, stop: &Stop) -> Result<u64, BenchError> {
        if let Some(capacity) = self.capacity {
            return Ok(capacity.0);
        }
        let taken = LEFT_FREE + 2 * Fio::files_bytes(stored);
        let room = self.free_bytes(4 * stored + taken, stop)?.saturating_sub(taken);
        let wanted = match state {
            State::Fresh => 10 * stored,
            State::Prepared => 4 * stored,
        };
        let capacity = [wanted, 4 * stored, room].into_iter().find(|bytes| *bytes <= room).unwrap_or(room);
        if capacity < stored + stored / 4 {
            let expected = format!("at most {}, the free space in {}", room / 5 * 4, self.dir.display());
            return Err(BenchError::Setting { what: "--host × --times", value: stored, expected });
        }
        // Whole regions.
        Ok(capacity & !((256 << 20) - 1).min(capacity))
    }
}

/// Run the benchmark.
pub(super) fn measure(args: &PressureArgs) -> Result<Report, BenchError> {
    args.check()?;
    let stop = Stop::on_signals()?;
    let folder = Folder::new(args.dir.join(format!("kvtide-bench-pressure-{}", std::process::id())))?;
    let mut report = Report::default();
    let fio = Fio::open(&folder.0, args.host.0 * u64::from(args.times), &stop)?;
    if fio.is_none() {
        report.note("fio not found: ratios to fio are missing".into());
    }
    for block in &args.blocks {
        for state in &args.state {
            for engines in &args.engines {
                let row = row(args, &folder.0, fio.as_ref(), (args.shape(*block, *engines), *state), &stop)?;
                progress(&row.line());
                row.report(&mut report);
            }
        }
    }
    let what = "8 KiB blocks without a disk: used part of host memory";
    progress(what);
    report.fine("host_filled", what, (filled(args, &stop)?, 3), "", Some(Target::AtLeast(0.9)));
    Ok(report)
}

/// Run one row: fio, this daemon, fio, and the other daemon.
fn row(
    args: &PressureArgs,
    dir: &Path,
    fio: Option<&Fio>,
    (shape, state): (Shape, State),
    stop: &Stop,
) -> Result<Row, BenchError> {
    let name = format!("{}_{}_{}", ByteSize(shape.block.into()), state.name(), shape.engines);
    progress(&name);
    let capacity = args.capacity(state, shape.stored(), stop)?;
    let pass = || fio.map(|fio| fio.pass(shape.block, state)).transpose();
    let setup = Setup { binary: None, host: shape.host, disk: None };
    let first = pass()?;
    let ours = run(&setup, dir, capacity, (shape, state), stop)?;
    let mut row = Row { name, shape, ours, fio: first.into_iter().chain(pass()?).collect(), other: None };
    if let Some(binary) = &args.kvtided {
        row.other = Some(match run(&Setup { binary: Some(binary), ..setup }, dir, capacity, (shape, state), stop) {
            Ok(other) => Some(other),
            Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
            // An old daemon may fail under this load; its figures are then missing.
            Err(error) => {
                progress(&format!("{}: the other daemon failed: {error}", row.name));
                None
            }
        });
    }
    Ok(row)
}

/// Store everything through one daemon, with concurrent probes, and look it up.
fn run(
    setup: &Setup<'_>,
    dir: &Path,
    capacity: u64,
    (shape, state): (Shape, State),
    stop: &Stop,
) -> Result<Run, BenchError> {
    let disk = Folder::new(dir.join("store"))?;
    let setup = Setup { disk: Some((&disk.0, capacity)), ..setup.clone() };
    let mut store = Store::in_state(&setup, state, stop)?;
    let measured = measure_store(&store, shape, stop);
    let log = store.daemon.log();
    let run = measured.map_err(|error| match error {
        BenchError::Interrupted => error,
        error => BenchError::Odd(format!("{error}\nend of the daemon's log:\n{log}")),
    })?;
    store.daemon.stop()?;
    Ok(run)
}

fn measure_store(store: &Store, shape: Shape, stop: &Stop) -> Result<Run, BenchError> {
    let socket = store.daemon.socket();
    let mut engines: Vec<Engine> =
        (0..shape.engines).map(|number| Engine::attach(socket, number, shape)).collect::<Result<_, _>>()?;
    let lookups = Lookups::attach(socket, shape.block)?;
    let demand = Demand::attach(socket, shape.block, shape.host)?;
    let before = store.metrics()?.dropped_unwritten();
    let running = Running::default();
    let (stored, beside) = std::thread::scope(|scope| {
        let scrapes = scope.spawn(|| probes::scrape(&store.address, &running));
        let lookups = scope.spawn(|| lookups.run(&running));
        let ping = scope.spawn(|| probes::ping(&running));
        let demand = scope.spawn(|| demand.run(&running));
        let stored = together(scope, &mut engines, &running, stop);
        running.end();
        let beside = Beside::of(joined(scrapes)?, joined(lookups)?, joined(ping)??, joined(demand)??);
        Ok::<_, BenchError>((stored?, beside))
    })?;
    store.settle(stop)?;
    let mut found = Found::default();
    for engine in &mut engines {
        found.add(engine.find(stop)?);
    }
    let page = store.metrics()?;
    Ok(Run {
        written: page.sum("kvtide_disk_device_written_bytes_total", "").unwrap_or(0.0),
        dropped_unwritten: page.dropped_unwritten().saturating_sub(before),
        stored,
        found,
        beside,
    })
}

/// Run all engines at the same time.
fn together<'scope>(
    scope: &'scope Scope<'scope, '_>,
    engines: &'scope mut [Engine],
    running: &'scope Running,
    stop: &'scope Stop,
) -> Result<Stored, BenchError> {
    let started: Vec<_> = engines.iter_mut().map(|engine| scope.spawn(move || engine.store(running, stop))).collect();
    let mut all = Stored::default();
    for engine in started {
        all.beside(joined(engine)??);
    }
    Ok(all)
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> Result<T, BenchError> {
    thread.join().map_err(|_| BenchError::Odd("a thread of the benchmark panicked".into()))
}

/// Return the used part of host memory after storing small blocks of 110 % of its size, without a disk.
fn filled(args: &PressureArgs, stop: &Stop) -> Result<f64, BenchError> {
    let host = 2 * args.host.0;
    let shape = Shape { block: FILLED_BLOCK, engines: 1, host, bytes: host / 10 * 11 };
    let mut store = Store::start(&Setup { binary: None, host, disk: None })?;
    let mut engine = Engine::attach(store.daemon.socket(), 0, shape)?;
    engine.store(&Running::default(), stop)?;
    let found = engine.find(stop)?;
    store.daemon.stop()?;
    Ok(found.blocks as f64 * f64::from(FILLED_BLOCK) / host as f64)
}
