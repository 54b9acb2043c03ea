//! The store: a file or device, which is found or created, checked, locked, and laid out by its superblock.
//!
//! The lock is on the file description that does I/O. After a daemon is killed, its requests in flight keep the description and
//! therefore the lock until they end.
//!
//! A file of another program or a later version, a damaged one, or one in use is rejected and not changed. A store with the same
//! layout is used; one with another layout is laid out again. [`Found`] is the result of the checks, [`Store`] that of the writes.

mod checks;
mod device;
mod direct;
mod presence;
mod purge;

pub(super) use device::discard;
pub(super) use direct::Align;
pub(super) use presence::{Absence, Presence};
pub use purge::purge;

use super::code::{Keyring, MasterKey};
use super::error::DiskError;
use super::memory::Aligned;
use super::settings::{FeatureUse, Place, Settings};
use kvtide_format::{KEY_SECTORS, KEYS_OFFSET, SECTOR, SUPERBLOCK_BYTES, Superblock, SuperblockError};
use kvtide_types::Human;
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use kvtide_format::STORE_FILE as FILE;
/// Its name until its superblock is written.
const NEW: &str = "kvtide.store.new";
/// Maximum wait for the lock: after a SIGKILL with writes in flight it stays taken for 50 to 60 ms (measured on Linux 6.18).
const LOCK: Duration = Duration::from_secs(2);
/// Interval between tries.
const LOCK_AGAIN: Duration = Duration::from_millis(10);
/// A store is laid out again after this many starts: the generations of its slots start with the start number, in 16 bits.
const STARTS_MAX: u32 = u16::MAX as u32;

/// A usable, locked file or device; not changed yet.
#[derive(Debug)]
pub(super) struct Found {
    /// `None`: there is no file yet.
    file: Option<File>,
    /// Path of the file or device.
    path: PathBuf,
    /// The directory, locked.
    dir: Option<File>,
    /// Layout to use if it is laid out again.
    wanted: Superblock,
    /// Its current layout.
    is: Option<Superblock>,
}

/// An open, locked and laid out file or device.
#[derive(Debug)]
pub(super) struct Store {
    /// The file description that does I/O and holds the lock.
    pub file: Arc<File>,
    /// Layout and counters.
    pub superblock: Superblock,
    /// Alignment for direct I/O; 1 if the page cache is used.
    pub align: Align,
    /// Why the page cache is used; None with direct I/O.
    pub buffered: Option<String>,
    /// Buffer of the superblock while it is written.
    pub page: Aligned,
    /// True for a block device.
    pub device: bool,
}

impl Found {
    /// Check the existing file or device and lock it.
    pub fn look(settings: &Settings) -> Result<Found, DiskError> {
        match &settings.place {
            Place::Dir(dir) => Found::look_in(settings, dir),
            Place::Device(path) => Found::look_at(settings, path),
        }
    }

    fn look_in(settings: &Settings, dir: &Path) -> Result<Found, DiskError> {
        let wanted = wanted(settings, settings.capacity_bytes)?;
        let dir_file = checks::directory(dir)?;
        // Held while the file is looked up and created, so that two daemons cannot create it at once.
        lock(&dir_file, dir)?;
        let path = dir.join(FILE);
        let file = match open(&path) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(checks::refused("open", &path, dir, error)),
        };
        let is = match &file {
            Some(file) => {
                checks::file(file, &path)?;
                lock(file, &path)?;
                let read = read(file).map_err(|e| DiskError::os("read the superblock of", &path, e))?;
                Some(read.map_err(|source| DiskError::Superblock { path: path.clone(), source })?)
            }
            None => None,
        };
        let room = checks::room(file.as_ref().unwrap_or(&dir_file), settings, &wanted);
        let found = Found { file, path, dir: Some(dir_file), wanted, is };
        match room {
            // Its blocks are worth more than the part of its capacity that other files have taken.
            Err(DiskError::TooLarge { needed_bytes, free_bytes, floor_bytes, .. }) if found.fitting().is_some() => {
                tracing::warn!(
                    "{}: all of the capacity needs {} more, {} are free, and {} should stay free (reserve_free). The store is kept; \
                     when the file system is full, blocks are no longer written",
                    found.path.display(),
                    Human(needed_bytes),
                    Human(free_bytes),
                    Human(floor_bytes)
                );
            }
            other => other?,
        }
        Ok(found)
    }

    /// Check the directory, its file and the master key as [`Found::look`] and [`Found::keys`] do, but create, change and lock
    /// nothing. Of a device only the key is checked. `made`: directories that the caller makes before.
    pub fn check(settings: &Settings, made: &[&Path]) -> Result<(), DiskError> {
        if let Place::Dir(dir) = &settings.place {
            Found::check_in(settings, dir, made)?;
        }
        let failed = |source| DiskError::Keys { path: settings.place.path().into(), source };
        MasterKey::load(&settings.encryption.source).map(drop).map_err(failed)
    }

    fn check_in(settings: &Settings, dir: &Path, made: &[&Path]) -> Result<(), DiskError> {
        let wanted = wanted(settings, settings.capacity_bytes)?;
        let dir_file = checks::place(dir, made)?;
        let path = dir.join(FILE);
        let file = match open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return checks::room(&dir_file, settings, &wanted),
            Err(error) => return Err(checks::refused("open", &path, dir, error)),
        };
        checks::file(&file, &path)?;
        let read = read(&file).map_err(|e| DiskError::os("read the superblock of", &path, e))?;
        let is = read.map_err(|source| DiskError::Superblock { path, source })?;
        match checks::room(&file, settings, &wanted) {
            Err(DiskError::TooLarge { .. }) if fits(&is, &wanted) => Ok(()),
            other => other,
        }
    }

    fn look_at(settings: &Settings, path: &Path) -> Result<Found, DiskError> {
        let file = device::open(path)?;
        lock(&file, path)?;
        let bytes = device::bytes(&file, path)?;
        let most = || {
            let most = Superblock::largest(new_id(path)?, bytes, settings.region_bytes);
            most.map_err(|source| DiskError::Layout { path: path.into(), capacity_bytes: bytes, source })
        };
        let capacity_bytes = settings.capacity_bytes;
        let wanted = if capacity_bytes == 0 { most()? } else { wanted(settings, capacity_bytes)? };
        if wanted.file_bytes() > bytes {
            let most_bytes = most().map_or(0, |most| most.capacity_bytes());
            let path = path.into();
            return Err(DiskError::DeviceTooSmall { path, capacity_bytes, device_bytes: bytes, most_bytes });
        }
        let is = match read(&file).map_err(|e| DiskError::os("read the superblock of", path, e))? {
            Ok(block) => Some(block),
            Err(SuperblockError::Foreign) if device::is_blank(&file, path, bytes)? => None,
            Err(source) => return Err(DiskError::Superblock { path: path.into(), source }),
        };
        Ok(Found { file: Some(file), path: path.into(), dir: None, wanted, is })
    }

    /// Return its layout if it matches the settings.
    fn fitting(&self) -> Option<Superblock> {
        self.is.filter(|is| fits(is, &self.wanted))
    }

    /// Read the encryption keys of its data.
    ///
    /// # Errors
    /// They cannot be read, or belong to another master key.
    pub fn keys(&self, settings: &Settings) -> Result<Arc<Keyring>, DiskError> {
        let failed = |source| DiskError::Keys { path: settings.place.path().into(), source };
        let master = MasterKey::load(&settings.encryption.source).map_err(failed)?;
        let open = |store, area: &[u8]| {
            Keyring::open(store, &settings.encryption, master.as_ref(), area).map(Arc::new).map_err(failed)
        };
        let mut area = vec![0; usize::from(KEY_SECTORS) * SECTOR as usize];
        if let (Some(file), Some(is)) = (&self.file, &self.is) {
            match file.read_exact_at(&mut area, KEYS_OFFSET) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                other => other.map_err(|e| DiskError::os("read the keys of", &self.path, e))?,
            }
            // The owner of the keys may drop the data that they encrypt; with another master key, the start fails here.
            let keys = open(is.store, &area)?;
            if self.fitting().is_some() {
                return Ok(keys);
            }
        }
        area.fill(0);
        open(self.wanted.store, &area)
    }

    /// Create the file if missing, lay it out, and count the start. All this is flushed before anything else is written.
    pub fn lay_out(self, settings: &Settings) -> Result<Store, DiskError> {
        let fitting = self.fitting();
        let Found { file, path, dir, wanted, is } = self;
        let parent = settings.place.path();
        let file = match (file, &dir) {
            (Some(file), _) => file,
            (None, Some(dir)) => make(dir, parent, &wanted)?,
            (None, None) => return Err(DiskError::os("open", &path, Errno::NOENT)),
        };
        let superblock = match (fitting, is) {
            (Some(found), _) => found,
            (None, Some(found)) => {
                // Through the page cache, which is still in use at this point.
                let none = vec![0; usize::from(KEY_SECTORS) * SECTOR as usize];
                file.write_all_at(&none, KEYS_OFFSET)
                    .map_err(|e| checks::refused("erase the keys of", &path, parent, e))?;
                tracing::warn!(
                    "{}: laid out again with {} regions of {} bytes (before: {} of {}, {} starts); its previous content is dropped",
                    path.display(),
                    wanted.regions,
                    wanted.region_bytes,
                    found.regions,
                    found.region_bytes,
                    found.starts
                );
                Superblock { sequence: found.sequence, written_bytes: found.written_bytes, ..wanted }
            }
            (None, None) => wanted,
        };
        let (align, buffered) = direct::choose(&file, parent, settings.direct)?;
        let page = Aligned::new(SUPERBLOCK_BYTES)
            .map_err(|e| DiskError::os("allocate memory for the superblock of", &path, e))?;
        let device = dir.is_none();
        let mut store = Store { file: Arc::new(file), superblock, align, buffered, page, device };
        if !device {
            store.size(&path)?;
        }
        store.superblock.starts += 1;
        // This also tests that the file can be written in the chosen I/O mode.
        store.write_superblock().map_err(|e| checks::refused("write the superblock of", &path, parent, e))?;
        rustix::fs::fdatasync(&*store.file).map_err(|e| checks::refused("flush", &path, parent, e.into()))?;
        Ok(store)
    }
}

impl Store {
    /// Set the size of the file. Space for the log and the regions is allocated when it is needed ([`room`]).
    fn size(&self, path: &Path) -> Result<(), DiskError> {
        let stat = rustix::fs::fstat(&*self.file).map_err(|e| DiskError::os("read the status of", path, e))?;
        let file_bytes = self.superblock.file_bytes();
        if u64::try_from(stat.st_size) != Ok(file_bytes) {
            rustix::fs::ftruncate(&*self.file, file_bytes).map_err(|e| DiskError::os("set the size of", path, e))?;
        }
        Ok(())
    }

    /// Record a later start number found in the log.
    pub fn learn(&mut self, run: u32) -> io::Result<()> {
        let block = &mut self.superblock;
        if run > block.starts {
            block.starts = run;
            self.write_superblock()?;
            rustix::fs::fdatasync(&*self.file)?;
        }
        Ok(())
    }

    /// Encode the next copy of the superblock into `page`; return its offset.
    pub fn next_superblock(&mut self) -> u64 {
        self.superblock.sequence += 1;
        let bytes = self.superblock.encode();
        self.page.write(0, &bytes);
        self.superblock.place()
    }

    /// Write the next copy of the superblock, blocking.
    pub fn write_superblock(&mut self) -> io::Result<()> {
        let place = self.next_superblock();
        let mut done = 0;
        while done < SUPERBLOCK_BYTES {
            let (at, left) = (self.page.as_ptr().wrapping_add(done), SUPERBLOCK_BYTES - done);
            // SAFETY: the range lies in `page`, which stays borrowed mutably until the call returns.
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

/// Allocate a range of a file, so that writes to it succeed even when the file system fills up. If the file system does not support
/// this, a later write may fail.
///
/// # Errors
/// The file system is full, or the device failed.
pub(crate) fn room(file: &File, offset: u64, bytes: u64) -> Result<(), Errno> {
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, offset, bytes) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Return the free bytes of the file system of a file.
pub(crate) fn free_bytes(file: &File) -> Result<u64, Errno> {
    rustix::fs::fstatvfs(file).map(|vfs| vfs.f_bavail.saturating_mul(vfs.f_frsize))
}

/// Return true if a store with this layout is kept.
fn fits(is: &Superblock, wanted: &Superblock) -> bool {
    is.fits(wanted) && is.starts < STARTS_MAX
}

/// Return the layout of a new store with this capacity.
fn wanted(settings: &Settings, capacity_bytes: u64) -> Result<Superblock, DiskError> {
    let path = settings.place.path();
    let block = Superblock::new(new_id(path)?, capacity_bytes, settings.region_bytes);
    block.map_err(|source| DiskError::Layout { path: path.into(), capacity_bytes, source })
}

/// Open without following symbolic links, which another user may have placed.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Read the newer superblock of a file, through the page cache.
fn read(file: &File) -> io::Result<Result<Superblock, SuperblockError>> {
    let mut copies = [[0; SUPERBLOCK_BYTES]; 2];
    for (copy, place) in copies.iter_mut().zip([0, SUPERBLOCK_BYTES as u64]) {
        match file.read_exact_at(copy, place) {
            // Missing bytes of a short file stay zero, which is not a superblock.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            other => other?,
        }
    }
    Ok(Superblock::newest(&copies[0], &copies[1]))
}

/// Create the file with its first superblock; it gets its final name only after that is flushed.
fn make(dir_file: &File, dir: &Path, block: &Superblock) -> Result<File, DiskError> {
    let path = dir.join(NEW);
    let failed = |tried, e: io::Error| checks::refused(tried, &path, dir, e);
    match rustix::fs::unlinkat(dir_file, NEW, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(failed("remove the leftover of an earlier start", errno.into())),
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = rustix::fs::openat(dir_file, NEW, flags, Mode::RUSR | Mode::WUSR);
    let file = File::from(fd.map_err(|e| failed("create", e.into()))?);
    lock(&file, &path)?;
    file.write_all_at(&block.encode(), block.place()).map_err(|e| failed("write the first superblock of", e))?;
    file.sync_all().map_err(|e| failed("flush", e))?;
    rustix::fs::renameat(dir_file, NEW, dir_file, FILE).map_err(|e| failed("rename", e.into()))?;
    dir_file.sync_all().map_err(|e| failed("flush the directory of", e))?;
    Ok(file)
}

/// Lock a file description, waiting briefly for a lock of a killed daemon.
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

/// Return a random id.
fn new_id(dir: &Path) -> Result<u128, DiskError> {
    let mut bytes = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|e| DiskError::os("read /dev/urandom for an id of", dir, e))?;
    Ok(u128::from_ne_bytes(bytes))
}

/// Fail if direct I/O is required and not available.
pub(super) fn demand_direct(choice: FeatureUse, dir: &Path, why: &str) -> Result<(), DiskError> {
    if choice == FeatureUse::Required {
        return Err(DiskError::Demanded { path: dir.into(), demand: "direct = \"required\"", why: why.into() });
    }
    Ok(())
}
