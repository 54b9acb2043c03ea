//! Alternating rounds of kvtide and fio.

use super::drive::{Driver, Run, Stream};
use super::fio::{self, Done};
use super::records::{self, Records};
use super::rig::Rig;
use super::stop::{LOOK, Stop};
use super::{BenchError, NvmeArgs, ROUNDS, percentile};
use kvtide_daemon::output;
use kvtide_tiering::api::{IoClass, IoKind};
use std::time::{Duration, Instant};

/// Idle time before the start-up time of fio is known.
const REST: Duration = Duration::from_millis(500);

/// One round of reads or of writes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    /// Bytes a second.
    pub(super) bytes_per_s: f64,
    /// CPU seconds a gigabyte, without checksums.
    pub(super) cpu: f64,
    /// Checksum seconds a gigabyte.
    pub(super) checksum: f64,
    /// CPU seconds a gigabyte of the driver alone.
    pub(super) driver: f64,
}

/// Rounds of reads and of writes.
#[derive(Clone, Debug)]
pub(super) struct Plain {
    pub(super) read: Vec<Round>,
    pub(super) write: Vec<Round>,
    pub(super) fio_read: Vec<Round>,
    pub(super) fio_write: Vec<Round>,
    pub(super) records: Records,
}

/// One round of demand reads during writes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MixedRound {
    pub(super) p99_us: f64,
    pub(super) read_bytes_per_s: f64,
    pub(super) write_bytes_per_s: f64,
}

/// Rounds of demand reads during writes.
#[derive(Clone, Debug, Default)]
pub(super) struct Mixed {
    pub(super) ours: Vec<MixedRound>,
    pub(super) fio: Vec<MixedRound>,
}

impl Round {
    fn of(run: &Run, page: u32) -> Round {
        let bytes = run.moved.iter().map(|moved| moved.transfers).sum::<u64>() as f64 * f64::from(page);
        let gigabytes = (bytes / 1e9).max(f64::MIN_POSITIVE);
        Round {
            bytes_per_s: bytes / run.seconds,
            cpu: run.cpu_s / gigabytes,
            checksum: run.checksum_s / gigabytes,
            driver: run.driver_s / gigabytes,
        }
    }
}

impl From<&Done> for Round {
    fn from(done: &Done) -> Round {
        let gigabytes = (done.bytes / 1e9).max(f64::MIN_POSITIVE);
        Round { bytes_per_s: done.bytes / done.seconds, cpu: done.cpu_s / gigabytes, ..Round::default() }
    }
}

impl MixedRound {
    fn of(mut run: Run, page: u32) -> MixedRound {
        let bytes = |transfers: u64| transfers as f64 * f64::from(page) / run.seconds;
        let [read, write] = [0, 1].map(|stream| bytes(run.moved[stream].transfers));
        let us = &mut run.moved[0].us;
        let p99_us = percentile(us, 99) as f64;
        MixedRound { p99_us, read_bytes_per_s: read, write_bytes_per_s: write }
    }
}

fn driver(args: &NvmeArgs, rig: &mut Rig, stop: &Stop) -> Result<Driver, BenchError> {
    let mut driver = Driver::new(rig, args.depth, args.page)?;
    driver.fill(rig, stop)?;
    Ok(driver)
}

/// Return the class of transfers of a kind, and their name.
fn class_of(kind: IoKind) -> (IoClass, &'static str) {
    match kind {
        IoKind::Read => (IoClass::Demand, "random reads"),
        IoKind::Write => (IoClass::WriteBack, "random writes"),
    }
}

/// Run rounds of the streams in alternation with fio. Return the runs, and fio's results by stream.
fn alternate(
    args: &NvmeArgs,
    rig: &mut Rig,
    driver: &mut Driver,
    (what, streams): (&str, &[Stream]),
    (resting, stop): (&mut Duration, &Stop),
) -> Result<(Vec<Run>, Vec<Vec<Done>>), BenchError> {
    let (mut runs, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        tell(args, what, round);
        rest(args, *resting, stop)?;
        runs.push(driver.run(rig, streams, args.round(), stop)?);
        if args.fio {
            let began = Instant::now();
            theirs.push(fio::run(args, rig, streams, stop)?);
            *resting = began.elapsed().saturating_sub(args.round());
        }
    }
    Ok((runs, theirs))
}

/// Leave the device idle for as long as fio does while it starts. Some devices are faster after idle time, which must not favour
/// one of the two.
fn rest(args: &NvmeArgs, time: Duration, stop: &Stop) -> Result<(), BenchError> {
    let until = Instant::now() + time;
    while args.fio && Instant::now() < until {
        stop.check()?;
        // PACE: bounded by `time`, fio's time besides its own run.
        std::thread::sleep(LOOK.min(until.saturating_duration_since(Instant::now())));
    }
    Ok(())
}

fn tell(args: &NvmeArgs, what: &str, round: usize) {
    let beside = if args.fio { ", alternated with fio" } else { "" };
    output::say(format_args!("kvtide bench: {what}{beside}: round {} of {ROUNDS}", round + 1));
}

/// Read everything, then write everything: fio's writes would damage the pages that are read.
pub(super) fn plain(args: &NvmeArgs, rig: &mut Rig, stop: &Stop) -> Result<Plain, BenchError> {
    let mut driver = driver(args, rig, stop)?;
    // First, because fio overwrites recorded blocks.
    let records = records::measure(args, rig, &mut driver, stop)?;
    let mut resting = REST;
    let mut rounds = |kind| -> Result<(Vec<Round>, Vec<Round>), BenchError> {
        let (class, what) = class_of(kind);
        let stream = [Stream { kind, class, depth: args.depth, pages: 0..rig.pages }];
        let (runs, theirs) = alternate(args, rig, &mut driver, (what, &stream), (&mut resting, stop))?;
        let ours = runs.iter().map(|run| Round::of(run, args.page)).collect();
        Ok((ours, theirs.iter().flatten().map(Round::from).collect()))
    };
    let ((read, fio_read), (write, fio_write)) = (rounds(IoKind::Read)?, rounds(IoKind::Write)?);
    Ok(Plain { read, write, fio_read, fio_write, records })
}

/// Alternating rounds over plain and encrypted pages.
#[derive(Clone, Debug, Default)]
pub(super) struct Encrypted {
    pub(super) read: [Vec<Round>; 2],
    pub(super) write: [Vec<Round>; 2],
}

/// Reads, then writes, alternating between the first half of the file and the encrypted second half.
pub(super) fn encrypted(args: &NvmeArgs, rig: &mut Rig, stop: &Stop) -> Result<Encrypted, BenchError> {
    let mut driver = driver(args, rig, stop)?;
    let mut encrypted = Encrypted::default();
    for (kind, rounds) in [(IoKind::Read, &mut encrypted.read), (IoKind::Write, &mut encrypted.write)] {
        let (class, what) = class_of(kind);
        for round in 0..ROUNDS {
            tell(args, what, round);
            for (which, pages) in [0..rig.pages / 2, rig.pages / 2..rig.pages].into_iter().enumerate() {
                let stream = [Stream { kind, class, depth: args.depth, pages }];
                let run = driver.run(rig, &stream, args.round() / 2, stop)?;
                rounds[which].push(Round::of(&run, args.page));
            }
        }
    }
    Ok(encrypted)
}

/// A quarter of the depth reads the first half of the file, the rest writes the second half.
pub(super) fn mixed(args: &NvmeArgs, rig: &mut Rig, stop: &Stop) -> Result<Mixed, BenchError> {
    let mut driver = driver(args, rig, stop)?;
    let (reads, half) = (args.depth / 4, rig.pages / 2);
    let streams = [
        Stream { kind: IoKind::Read, class: IoClass::Demand, depth: reads, pages: 0..half },
        Stream { kind: IoKind::Write, class: IoClass::WriteBack, depth: args.depth - reads, pages: half..rig.pages },
    ];
    let (what, mut resting) = (("demand reads during write-back", &streams[..]), REST);
    let (runs, theirs) = alternate(args, rig, &mut driver, what, (&mut resting, stop))?;
    let fio = |done: &Vec<Done>| MixedRound {
        p99_us: done[0].p99_us,
        read_bytes_per_s: done[0].bytes / done[0].seconds,
        write_bytes_per_s: done[1].bytes / done[1].seconds,
    };
    let ours = runs.into_iter().map(|run| MixedRound::of(run, args.page)).collect();
    Ok(Mixed { ours, fio: theirs.iter().map(fio).collect() })
}
