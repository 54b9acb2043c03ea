//! The file of a disk, or the device: found or made, checked, locked, and laid out by its superblock.
//!
//! The lock is on the description that does I/O: requests of a daemon that was killed go on at the device for a while, and
//! hold the description, and with it the lock, until they are done.
//!
//! A file that is not ours, of a later version, damaged, or in use is refused and not changed. One of ours with the same layout
//! is used as it is; one with another layout is laid out anew. [`Found`] is what has been looked at, [`Store`] what was written.

mod checks;
mod device;
mod direct;
mod presence;
mod purge;

pub(super) use device::discard;
pub(super) use direct::Align;
pub(super) use presence::{Absence, Presence};
pub(crate) use purge::purge;

use super::code::{Keyring, MasterKey};
use super::error::DiskError;
use super::memory::Aligned;
use super::settings::{Choice, Place, Settings};
use kvtide_tiering::format::{KEY_SECTORS, KEYS_OFFSET, SECTOR, SUPERBLOCK_BYTES, Superblock, SuperblockError};
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
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
/// A store that was started so often is laid out anew: generations of its slots begin with the number of the start, in 16 bits.
const STARTS_MAX: u32 = u16::MAX as u32;

/// A file or a device that can be used, locked; nothing of it was changed yet.
#[derive(Debug)]
pub(super) struct Found {
    /// `None`: there is no file yet.
    file: Option<File>,
    /// Of the file or the device.
    path: PathBuf,
    /// The directory, locked.
    dir: Option<File>,
    /// What it shall be if it is laid out anew.
    wanted: Superblock,
    /// What it says that it is.
    is: Option<Superblock>,
}

/// An open, locked, laid out file, or device.
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
    /// Whether it is a block device.
    pub device: bool,
}

impl Found {
    /// Looks at what is there, and takes its lock.
    pub fn look(settings: &Settings) -> Result<Found, DiskError> {
        match &settings.place {
            Place::Dir(dir) => Found::look_in(settings, dir),
            Place::Device(path) => Found::look_at(settings, path),
        }
    }

    fn look_in(settings: &Settings, dir: &Path) -> Result<Found, DiskError> {
        let wanted = wanted(settings, settings.capacity_bytes)?;
        let dir_file = checks::directory(dir)?;
        // Held while the file is looked for and made, so that two daemons cannot make it at once.
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
        checks::room(file.as_ref().unwrap_or(&dir_file), settings, &wanted)?;
        Ok(Found { file, path, dir: Some(dir_file), wanted, is })
    }

    fn look_at(settings: &Settings, path: &Path) -> Result<Found, DiskError> {
        let file = device::open(path)?;
        lock(&file, path)?;
        let bytes = device::bytes(&file, path)?;
        let most = || device::fit(bytes, settings.region_bytes, |capacity| wanted(settings, capacity));
        let capacity_bytes = settings.capacity_bytes;
        let wanted = if capacity_bytes == 0 { most()? } else { wanted(settings, capacity_bytes)? };
        if wanted.file_bytes() > bytes {
            let most_bytes = most().map_or(0, |most| u64::from(most.regions) * most.region_bytes);
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

    /// What it is, if that is how it shall be.
    fn fitting(&self) -> Option<Superblock> {
        self.is.filter(|is| is.fits(&self.wanted) && is.starts < STARTS_MAX)
    }

    /// The keys of what is encrypted on it.
    ///
    /// # Errors
    /// They cannot be read, or they are another master key's.
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
            // Whose keys it holds may drop what it holds: nobody else.
            let keys = open(is.store, &area)?;
            if self.fitting().is_some() {
                return Ok(keys);
            }
        }
        area.fill(0);
        open(self.wanted.store, &area)
    }

    /// Makes the file if there is none, lays it out, counts the start, and has that on the disk before anything else is written.
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
                // Through the page cache, as long as that is used.
                let none = vec![0; usize::from(KEY_SECTORS) * SECTOR as usize];
                file.write_all_at(&none, KEYS_OFFSET)
                    .map_err(|e| checks::refused("erase the keys of", &path, parent, e))?;
                tracing::warn!(
                    "{}: laid out anew, {} regions of {} bytes instead of {} of {}, after {} starts; what it held is dropped",
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
        let page =
            Aligned::new(SUPERBLOCK_BYTES).map_err(|e| DiskError::os("take memory for the superblock of", &path, e))?;
        let device = dir.is_none();
        let mut store = Store { file: Arc::new(file), superblock, align, buffered, page, device };
        if !device {
            store.size(&path)?;
        }
        store.superblock.starts += 1;
        // Also the proof that the file can be written, in the way in which it will be.
        store.write_superblock().map_err(|e| checks::refused("write the superblock of", &path, parent, e))?;
        rustix::fs::fdatasync(&*store.file).map_err(|e| checks::refused("flush", &path, parent, e.into()))?;
        Ok(store)
    }
}

impl Store {
    /// Gives the file its size. The log and the regions get their room when they need it ([`room`]).
    fn size(&self, path: &Path) -> Result<(), DiskError> {
        let stat = rustix::fs::fstat(&*self.file).map_err(|e| DiskError::os("look at", path, e))?;
        let file_bytes = self.superblock.file_bytes();
        if u64::try_from(stat.st_size) != Ok(file_bytes) {
            rustix::fs::ftruncate(&*self.file, file_bytes).map_err(|e| DiskError::os("set the size of", path, e))?;
        }
        Ok(())
    }

    /// The log knows of a later start than the superblock: it says so from now on.
    pub fn learn(&mut self, run: u32) -> io::Result<()> {
        let block = &mut self.superblock;
        if run > block.starts {
            block.starts = run;
            self.write_superblock()?;
            rustix::fs::fdatasync(&*self.file)?;
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

/// Allocates a range of a file, so that it can be written even when the file system fills up. A file system that cannot do that
/// answers a later write with the error.
///
/// # Errors
/// The file system is full, or the device failed.
pub(in crate::io) fn room(file: &File, offset: u64, bytes: u64) -> Result<(), Errno> {
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, offset, bytes) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// A new store of this capacity.
fn wanted(settings: &Settings, capacity_bytes: u64) -> Result<Superblock, DiskError> {
    let path = settings.place.path();
    let block = Superblock::new(new_id(path)?, capacity_bytes, settings.region_bytes);
    block.map_err(|source| DiskError::Layout { path: path.into(), capacity_bytes, source })
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
