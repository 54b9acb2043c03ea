//! Directory, disk and host memory of the benchmark.

use super::stop::{LOOK, Stop, failed};
use super::{BenchError, NvmeArgs};
use crate::bench::folder::{Folder, noise};
use crossbeam::channel::{Receiver, RecvTimeoutError, unbounded};
use kvtide_daemon::output;
use kvtide_format::log::SlabHeader;
use kvtide_nvme::{
    Disk, DiskEvent, DiskStatus, DiskThread, Encryption, KeySource, LogMessage, Memory, Place, Reserve, Settings,
    SlabCode,
};
use kvtide_tiering::api::Status;
use kvtide_wire::os::map::{Access, Map};
use kvtide_wire::os::memfd::Memfd;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of a region: the daemon's default.
const REGION_BYTES: u64 = 256 << 20;
/// Waits longer than this are reported.
const PATIENCE: Duration = Duration::from_secs(2);
/// A device that does not answer for this long fails the benchmark.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes per write while the file is prepared.
const NOISE_BYTES: u64 = 4 << 20;

/// Write the regions of a new file once. fio's files are also written before they are measured, and new extents are slower.
fn write_once(dir: &Path, begin: u64, bytes: u64, stop: &Stop) -> Result<(), BenchError> {
    let path = dir.join("kvtide.store");
    let failed = |e| failed(format!("write {}", path.display()), e);
    let file = File::options().write(true).open(&path).map_err(failed)?;
    let mut told = Instant::now();
    let noise = noise(NOISE_BYTES as usize);
    for at in (0..bytes).step_by(NOISE_BYTES as usize) {
        stop.check()?;
        let part = (bytes - at).min(NOISE_BYTES) as usize;
        file.write_all_at(&noise[..part], begin + at).map_err(failed)?;
        if told.elapsed() >= PATIENCE {
            told = Instant::now();
            output::say(format_args!("kvtide bench: writing the file: {} %", at * 100 / bytes));
        }
    }
    file.sync_all().map_err(failed)
}

/// Recorded values of a page, as in `Part` and `Transfer`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kept {
    pub(super) crc: u32,
    pub(super) tag: [u8; 16],
    pub(super) salt: u32,
}

/// Everything that a measurement needs.
pub(super) struct Rig {
    thread: Option<DiskThread>,
    events: Receiver<DiskEvent>,
    mode: String,
    /// Host memory: a frame for every transfer.
    pub(super) memory: Arc<Memory>,
    /// Number of pages in the file.
    pub(super) pages: u64,
    /// Recorded values of the pages.
    pub(super) kept: Vec<Kept>,
    /// Code of the pages in the second half of the file, if they are encrypted.
    pub(super) code: Option<Arc<SlabCode>>,
    // Last: dropped after all its users.
    dir: Folder,
}

impl Rig {
    /// Create the directory and the fully written file.
    pub(super) fn open(args: &NvmeArgs, stop: &Stop) -> Result<Rig, BenchError> {
        if !args.dir.is_dir() {
            let why = std::io::Error::from(std::io::ErrorKind::NotADirectory);
            return Err(failed(format!("use {}", args.dir.display()), why));
        }
        let dir = Folder::new(args.dir.join(format!("kvtide-bench-{}", std::process::id())))?;
        let page = u64::from(args.page);
        // Regions hold whole pages, so that the pages of all regions are contiguous.
        let region_bytes = (REGION_BYTES.min(args.size) / page).max(1) * page;
        let settings = Settings {
            place: Place::Dir(dir.0.clone()),
            capacity_bytes: args.size.next_multiple_of(region_bytes),
            region_bytes,
            reserve_free: Reserve::Percent(1),
            depth: args.depth.max(128),
            timeout: TIMEOUT,
            encryption: Encryption {
                source: if args.encrypted { KeySource::Ephemeral } else { KeySource::Off },
                new_slabs: true,
            },
            ..Settings::default()
        };
        let opened = DiskThread::open(&settings)?;
        let (mode, regions) = (opened.mode().to_owned(), opened.regions());
        let (told, events) = unbounded();
        let thread = opened.start(Box::new(move |event| {
            // The receiver may be gone at the end.
            let _ = told.send(event);
        }))?;
        let frames = u64::from(args.depth) * page;
        let map = memory(frames)?;
        let memory = Memory::new(map).ok_or_else(|| BenchError::Odd("host memory cannot be written".into()))?;
        let pages = u64::from(regions) * region_bytes / page;
        let kept = vec![Kept::default(); pages as usize];
        let memory = Arc::new(memory);
        write_once(&dir.0, thread.disk().offset(0, 0), u64::from(regions) * region_bytes, stop)?;
        let mut rig = Rig { thread: Some(thread), events, mode, memory, pages, kept, code: None, dir };
        if args.encrypted {
            rig.code = rig.encrypt(args, stop)?;
        }
        Ok(rig)
    }

    /// Record the slabs of the regions in the log.
    pub(super) fn grant(&self, slabs: impl Iterator<Item = SlabHeader>, stop: &Stop) -> Result<(), BenchError> {
        for slab in slabs {
            let region = slab.region;
            let sent = self.disk().log().send(LogMessage::Grant(slab));
            sent.map_err(|gone| failed("grant a region", std::io::Error::other(gone)))?;
            let until = Instant::now() + TIMEOUT;
            loop {
                stop.check()?;
                match self.events.recv_timeout(LOOK) {
                    Ok(DiskEvent::Granted { status: Status::Ok, .. }) => break,
                    Ok(DiskEvent::Granted { status, .. }) => {
                        return Err(BenchError::Odd(format!("region {region} was not recorded: {status:?}")));
                    }
                    Ok(_) | Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                    _ => return Err(BenchError::Odd(format!("region {region} was not recorded in time"))),
                }
            }
        }
        Ok(())
    }

    /// Record a region as an encrypted slab, with a key that exists only during the benchmark.
    fn encrypt(&self, args: &NvmeArgs, stop: &Stop) -> Result<Option<Arc<SlabCode>>, BenchError> {
        let slab = SlabHeader {
            encrypted: true,
            ..SlabHeader::new(0, 1, [0; 32], "bench", args.page.into(), vec![args.page])
        };
        self.grant(std::iter::once(slab.clone()), stop)?;
        self.disk().code(&slab).map_err(|e| BenchError::Odd(e.to_string()))
    }

    fn thread(&self) -> &DiskThread {
        self.thread.as_ref().expect("runs until the drop")
    }

    /// Return the I/O mode.
    pub(super) fn mode(&self) -> &str {
        &self.mode
    }

    /// Return the disk.
    pub(super) fn disk(&self) -> &Disk {
        self.thread().disk()
    }

    /// Return the disk's status.
    pub(super) fn status(&self) -> Result<DiskStatus, BenchError> {
        self.thread().status().ok_or_else(|| BenchError::Odd("the disk's thread does not answer".into()))
    }

    /// Return the path of the file.
    pub(super) fn file(&self) -> PathBuf {
        Path::new(&self.dir.0).join("kvtide.store")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.end();
        }
    }
}

/// Return host memory filled with random bytes, which a drive cannot compress.
fn memory(bytes: u64) -> Result<Map, BenchError> {
    let wire = |e| failed(format!("allocate {bytes} bytes of memory"), std::io::Error::other(e));
    let memfd = Memfd::shared("kvtide-bench", bytes).map_err(wire)?;
    let (noise, mut at) = (noise(bytes as usize), 0);
    while at < noise.len() {
        at += rustix::io::pwrite(&memfd, &noise[at..], at as u64).map_err(|e| failed("fill host memory", e))?;
    }
    memfd.map(Access::ReadWrite).map_err(wire)
}
