//! A disk's file or device, opened with an exclusive lock.

use super::error::FsckError;
use kvtide_format::log::Storage;
use kvtide_format::{
    KEY_SECTORS, KEYS_OFFSET, SECTOR, STORE_FILE, SUPERBLOCK_BYTES, SUPERBLOCK_COPIES, Superblock, SuperblockError,
};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time limit for taking the lock: the outstanding writes of a killed daemon hold it for 50 to 60 ms.
const LOCK: Duration = Duration::from_secs(2);
const LOCK_AGAIN: Duration = Duration::from_millis(10);

/// An open disk. The lock is held until the disk is dropped.
pub(super) struct Disk {
    pub path: PathBuf,
    pub superblock: Superblock,
    /// Error of each copy of the superblock that has been written.
    pub copies: [Option<SuperblockError>; 2],
    /// Bytes of the file or device.
    pub bytes: u64,
    file: File,
}

impl Disk {
    /// Open and lock the disk; `write`: for writing.
    pub fn open(path: &Path, write: bool) -> Result<Disk, FsckError> {
        let path = if path.is_dir() { path.join(STORE_FILE) } else { path.to_path_buf() };
        let failed = |tried| {
            let path = path.clone();
            move |source: io::Error| FsckError::Os { tried, path, source }
        };
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let opened = rustix::fs::open(&path, flags, Mode::empty());
        let file = File::from(opened.map_err(|errno| failed("open")(errno.into()))?);
        lock(&file, &path)?;
        let bytes =
            rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(|e| failed("find the end of")(e.into()))?;
        let mut copies = [[0; SUPERBLOCK_BYTES]; SUPERBLOCK_COPIES as usize];
        for (copy, place) in copies.iter_mut().zip((0..).step_by(SUPERBLOCK_BYTES)) {
            read_zeros(&file, place, copy).map_err(failed("read the superblock of"))?;
        }
        let superblock = Superblock::newest(&copies[0], &copies[1]);
        let superblock = superblock.map_err(|source| FsckError::Superblock { path: path.clone(), source })?;
        // The second copy is blank until the superblock was written twice.
        let blank = |copy: &[u8; SUPERBLOCK_BYTES]| copy.iter().all(|byte| *byte == 0);
        let wrong = copies.map(|copy| if blank(&copy) { None } else { Superblock::decode(&copy).err() });
        Ok(Disk { path, superblock, copies: wrong, bytes, file })
    }

    /// Read the key area.
    pub fn key_area(&self) -> Result<Vec<u8>, FsckError> {
        let mut area = vec![0; usize::from(KEY_SECTORS) * SECTOR as usize];
        let failed = |source| FsckError::Os { tried: "read the key area of", path: self.path.clone(), source };
        read_zeros(&self.file, KEYS_OFFSET, &mut area).map_err(failed)?;
        Ok(area)
    }

    /// Read a part of a slot.
    pub fn read_slot(&self, region: u32, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let begin = self.superblock.regions_offset + u64::from(region) * self.superblock.region_bytes;
        read_zeros(&self.file, begin + offset, into)
    }

    /// Write the next copy of the superblock and flush it.
    pub fn write_superblock(&mut self) -> Result<(), FsckError> {
        self.superblock.sequence += 1;
        let written = self.file.write_all_at(&self.superblock.encode(), self.superblock.place());
        let flushed = written.and_then(|()| self.file.sync_data());
        flushed.map_err(|source| FsckError::Os { tried: "write the superblock of", path: self.path.clone(), source })
    }
}

/// Read bytes. Bytes after the end of the file read as zeros, which is no valid data.
fn read_zeros(file: &File, offset: u64, into: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        match file.read_at(&mut into[done..], offset + done as u64) {
            Ok(0) => {
                into[done..].fill(0);
                break;
            }
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn lock(file: &File, path: &Path) -> Result<(), FsckError> {
    let until = Instant::now() + LOCK;
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                // PACE: bounded by LOCK.
                std::thread::sleep(LOCK_AGAIN);
            }
            Err(Errno::WOULDBLOCK) => return Err(FsckError::InUse { path: path.into() }),
            Err(errno) => return Err(FsckError::Os { tried: "lock", path: path.into(), source: errno.into() }),
        }
    }
}

impl Storage for Disk {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        read_zeros(&self.file, offset, into)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }
}
