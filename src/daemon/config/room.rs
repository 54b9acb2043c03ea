//! Capacities that depend on the machine: "max" and percentages of a disk, percentages of the memory, in bytes.

use super::constants;
use super::{Capacity, Place, Reserve};
use kvtide_format::{STORE_FILE, SUPERBLOCK_BYTES, Superblock};
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Room for a disk's store.
#[derive(Clone, Copy, Debug)]
struct Room {
    /// Bytes of the file system or device.
    total: u64,
    /// Bytes that the store can have, those that it has included.
    free: u64,
    /// The store that is there.
    store: Option<Superblock>,
}

/// Return the capacity of a disk in bytes.
///
/// The default and "max" keep the capacity of the store that is there, so that its blocks are found again, even if other files have
/// taken some of its room. Otherwise they are all that is free. `slab` is the slab size, if it is given;
/// `known`, the bytes of each disk, if they are not to be measured.
pub(super) fn disk(
    capacity: Capacity,
    place: Place<'_>,
    reserve: Reserve,
    slab: Option<u64>,
    known: Option<u64>,
) -> io::Result<u64> {
    let share = match capacity {
        Capacity::Bytes(bytes) => return Ok(bytes),
        Capacity::Percent(percent) => Some(percent),
        Capacity::Max => None,
    };
    let room = match (known, place) {
        (Some(bytes), _) => Room { total: bytes, free: bytes, store: None },
        (None, Place::Dir(dir)) => directory(dir, reserve)?,
        // The daemon serves without a disk that is missing, so its size limits nothing.
        (None, Place::Device(path)) if !path.exists() => return Ok(constants::DISK_BYTES_MAX),
        (None, Place::Device(path)) => device(path)?,
    };
    if let Some(percent) = share {
        return Ok(part(room.total, percent));
    }
    if let Some(store) = room.store {
        return Ok(store.capacity_bytes());
    }
    let region = slab.unwrap_or_else(|| constants::default_nvme_slab(room.free));
    let most = Superblock::largest(0, room.free, region);
    let most = most.map_err(|error| {
        io::Error::other(format!(
            "{} bytes are free beyond reserve_free = {reserve}. Free some, lower reserve_free, or mount a drive there ({error})",
            room.free
        ))
    })?;
    // Whole slabs of the size that this capacity has by default, so that the store which is made has this capacity.
    let slab = slab.unwrap_or_else(|| constants::default_nvme_slab(most.capacity_bytes()));
    Ok(most.capacity_bytes() / slab * slab)
}

/// Return `percent` of a number of bytes, in whole MiB.
pub(super) fn part(bytes: u64, percent: u8) -> u64 {
    let part = (u128::from(bytes) * u128::from(percent) / 100) as u64;
    part - part % constants::MIB
}

fn directory(dir: &Path, reserve: Reserve) -> io::Result<Room> {
    let stands = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    let system = rustix::fs::statvfs(stands)?;
    let (total, free) = (system.f_blocks * system.f_frsize, system.f_bavail * system.f_frsize);
    let path = dir.join(STORE_FILE);
    let has = fs::metadata(&path).map_or(0, |found| found.blocks() * 512);
    let free = free.saturating_sub(reserve.bytes_of(total)).saturating_add(has);
    Ok(Room { total, free, store: store(&path)? })
}

fn device(path: &Path) -> io::Result<Room> {
    if !fs::metadata(path)?.file_type().is_block_device() {
        return Err(io::Error::other("it is not a block device; use `dir` for a directory"));
    }
    let total = File::open(path)?.seek(SeekFrom::End(0))?;
    Ok(Room { total, free: total, store: store(path)? })
}

/// Read the superblock of a store, if there is one.
///
/// A failed read is an error: without the capacity of the store that is there, another one would be made in its place. What is there
/// and is no store, or may not be read, is an error when the daemon opens it.
fn store(path: &Path) -> io::Result<Option<Superblock>> {
    // Opening a pipe would wait.
    let opened = File::options().read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let mut copies = [[0; SUPERBLOCK_BYTES]; 2];
    for (index, copy) in copies.iter_mut().enumerate() {
        match file.read_exact_at(copy, (index * SUPERBLOCK_BYTES) as u64) {
            // Missing bytes of a short file stay zero, which is not a superblock.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            read => read?,
        }
    }
    Ok(Superblock::newest(&copies[0], &copies[1]).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn max_is_what_is_free_and_stays_what_the_store_has() {
        let dir = std::env::temp_dir().join(format!("kvtide-room-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let system = rustix::fs::statvfs(&dir).unwrap();
        let (total, free) = (system.f_blocks * system.f_frsize, system.f_bavail * system.f_frsize);
        let disk = |capacity, reserve| disk(capacity, Place::Dir(&dir), reserve, None, None).unwrap();
        assert_eq!(disk(Capacity::Bytes(7), Reserve::Bytes(0)), 7);
        assert_eq!(disk(Capacity::Percent(25), Reserve::Bytes(0)), part(total, 25));
        let missing =
            super::disk(Capacity::Max, Place::Device(&dir.join("none")), Reserve::Bytes(0), None, None).unwrap();
        assert_eq!(missing, constants::DISK_BYTES_MAX);
        // Other programs may write to the file system meanwhile.
        let (all, half) = (disk(Capacity::Max, Reserve::Bytes(0)), disk(Capacity::Max, Reserve::Bytes(free / 2)));
        assert!(all > free / 10 * 9 && all < free / 10 * 11, "{all} of {free}");
        assert!(half > free / 10 * 4 && half < free / 10 * 6, "{half} of {free}");
        let slab = constants::default_nvme_slab(all);
        assert!(all.is_multiple_of(slab) && slab == constants::default_nvme_slab(all / slab * slab));
        let made = Superblock::new(1, 64 << 20, 4 << 20).unwrap();
        let file = File::create(dir.join(STORE_FILE)).unwrap();
        file.write_all_at(&made.encode(), 0).unwrap();
        file.write_all_at(&[0; SUPERBLOCK_BYTES], SUPERBLOCK_BYTES as u64).unwrap();
        assert_eq!(disk(Capacity::Max, Reserve::Bytes(0)), 64 << 20);
        // One that cannot be read is not taken for none. (A directory opens, and its reads fail.)
        let unreadable = dir.join("unreadable");
        fs::create_dir_all(unreadable.join(STORE_FILE)).unwrap();
        assert!(super::disk(Capacity::Max, Place::Dir(&unreadable), Reserve::Bytes(0), None, None).is_err());
        // Also if it no longer fits beside the reserve.
        assert_eq!(disk(Capacity::Max, Reserve::Bytes(free)), 64 << 20);
        fs::remove_dir_all(&dir).unwrap();
    }
}
