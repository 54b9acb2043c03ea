//! The NVMe tier alone, as the reference of other benchmarks: the daemon's I/O thread on a separate file.

use super::drive::{Driver, Stream};
use super::rig::Rig;
use super::stop::Stop;
use super::{BenchError, NvmeArgs, Output};
use kvtide_tiering::api::{IoClass, IoKind};
use std::path::Path;
use std::time::Duration;

/// Reads in flight, as in `kvtide bench nvme`.
const DEPTH: u32 = 32;

/// A file full of pages, and the driver that reads them.
pub(in crate::bench) struct Alone {
    rig: Rig,
    driver: Driver,
    page: u32,
    stop: Stop,
}

impl Alone {
    /// Write a file of `size` bytes, in pages of `page` bytes, in a new directory below `dir`.
    pub(in crate::bench) fn open(dir: &Path, page: u32, size: u64) -> Result<Alone, BenchError> {
        let args = NvmeArgs {
            dir: dir.into(),
            page,
            depth: DEPTH,
            seconds: 1.0,
            size,
            fio: false,
            mixed: false,
            encrypted: false,
            output: Output { json: true },
        };
        args.check()?;
        let stop = Stop::on_signals()?;
        let mut rig = Rig::open(&args, &stop)?;
        let mut driver = Driver::new(&rig, DEPTH, page)?;
        driver.fill(&mut rig, &stop)?;
        Ok(Alone { rig, driver, page, stop })
    }

    /// Read random pages for `time`. Return the bytes a second.
    pub(in crate::bench) fn read(&mut self, time: Duration) -> Result<f64, BenchError> {
        let stream = Stream { kind: IoKind::Read, class: IoClass::Demand, depth: DEPTH, pages: 0..self.rig.pages };
        let run = self.driver.run(&mut self.rig, std::slice::from_ref(&stream), time, &self.stop)?;
        let pages: u64 = run.moved.iter().map(|moved| moved.transfers).sum();
        Ok(pages as f64 * f64::from(self.page) / run.seconds)
    }

    /// Return an error if the benchmark was interrupted.
    pub(in crate::bench) fn check(&self) -> Result<(), BenchError> {
        self.stop.check()
    }
}
