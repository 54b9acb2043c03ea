//! The NVMe tier alone, for benches of what stands on it: the daemon's own I/O thread on a file of its own.

use super::drive::{Driver, Stream};
use super::rig::Rig;
use super::stop::Stop;
use super::{BenchError, NvmeArgs, Output};
use kvtide_tiering::api::{IoClass, IoKind};
use std::path::Path;
use std::time::Duration;

/// Reads on their way at once: as `kvtide bench nvme` has them.
const DEPTH: u32 = 32;

/// A file full of pages, and who reads them.
pub(in crate::bench) struct Alone {
    rig: Rig,
    driver: Driver,
    page: u32,
    stop: Stop,
}

impl Alone {
    /// Writes a file of `size` bytes in a directory of its own in `dir`, in pages of `page` bytes.
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
            codec_threads: 0,
            output: Output { json: true },
        };
        args.check()?;
        let stop = Stop::on_signals()?;
        let mut rig = Rig::open(&args, &stop)?;
        let mut driver = Driver::new(&rig, DEPTH, page)?;
        driver.fill(&mut rig, &stop)?;
        Ok(Alone { rig, driver, page, stop })
    }

    /// Reads pages at random for so long: bytes a second.
    pub(in crate::bench) fn read(&mut self, time: Duration) -> Result<f64, BenchError> {
        let stream = Stream { kind: IoKind::Read, class: IoClass::Demand, depth: DEPTH, pages: 0..self.rig.pages };
        let run = self.driver.run(&mut self.rig, std::slice::from_ref(&stream), time, &self.stop)?;
        let pages: u64 = run.moved.iter().map(|moved| moved.transfers).sum();
        Ok(pages as f64 * f64::from(self.page) / run.seconds)
    }

    /// An error if somebody wants the bench to end.
    pub(in crate::bench) fn check(&self) -> Result<(), BenchError> {
        self.stop.check()
    }
}
