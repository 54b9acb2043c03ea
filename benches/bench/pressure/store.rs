//! The daemon of a row and its disk: a directory with a file that is new, or was written once before.

use super::super::folder::noise;
use super::super::nvme::{LOOK, Stop, failed};
use super::{BenchError, State};
use crate::private_daemon::{Options as DaemonOptions, PrivateDaemon};
use kvtide_daemon::config::ByteSize;
use kvtide_daemon::http::client::Address;
use rustix::fs::{SeekFrom, seek};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Maximum wait for write-back after the last store.
const SETTLE: Duration = Duration::from_secs(20);
/// Write-back counts as finished after this long without a write.
const QUIET: Duration = Duration::from_secs(1);
/// Requests for metrics, each of which waits up to 10 s.
const TRIES: u32 = 3;
/// Bytes of one write, and bytes between flushes.
const CHUNK: u64 = 1 << 20;
const FLUSH: u64 = 256 << 20;

/// A private daemon. Its disk is kept after it.
pub(super) struct Store {
    pub(super) daemon: PrivateDaemon,
    /// HTTP address.
    pub(super) address: Address,
}

/// Settings of a daemon.
#[derive(Clone, Debug)]
pub(super) struct Setup<'a> {
    pub(super) binary: Option<&'a Path>,
    pub(super) host: u64,
    /// Directory and capacity of its disk.
    pub(super) disk: Option<(&'a Path, u64)>,
}

impl Store {
    pub(super) fn start(setup: &Setup<'_>) -> Result<Store, BenchError> {
        let config = setup.disk.map(|(dir, capacity)| {
            format!("[[tiers.nvme.disks]]\ndir = {dir:?}\ncapacity = \"{}\"\nreserve_free = 0\n", ByteSize(capacity))
        });
        let options = DaemonOptions {
            binary: setup.binary.map(Path::to_path_buf),
            host_bytes: Some(setup.host),
            http: Some("127.0.0.1:0".into()),
            config,
            ..DaemonOptions::default()
        };
        let mut daemon = PrivateDaemon::start(&options)?;
        let status = daemon.status()?;
        match status["http"].as_str() {
            Some(address) => Ok(Store { address: Address::Tcp(address.into()), daemon }),
            None => Err(BenchError::Odd("the daemon's status lacks the HTTP address".into())),
        }
    }

    /// Start a daemon on a disk in `state`.
    pub(super) fn in_state(setup: &Setup<'_>, state: State, stop: &Stop) -> Result<Store, BenchError> {
        let Some((dir, _)) = setup.disk.filter(|_| state == State::Prepared) else { return Store::start(setup) };
        Store::start(setup)?.daemon.stop()?;
        write_over(&dir.join("kvtide.store"), stop)?;
        Store::start(setup)
    }

    /// Wait until no more pages are written, for a limited time.
    pub(super) fn settle(&self, stop: &Stop) -> Result<(), BenchError> {
        let (began, mut before, mut changed) = (Instant::now(), None, Duration::ZERO);
        loop {
            stop.check()?;
            let written = self.metrics()?.sum("kvtide_disk_device_written_bytes_total", "kind=\"pages\"");
            let now = began.elapsed();
            if written != before && before.is_some() {
                changed = now;
            }
            if now > SETTLE || now > changed + QUIET {
                return Ok(());
            }
            before = written;
            // PACE: bounded by `SETTLE`.
            std::thread::sleep(LOOK / 2);
        }
    }

    /// Get `/metrics`. A daemon under pressure may need several requests.
    pub(super) fn metrics(&self) -> Result<Page, BenchError> {
        let mut tries = 1..=TRIES;
        loop {
            match self.address.get("/metrics") {
                Ok(page) => return Ok(Page(page)),
                Err(error) if tries.next().is_none() => return Err(error.into()),
                Err(_) => {}
            }
        }
    }
}

/// A response of `/metrics`.
pub(super) struct Page(String);

impl Page {
    /// Return the sum of a metric's samples with a label, or of all samples if `label` is empty. `None`: there is no such metric.
    pub(super) fn sum(&self, name: &str, label: &str) -> Option<f64> {
        let samples = self.0.lines().filter(|line| {
            let found = line.split(['{', ' ']).next().unwrap_or_default();
            found == name && line.contains(label)
        });
        let values: Vec<f64> = samples.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    /// Return the blocks dropped before they were written.
    pub(super) fn dropped_unwritten(&self) -> u64 {
        self.sum("kvtide_unwritten_drops_total", "").unwrap_or(0.0) as u64
    }
}

/// Write random bytes into all holes of a file.
fn write_over(path: &Path, stop: &Stop) -> Result<(), BenchError> {
    let tried = |what: &str, source: std::io::Error| failed(format!("{what} {}", path.display()), source);
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(|e| tried("open", e))?;
    let len = file.metadata().map_err(|e| tried("read the size of", e))?.len();
    let noise = noise(CHUNK as usize);
    let (mut at, mut since) = (0, 0);
    while let Some(hole) = hole(&file, at, len).map_err(|e| tried("find holes in", e.into()))? {
        at = hole.start;
        while at < hole.end {
            stop.check()?;
            let count = CHUNK.min(hole.end - at);
            file.write_all_at(&noise[..count as usize], at).map_err(|e| tried("write", e))?;
            at += count;
            since += count;
            if since >= FLUSH {
                file.sync_data().map_err(|e| tried("flush", e))?;
                since = 0;
            }
        }
    }
    file.sync_all().map_err(|e| tried("flush", e))
}

/// Return the first hole at or after `at`.
fn hole(file: &File, at: u64, len: u64) -> rustix::io::Result<Option<std::ops::Range<u64>>> {
    if at >= len {
        return Ok(None);
    }
    let start = seek(file, SeekFrom::Hole(at))?;
    if start >= len {
        return Ok(None);
    }
    match seek(file, SeekFrom::Data(start)) {
        Ok(end) => Ok(Some(start..end)),
        Err(rustix::io::Errno::NXIO) => Ok(Some(start..len)),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_metric_are_added_up() {
        let page = Page(
            "# HELP a_total A.\na_total{disk=\"0\",kind=\"pages\"} 3\na_total{disk=\"1\",kind=\"log\"} 4\na_totals 9\n\
             kvtide_unwritten_drops_total{space=\"1\"} 10\n"
                .into(),
        );
        assert_eq!(page.sum("a_total", ""), Some(7.0));
        assert_eq!(page.sum("a_total", "kind=\"pages\""), Some(3.0));
        assert_eq!(page.sum("b_total", ""), None);
        assert_eq!(page.dropped_unwritten(), 10);
    }

    #[test]
    fn holes_are_written_over_and_data_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = File::create(&path).unwrap();
        file.set_len(8 << 20).unwrap();
        file.write_all_at(&[7; 4096], 4 << 20).unwrap();
        write_over(&path, &Stop::on_signals().unwrap()).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.len() == 8 << 20 && bytes[4 << 20..][..4096].iter().all(|byte| *byte == 7));
        assert!(bytes[..4096] != [0; 4096] && bytes[(8 << 20) - 4096..] != [0; 4096]);
    }
}
