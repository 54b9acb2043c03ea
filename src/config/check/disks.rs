//! What of the NVMe tier's disks does not fit this machine.

use super::{Findings, device};
use crate::config::{Disk, NvmeTier, Place, size::Human};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Numbers of a device, for comparison only.
enum On {
    /// A file system on it.
    FileSystem(u64),
    /// All of it.
    Raw(u64),
}

pub(super) fn find(nvme: &NvmeTier, findings: &mut Findings) {
    let mut seen: Vec<(On, &Path)> = Vec::new();
    for (index, disk) in nvme.disks.iter().enumerate() {
        let key = |field: &str| format!("tiers.nvme.disks[{index}].{field}");
        let path = disk.place.path();
        let Some(on) = (match &disk.place {
            Place::Dir(dir) => directory(&key, disk, dir, findings),
            Place::Device(path) => device::find(&key, disk, path, findings).map(On::Raw),
        }) else {
            continue;
        };
        for (other_on, other) in &seen {
            match (&on, other_on) {
                (On::FileSystem(a), On::FileSystem(b)) if a == b => {
                    let text = format!(
                        "on the same file system as {}: two queues on one device are no faster",
                        other.display()
                    );
                    findings.warn(key(disk.place.key()), text);
                }
                (On::Raw(a), On::Raw(b)) if a == b => {
                    findings.error(key(disk.place.key()), format!("{} is the same device", other.display()));
                }
                _ => continue,
            }
            break;
        }
        seen.push((on, path));
    }
}

fn directory(key: &dyn Fn(&str) -> String, disk: &Disk, dir: &Path, findings: &mut Findings) -> Option<On> {
    let stands = existing(dir)?;
    if stands == dir {
        owned(&key("dir"), dir, findings);
    }
    room(&key("capacity"), disk, dir, &stands, findings);
    fs::metadata(&stands).ok().map(|found| On::FileSystem(found.dev()))
}

/// The directory, or the nearest above it that there is.
fn existing(dir: &Path) -> Option<PathBuf> {
    dir.ancestors().find(|dir| dir.exists()).map(Path::to_path_buf)
}

fn owned(key: &str, dir: &Path, findings: &mut Findings) {
    let Ok(found) = fs::metadata(dir) else { return };
    let us = rustix::process::geteuid().as_raw();
    if !found.is_dir() {
        findings.error(key, "it is no directory");
    } else if found.uid() != us {
        findings.warn(key, format!("it belongs to uid {}; the daemon must run as that user, we are {us}", found.uid()));
    } else if found.mode() & 0o077 != 0 {
        let text =
            format!("its mode is {:04o}: others could read prompts in it; it must be 0700", found.mode() & 0o777);
        findings.error(key, text);
    }
}

/// Whether the file system has room for the disk's file beside what must stay free.
fn room(key: &str, disk: &Disk, dir: &Path, stands: &Path, findings: &mut Findings) {
    let Ok(system) = rustix::fs::statvfs(stands) else { return };
    let (total, free) = (system.f_blocks * system.f_frsize, system.f_bavail * system.f_frsize);
    let has = fs::metadata(dir.join("kvtide.store")).map_or(0, |found| found.blocks() * 512);
    let (floor, left) = (disk.reserve_free.bytes_of(total), (free + has).saturating_sub(disk.capacity_bytes));
    if disk.capacity_bytes > free + has {
        let text = format!(
            "{} is more than is free in {}, {}",
            Human(disk.capacity_bytes),
            stands.display(),
            Human(free + has)
        );
        findings.error(key, text);
    } else if left < floor {
        let text = format!(
            "{} leaves {} of {} free in {}, less than reserve_free = {} ({})",
            Human(disk.capacity_bytes),
            Human(left),
            Human(total),
            stands.display(),
            disk.reserve_free,
            Human(floor)
        );
        findings.error(key, text);
    }
}
