//! Checks of a raw device: it is a block device, unused, writable and large enough. They only read `/sys` and `/proc`. The daemon's
//! exclusive open is what protects the device.

use super::Findings;
use crate::config::{Disk, Human};
use rustix::fs::{Access, access, major, minor};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Bytes of a sector in `/sys`.
const SYS_SECTOR: u64 = 512;

/// Check the device. Return its number, or `None` if it is not a block device.
pub(super) fn find(key: &dyn Fn(&str) -> String, disk: &Disk, path: &Path, findings: &mut Findings) -> Option<u64> {
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(error) => {
            findings.error(key("device"), format!("cannot read {}: {error}", path.display()));
            return None;
        }
    };
    if !found.file_type().is_block_device() {
        findings.error(key("device"), format!("{} is not a block device. Use `dir` for a directory", path.display()));
        return None;
    }
    let number = Number { major: major(found.rdev()), minor: minor(found.rdev()) };
    let root = Path::new("/");
    if let Some(used) = used(root, &number) {
        findings.error(key("device"), format!("{} {used}; the daemon needs it exclusively", path.display()));
    }
    if read(&number.sys(root).join("ro")).trim() == "1" {
        findings.error(key("device"), format!("{} is read-only", path.display()));
    } else if let Err(error) = access(path, Access::READ_OK | Access::WRITE_OK) {
        let text = format!(
            "this user cannot read and write {} ({error}). Make the daemon's user its owner and set DeviceAllow= in the unit",
            path.display()
        );
        findings.warn(key("device"), text);
    }
    let size = read(&number.sys(root).join("size")).trim().parse::<u64>().ok().map(|sectors| sectors * SYS_SECTOR);
    if let Some(size) = size.filter(|size| *size < disk.capacity_bytes) {
        let text = format!("{} does not fit on {} ({})", Human(disk.capacity_bytes), path.display(), Human(size));
        findings.error(key("capacity"), text);
    }
    Some(found.rdev())
}

struct Number {
    major: u32,
    minor: u32,
}

impl Number {
    fn sys(&self, root: &Path) -> PathBuf {
        root.join(format!("sys/dev/block/{}:{}", self.major, self.minor))
    }
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// Describe the present use of a device. `None`: it is unused.
fn used(root: &Path, number: &Number) -> Option<String> {
    let sys = number.sys(root);
    let names = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let mounts = read(&root.join("proc/self/mountinfo"));
    let mounted = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&number.to_string()));
    if let Some(mounted) = mounted {
        return Some(format!("is mounted at {}", mounted.split(' ').nth(4).unwrap_or("an unknown path")));
    }
    if let Some(partition) = names(sys.clone()).find(|name| sys.join(name).join("partition").exists()) {
        return Some(format!("has partitions ({})", partition.display()));
    }
    if let Some(holder) = names(sys.join("holders")).next() {
        return Some(format!("is used by {}", holder.display()));
    }
    let swaps = read(&root.join("proc/swaps"));
    let is_it = |path: &str| {
        fs::metadata(path).is_ok_and(|found| (major(found.rdev()), minor(found.rdev())) == (number.major, number.minor))
    };
    let swap = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).find(|path| is_it(path));
    swap.map(|_| "is a swap device".to_owned())
}

/// Read a small file of the kernel. Return an empty string if it does not exist.
fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_somebody_has_is_told_from_a_free_one() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let number = Number { major: 259, minor: 3 };
        let sys = number.sys(root);
        fs::create_dir_all(sys.join("holders")).unwrap();
        fs::create_dir_all(sys.join("queue")).unwrap();
        fs::create_dir_all(root.join("proc/self")).unwrap();
        assert_eq!(used(root, &number), None);
        let mounts = root.join("proc/self/mountinfo");
        fs::write(&mounts, "29 1 259:30 / / rw - ext4 /dev/nvme0n1p1 rw\n").unwrap();
        assert_eq!(used(root, &number), None, "259:30 is another device than 259:3");
        fs::write(&mounts, "29 1 259:30 / / rw - ext4 a rw\n30 29 259:3 / /srv/data rw - xfs b rw\n").unwrap();
        assert_eq!(used(root, &number).as_deref(), Some("is mounted at /srv/data"));
        fs::remove_file(&mounts).unwrap();
        fs::create_dir_all(sys.join("holders/dm-0")).unwrap();
        assert_eq!(used(root, &number).as_deref(), Some("is used by dm-0"));
        fs::create_dir_all(sys.join("nvme1n1p1/partition")).unwrap();
        assert_eq!(used(root, &number).as_deref(), Some("has partitions (nvme1n1p1)"));
    }
}
