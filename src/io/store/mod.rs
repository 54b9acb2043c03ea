//! The file of a disk: found or made, checked, locked, and laid out by its superblock.
//!
//! The lock is on the description that does I/O: requests of a daemon that was killed go on at the device for a while, and
//! hold the description, and with it the lock, until they are done.
//!
//! A file that is not ours, of a later version, damaged, or in use is refused and not changed. One of ours with the same layout
//! is used as it is; one with another layout is laid out anew.

mod checks;
mod direct;

pub(super) use direct::Align;

use super::error::DiskError;
use super::memory::Aligned;
use super::settings::{Choice, Settings};
use kvtide_tiering::format::{SUPERBLOCK_BYTES, Superblock, SuperblockError};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Name of the file in its directory.
pub(crate) const FILE: &str = "kvtide.store";
/// Its name until its superblock is written.
const NEW: &str = "kvtide.store.new";
/// How long to wait for the lock: after a SIGKILL with writes in flight it stays taken for 50 to 60 ms (measured on Linux 6.18).
const LOCK: Duration = Duration::from_secs(2);
/// How often to try.
const LOCK_AGAIN: Duration = Duration::from_millis(10);

/// An open, locked, laid out file.
#[derive(Debug)]
pub(super) struct Store {
    /// The description that does I/O and holds the lock.
    pub file: Arc<File>,
    /// Its layout and progress.
    pub superblock: Superblock,
    /// What direct I/O demands; 1 of both if the page cache is used.
    pub align: Align,
    /// Why the page cache is used, if it is.
    pub buffered: Option<String>,
    /// The superblock on its way to the file.
    pub page: Aligned,
}

impl Store {
    /// Opens the file in `settings.dir`, or makes it.
    pub fn open(settings: &Settings) -> Result<Store, DiskError> {
        let dir = &settings.dir;
        let wanted = Superblock::new(new_id(dir)?, settings.capacity_bytes, settings.region_bytes);
        let wanted = wanted.map_err(|source| DiskError::Layout {
            path: dir.clone(),
            capacity_bytes: settings.capacity_bytes,
            source,
        })?;
        let dir_file = checks::directory(dir)?;
        // Held while the file is looked for and made, so that two daemons cannot make it at once.
        lock(&dir_file, dir)?;
        let path = dir.join(FILE);
        let file = match open(&path) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(checks::refused("open", &path, dir, error)),
        };
        let (file, found) = match file {
            Some(file) => {
                checks::file(&file, &path)?;
                lock(&file, &path)?;
                let found = read(&file).map_err(|e| DiskError::os("read the superblock of", &path, e))?;
                let found = found.map_err(|source| DiskError::Superblock { path: path.clone(), source })?;
                checks::room(&file, settings, &wanted)?;
                (file, Some(found))
            }
            None => {
                checks::room(&dir_file, settings, &wanted)?;
                (make(&dir_file, dir, &wanted)?, None)
            }
        };
        let superblock = match found {
            Some(found) if found.fits(&wanted) => found,
            Some(found) => {
                tracing::warn!(
                    "{}: laid out anew, {} regions of {} bytes instead of {} of {}; what it held is dropped",
                    path.display(),
                    wanted.regions,
                    wanted.region_bytes,
                    found.regions,
                    found.region_bytes
                );
                Superblock { sequence: found.sequence, written_bytes: found.written_bytes, ..wanted }
            }
            None => wanted,
        };
        let (align, buffered) = direct::choose(&file, dir, settings.direct)?;
        let page =
            Aligned::new(SUPERBLOCK_BYTES).map_err(|e| DiskError::os("take memory for the superblock of", &path, e))?;
        let mut store = Store { file: Arc::new(file), superblock, align, buffered, page };
        store.size(&path)?;
        // Also the proof that the file can be written, in the way in which it will be.
        store.write_superblock().map_err(|e| checks::refused("write the superblock of", &path, dir, e))?;
        Ok(store)
    }

    /// Gives the file its size; regions that are not there after all were not written.
    fn size(&mut self, path: &Path) -> Result<(), DiskError> {
        let stat = rustix::fs::fstat(&*self.file).map_err(|e| DiskError::os("look at", path, e))?;
        let (bytes, blocks) = (u64::try_from(stat.st_size).unwrap_or(0), u64::try_from(stat.st_blocks).unwrap_or(0));
        let block = &mut self.superblock;
        let (file_bytes, written) = (block.file_bytes(), u64::from(block.regions_written) * block.region_bytes);
        if written > 0 && (bytes < block.regions_offset + written || blocks.saturating_mul(512) < written) {
            tracing::warn!("{}: it is shorter than it says; its regions are written again", path.display());
            block.regions_written = 0;
        }
        if bytes != file_bytes {
            rustix::fs::ftruncate(&*self.file, file_bytes).map_err(|e| DiskError::os("set the size of", path, e))?;
        }
        Ok(())
    }

    /// Puts the next copy of the superblock into `page` and says where it goes.
    pub fn next_superblock(&mut self) -> u64 {
        self.superblock.sequence += 1;
        let bytes = self.superblock.encode();
        self.page.write(0, &bytes);
        self.superblock.place()
    }

    /// Writes the next copy of the superblock, now.
    pub fn write_superblock(&mut self) -> io::Result<()> {
        let place = self.next_superblock();
        let mut done = 0;
        while done < SUPERBLOCK_BYTES {
            let (at, left) = (self.page.as_ptr().wrapping_add(done), SUPERBLOCK_BYTES - done);
            // SAFETY: the range lies in `page`, which is borrowed mutably, until the call returns.
            let page = unsafe { std::slice::from_raw_parts(at, left) };
            match rustix::io::pwrite(&*self.file, page, place + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

/// Opens without following a link that somebody put there.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// The newer superblock of a file, through the page cache.
fn read(file: &File) -> io::Result<Result<Superblock, SuperblockError>> {
    let mut copies = [[0; SUPERBLOCK_BYTES]; 2];
    for (copy, place) in copies.iter_mut().zip([0, SUPERBLOCK_BYTES as u64]) {
        match file.read_exact_at(copy, place) {
            // What is missing of a short file stays zero: no superblock.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            other => other?,
        }
    }
    Ok(Superblock::newest(&copies[0], &copies[1]))
}

/// Makes the file with its first superblock, under its name only when that stands on the disk.
fn make(dir_file: &File, dir: &Path, block: &Superblock) -> Result<File, DiskError> {
    let path = dir.join(NEW);
    let failed = |tried, e: io::Error| checks::refused(tried, &path, dir, e);
    match rustix::fs::unlinkat(dir_file, NEW, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(failed("remove what is left of an earlier start", errno.into())),
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = rustix::fs::openat(dir_file, NEW, flags, Mode::RUSR | Mode::WUSR);
    let file = File::from(fd.map_err(|e| failed("make", e.into()))?);
    lock(&file, &path)?;
    file.write_all_at(&block.encode(), block.place()).map_err(|e| failed("write the first superblock of", e))?;
    file.sync_all().map_err(|e| failed("flush", e))?;
    rustix::fs::renameat(dir_file, NEW, dir_file, FILE).map_err(|e| failed("rename", e.into()))?;
    dir_file.sync_all().map_err(|e| failed("flush the directory of", e))?;
    Ok(file)
}

/// Takes the lock of a description, waiting a little for one that died.
fn lock(file: &File, path: &Path) -> Result<(), DiskError> {
    let until = Instant::now() + LOCK;
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                // PACE: bounded by LOCK.
                std::thread::sleep(LOCK_AGAIN);
            }
            Err(Errno::WOULDBLOCK) => return Err(DiskError::InUse { path: path.into() }),
            Err(errno) => return Err(DiskError::os("lock", path, errno)),
        }
    }
}

/// A random id.
fn new_id(dir: &Path) -> Result<u128, DiskError> {
    let mut bytes = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|e| DiskError::os("draw an id from /dev/urandom for", dir, e))?;
    Ok(u128::from_ne_bytes(bytes))
}

/// Whether direct I/O was demanded and is not there.
pub(super) fn demand_direct(choice: Choice, dir: &Path, why: &str) -> Result<(), DiskError> {
    if choice == Choice::Required {
        return Err(DiskError::Demanded { path: dir.into(), demand: "direct = \"required\"", why: why.into() });
    }
    Ok(())
}
