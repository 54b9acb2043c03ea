//! `kvtide bench nvme`: the daemon's I/O thread (queue, scheduler, ring, checksums, replies) on a new file, driven as by a core
//! thread: transfers arrive as messages, completed boxes return by mailbox, with a fixed number in flight.
//!
//! With `--fio`, fio uses the same file in alternation, with io_uring, direct I/O, registered buffers and files, and the same
//! offsets, page size, depth, time and idle time before it. Ratios are of neighbouring rounds, so that other load affects both. CPU
//! time is that of the whole process, including the driver, without checksums, which are reported separately.

mod alone;
mod drive;
pub(super) mod fio;
mod records;
mod rig;
mod rounds;
mod stop;

use super::report::{Report, Target};
use super::{BenchError, Output, percentile};
pub(super) use alone::Alone;
use records::Records;
use rig::Rig;
use rounds::{Encrypted, Mixed, Plain, Round};
use std::path::PathBuf;
use std::time::Duration;
pub(super) use stop::LOOK;
pub use stop::{Stop, failed};

/// Flags of `kvtide bench nvme`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct NvmeArgs {
    /// Directory on the disk to measure; a file of --size bytes is created and removed at the end
    #[arg(long)]
    dir: PathBuf,
    /// Bytes of a page (one transfer)
    #[arg(long, default_value_t = 65536)]
    page: u32,
    /// Transfers in flight
    #[arg(long, default_value_t = 32)]
    depth: u32,
    /// Seconds per figure, over all rounds
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Bytes of the file
    #[arg(long, default_value_t = 1 << 30)]
    size: u64,
    /// Alternate with fio
    #[arg(long)]
    fio: bool,
    /// Measure demand reads (a quarter of the depth) during write-back (the rest)
    #[arg(long)]
    mixed: bool,
    /// Alternate encrypted and plain pages
    #[arg(long, conflicts_with_all = ["fio", "mixed"])]
    encrypted: bool,
    #[command(flatten)]
    pub(super) output: Output,
}

/// Alternating rounds per figure; the report has the median.
const ROUNDS: usize = 5;
/// Throughput relative to fio.
const RATE: Target = Target::AtLeast(0.95);
/// CPU time relative to fio.
const CPU: Target = Target::AtMost(1.25);
/// CPU seconds for the checksums of a gigabyte.
const CHECKSUM: Target = Target::AtMost(0.05);
/// Bytes written to the device per byte of pages, including records.
const AMPLIFICATION: Target = Target::AtMost(1.05);
/// Throughput of encrypted pages relative to plain pages.
const ENCRYPTED: Target = Target::AtLeast(0.9);
/// 99th percentile of demand reads relative to fio with the same mix.
const P99: Target = Target::AtMost(2.0);

impl NvmeArgs {
    fn check(&self) -> Result<(), BenchError> {
        let wrong = |what, value, expected: &str| BenchError::Setting { what, value, expected: expected.into() };
        if !(4096..=64 << 20).contains(&self.page) || !self.page.is_multiple_of(4096) {
            return Err(wrong("--page", self.page.into(), "a multiple of 4096, from 4096 to 67108864"));
        }
        if !(1..=512).contains(&self.depth) || (self.mixed && self.depth < 4) {
            return Err(wrong("--depth", self.depth.into(), "1 to 512, with --mixed at least 4"));
        }
        if !(0.5..=3600.0).contains(&self.seconds) {
            return Err(wrong("--seconds", self.seconds.max(0.0) as u64, "0.5 to 3600"));
        }
        let least = u64::from(self.page) * u64::from(self.depth) * 4;
        if self.size < least {
            return Err(wrong("--size", self.size, &format!("at least {least}: four times the bytes in flight")));
        }
        Ok(())
    }

    fn round(&self) -> Duration {
        Duration::from_secs_f64(self.seconds / ROUNDS as f64)
    }
}

/// Run the benchmark.
pub(super) fn measure(args: &NvmeArgs) -> Result<Report, BenchError> {
    args.check()?;
    let stop = Stop::on_signals()?;
    if args.fio {
        fio::look(&stop)?;
    }
    let mut rig = Rig::open(args, &stop)?;
    let mut report = Report::default();
    if args.encrypted {
        report_encrypted(&mut report, &rounds::encrypted(args, &mut rig, &stop)?);
    } else if args.mixed {
        report_mixed(&mut report, args, &rounds::mixed(args, &mut rig, &stop)?);
    } else {
        let plain = rounds::plain(args, &mut rig, &stop)?;
        report_plain(&mut report, args, &plain);
    }
    report.words("io_mode", "I/O mode", rig.mode().into());
    Ok(report)
}

fn report_plain(report: &mut Report, args: &NvmeArgs, plain: &Plain) {
    let with_fio = |target| args.fio.then_some(target);
    let bytes = "bytes/s";
    report.count("read_bytes_per_s", "random reads", median(&plain.read, |r| r.bytes_per_s) as u64, bytes, None);
    report.count("write_bytes_per_s", "random writes", median(&plain.write, |r| r.bytes_per_s) as u64, bytes, None);
    let cpu = |report: &mut Report, key, what, value| report.fine(key, what, (value, 4), "s/GB", None);
    cpu(report, "cpu_s_per_gb_read", "CPU of reads, without checksums", median(&plain.read, |r| r.cpu));
    cpu(report, "cpu_s_per_gb_write", "CPU of writes, without checksums", median(&plain.write, |r| r.cpu));
    let checksum = median(&plain.read, |r| r.checksum).max(median(&plain.write, |r| r.checksum));
    report.fine("checksum_cpu_s_per_gb", "CPU of checksums", (checksum, 4), "s/GB", Some(CHECKSUM));
    let Records { amplification, blocks, planes, bytes_per_s, log_bytes, compacted_bytes, flushes } = plain.records;
    let what = "device bytes per byte of blocks, with records";
    report.fine("write_amplification", what, (amplification, 4), "x", Some(AMPLIFICATION));
    report.count("recorded_bytes_per_s", "blocks with their records", bytes_per_s as u64, bytes, None);
    report.note(format!(
        "{blocks} blocks of {} bytes and {planes} planes, erased before reuse: {log_bytes:.0} log bytes a block, \
         {compacted_bytes:.0} compaction bytes a block, {flushes} flushes",
        args.page
    ));
    let driver = [&plain.read, &plain.write].map(|rounds| median(rounds, |r| r.driver));
    report.note(format!(
        "CPU of the benchmark's driver, included above: reads {:.4}, writes {:.4} s/GB",
        driver[0], driver[1]
    ));
    if !args.fio {
        return;
    }
    let fio = |report: &mut Report, key, what, value| report.count(key, what, value as u64, bytes, None);
    fio(report, "fio_read_bytes_per_s", "fio: random reads", median(&plain.fio_read, |r| r.bytes_per_s));
    fio(report, "fio_write_bytes_per_s", "fio: random writes", median(&plain.fio_write, |r| r.bytes_per_s));
    cpu(report, "fio_cpu_s_per_gb_read", "fio: CPU of reads", median(&plain.fio_read, |r| r.cpu));
    cpu(report, "fio_cpu_s_per_gb_write", "fio: CPU of writes", median(&plain.fio_write, |r| r.cpu));
    let mut ratio = |key, what, value, target| report.fine(key, what, (value, 3), "x", with_fio(target));
    let read = (&*plain.read, &*plain.fio_read);
    let write = (&*plain.write, &*plain.fio_write);
    ratio("ratio_read", "reads ÷ fio", ratios(read, |r| r.bytes_per_s), RATE);
    ratio("ratio_write", "writes ÷ fio", ratios(write, |r| r.bytes_per_s), RATE);
    ratio("ratio_cpu_read", "CPU of reads ÷ fio", ratios(read, |r| r.cpu), CPU);
    ratio("ratio_cpu_write", "CPU of writes ÷ fio", ratios(write, |r| r.cpu), CPU);
}

fn report_encrypted(report: &mut Report, encrypted: &Encrypted) {
    for (way, what, rounds) in [("read", "reads", &encrypted.read), ("write", "writes", &encrypted.write)] {
        for (which, how, rounds) in [("plain", "plain", &rounds[0]), ("encrypted", "encrypted", &rounds[1])] {
            let rate = median(rounds, |r| r.bytes_per_s) as u64;
            report.count(format!("{which}_{way}_bytes_per_s"), format!("random {what}, {how}"), rate, "bytes/s", None);
            let cpu = median(rounds, |r| r.cpu + r.checksum);
            report.number(format!("{which}_cpu_s_per_gb_{way}"), format!("CPU of {what}, {how}"), cpu, "s/GB", None);
        }
        let ratio = ratios((&*rounds[1], &*rounds[0]), |r| r.bytes_per_s);
        report.number(format!("ratio_encrypted_{way}"), format!("{what}, encrypted ÷ plain"), ratio, "x", ENCRYPTED);
    }
}

fn report_mixed(report: &mut Report, args: &NvmeArgs, mixed: &Mixed) {
    let us = |report: &mut Report, key, what, value| report.count(key, what, value as u64, "us", None);
    us(report, "demand_p99_us", "demand reads during write-back, p99", median(&mixed.ours, |r| r.p99_us));
    let rate = |report: &mut Report, key, what, value| report.count(key, what, value as u64, "bytes/s", None);
    rate(report, "demand_bytes_per_s", "demand reads", median(&mixed.ours, |r| r.read_bytes_per_s));
    rate(report, "writeback_bytes_per_s", "write-back", median(&mixed.ours, |r| r.write_bytes_per_s));
    if !args.fio {
        return;
    }
    us(report, "fio_demand_p99_us", "fio: reads during writes, p99", median(&mixed.fio, |r| r.p99_us));
    rate(report, "fio_demand_bytes_per_s", "fio: reads", median(&mixed.fio, |r| r.read_bytes_per_s));
    rate(report, "fio_writeback_bytes_per_s", "fio: writes", median(&mixed.fio, |r| r.write_bytes_per_s));
    let p99 = median(&mixed.ours, |r| r.p99_us) / median(&mixed.fio, |r| r.p99_us);
    report.fine("ratio_p99", "p99 of demand reads ÷ fio", (p99, 3), "x", Some(P99));
}

/// Return the median of a figure over rounds.
fn median<T>(rounds: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    super::median(&rounds.iter().map(figure).collect::<Vec<_>>())
}

/// Return the median of the ratios of neighbouring rounds.
fn ratios((ours, theirs): (&[Round], &[Round]), figure: impl Fn(&Round) -> f64) -> f64 {
    let pairs: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| figure(ours) / figure(theirs)).collect();
    median(&pairs, |ratio| *ratio)
}
