//! fio as the limit: a writer with the row's block size and depth 32 on a new or a previously written file, and a reader of single
//! blocks at the rate of the demand reads.

use super::super::nvme::fio::{hear, look, parse};
use super::super::nvme::{Stop, failed};
use super::probes::DEMAND;
use super::{BenchError, State};
use crate::bench::nvme::fio::peer;
use kvtide_tiering::api::IoKind;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Maximum bytes of one pass.
const PASS_BYTES: u64 = 4 << 30;
/// Minimum request size of the writer.
const REQUEST_BYTES: u32 = 64 << 10;
/// Bytes of the reader's file.
const READER_BYTES: u64 = 256 << 20;
/// Time limit of a pass: 4 GiB at 20 MiB/s.
const TIME: Duration = Duration::from_secs(200);

/// fio in a directory.
pub(super) struct Fio {
    dir: PathBuf,
    bytes: u64,
    stop: Stop,
}

/// Result of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pass {
    pub(super) bytes: f64,
    pub(super) seconds: f64,
    /// `None`: the writer ended before the first read.
    pub(super) read_p99_us: Option<f64>,
}

/// Return the bytes a second over all passes, and the mean of their reads' p99, if any pass had reads.
pub(super) fn over(passes: &[Pass]) -> (f64, Option<f64>) {
    let bytes: f64 = passes.iter().map(|pass| pass.bytes).sum();
    let seconds: f64 = passes.iter().map(|pass| pass.seconds).sum();
    let p99: Vec<f64> = passes.iter().filter_map(|pass| pass.read_p99_us).collect();
    (bytes / seconds, (!p99.is_empty()).then(|| p99.iter().sum::<f64>() / p99.len() as f64))
}

impl Fio {
    /// Prepare the files. Return `None` if fio is not installed.
    pub(super) fn open(dir: &Path, stored: u64, stop: &Stop) -> Result<Option<Fio>, BenchError> {
        match look(stop) {
            Ok(()) => {}
            Err(BenchError::Peer { .. }) => return Ok(None),
            Err(error) => return Err(error),
        }
        let fio = Fio { dir: dir.into(), bytes: Fio::pass_bytes(stored), stop: stop.clone() };
        fio.write_over("reader", READER_BYTES)?;
        Ok(Some(fio))
    }

    /// Return the bytes of the file that a pass writes.
    pub(super) fn pass_bytes(stored: u64) -> u64 {
        // A multiple of every request size.
        (stored / 2).clamp(64 << 20, PASS_BYTES) & !((2 << 20) - 1)
    }

    /// Return the bytes of all files.
    pub(super) fn files_bytes(stored: u64) -> u64 {
        Fio::pass_bytes(stored) + READER_BYTES
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("fio-{name}"))
    }

    fn command() -> Command {
        let mut command = Command::new("fio");
        command.args(["--ioengine=io_uring", "--direct=1", "--fixedbufs=1", "--registerfiles=1"]);
        command.args(["--output-format=json", "--lat_percentiles=1", "--randrepeat=0", "--fallocate=truncate"]);
        command
    }

    fn write_over(&self, name: &str, bytes: u64) -> Result<(), BenchError> {
        let mut command = Fio::command();
        command.args(["--name=first", "--rw=write", "--bs=1M", "--iodepth=16"]);
        command.arg(format!("--filename={}", self.file(name).display())).arg(format!("--size={bytes}"));
        hear(command, TIME, &self.stop).map(drop)
    }

    /// Run one pass over a file in this state.
    pub(super) fn pass(&self, block: u32, state: State) -> Result<Pass, BenchError> {
        let name = match state {
            State::Fresh => "new",
            State::Prepared => "written",
        };
        let file = self.file(name);
        if state == State::Prepared && !file.exists() {
            self.write_over(name, self.bytes)?;
        }
        let mut command = Fio::command();
        // The end of the writer ends the reader.
        command.args(["--name=writes", "--rw=write", "--iodepth=32", "--exitall=1"]);
        command.arg(format!("--bs={}", block.max(REQUEST_BYTES))).arg(format!("--size={}", self.bytes));
        command.arg(format!("--filename={}", file.display()));
        command.args(["--name=reads", "--rw=randread", "--iodepth=1", "--norandommap=1", "--time_based=1"]);
        command.arg(format!("--runtime={}", TIME.as_secs())).arg(format!("--thinktime={}", DEMAND.as_micros()));
        command.arg(format!("--bs={block}")).arg(format!("--size={READER_BYTES}"));
        command.arg(format!("--filename={}", self.file("reader").display()));
        let said = hear(command, TIME, &self.stop)?;
        if state == State::Fresh {
            fs::remove_file(&file).map_err(|e| failed(format!("remove {}", file.display()), e))?;
        }
        match parse(&said, &[IoKind::Write, IoKind::Read]).as_deref() {
            Some([write, read]) if write.bytes > 0.0 => {
                let read_p99_us = (read.bytes > 0.0).then_some(read.p99_us);
                Ok(Pass { bytes: write.bytes, seconds: write.seconds, read_p99_us })
            }
            _ => Err(peer("read fio's report", &said)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_that_ends_before_the_first_read_is_a_pass() {
        let job = |way: &str, figures: &str| {
            format!("{{\"usr_cpu\": 1.0, \"sys_cpu\": 1.0, \"job_runtime\": 100, \"{way}\": {{{figures}}}}}")
        };
        let percentiles = "\"lat_ns\": {\"percentile\": {\"50.000000\": 1000, \"99.000000\": 2000}}";
        let writes = job("write", &format!("\"runtime\": 100, \"io_bytes\": 65536, {percentiles}"));
        let reads = job("read", "\"runtime\": 0, \"io_bytes\": 0, \"lat_ns\": {\"N\": 0}");
        let report = format!("{{\"jobs\": [{writes}, {reads}]}}");
        let done = parse(&report, &[IoKind::Write, IoKind::Read]).expect("a report");
        assert_eq!((done[0].bytes, done[0].p99_us, done[1].bytes), (65536.0, 2.0, 0.0));
        let pass = |read_p99_us| Pass { bytes: 10.0, seconds: 2.0, read_p99_us };
        assert_eq!(over(&[pass(None)]), (5.0, None));
        assert_eq!(over(&[pass(None), pass(Some(3.0)), pass(Some(5.0))]), (5.0, Some(4.0)));
    }
}
