//! Findings about the disks of the NVMe tier on this machine.

use super::{Findings, Severity, device};
use crate::config::{Disk, Human, NvmeTier, Place};
use kvtide_format::STORE_FILE;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Device number, for comparison only.
enum On {
    /// Of a file system.
    FileSystem(u64),
    /// Of a raw device.
    Raw(u64),
}

pub(super) fn find(nvme: &NvmeTier, findings: &mut Findings) {
    let mut seen: Vec<(On, &Path)> = Vec::new();
    for (index, disk) in nvme.disks.iter().enumerate() {
        let key = |field: &str| format!("tiers.nvme.disks[{index}].{field}");
        let path = disk.place().path();
        let Some(on) = (match disk.place() {
            Place::Dir(dir) => directory(&key, disk, dir, findings),
            Place::Device(path) => device::find(&key, disk, path, findings).map(On::Raw),
        }) else {
            continue;
        };
        for (other_on, other) in &seen {
            match (&on, other_on) {
                (On::FileSystem(a), On::FileSystem(b)) if a == b => {
                    let text = format!(
                        "on the same file system as {}: two disks on one device are not faster than one",
                        other.display()
                    );
                    findings.warn(key(disk.place().key()), text);
                }
                (On::Raw(a), On::Raw(b)) if a == b => {
                    findings.error(key(disk.place().key()), format!("same device as {}", other.display()));
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

/// Return the directory, or its nearest existing ancestor.
fn existing(dir: &Path) -> Option<PathBuf> {
    dir.ancestors().find(|dir| dir.exists()).map(Path::to_path_buf)
}

/// Return true if there is nothing in a directory. The daemon makes such a directory private.
fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}

fn owned(key: &str, dir: &Path, findings: &mut Findings) {
    let Ok(found) = fs::metadata(dir) else { return };
    let us = rustix::process::geteuid().as_raw();
    if !found.is_dir() {
        findings.error(key, format!("{} is not a directory", dir.display()));
    } else if found.uid() != us {
        let (path, owner) = (dir.display(), found.uid());
        findings.warn(
            key,
            format!("{path} belongs to uid {owner}, this process to uid {us}. Run the daemon as uid {owner}"),
        );
    } else if found.mode() & 0o077 != 0 && !is_empty(dir) {
        let (path, mode) = (dir.display(), found.mode() & 0o777);
        let text = format!("{path} is accessible to other users (mode {mode:04o}). Run: chmod 0700 {path}");
        findings.error(key, text);
    }
}

/// Check that the file system has room for the disk's file and for its reserve.
fn room(key: &str, disk: &Disk, dir: &Path, stands: &Path, findings: &mut Findings) {
    let Ok(system) = rustix::fs::statvfs(stands) else { return };
    let (total, free) = (system.f_blocks * system.f_frsize, system.f_bavail * system.f_frsize);
    let has = fs::metadata(dir.join(STORE_FILE)).map_or(0, |found| found.blocks() * 512);
    let (floor, left) = (disk.reserve_free.bytes_of(total), (free + has).saturating_sub(disk.capacity_bytes));
    // A store that is there is kept, and its blocks with it.
    let severity = if has > 0 { Severity::Warning } else { Severity::Error };
    if disk.capacity_bytes > free + has {
        let text = format!(
            "{} does not fit on {} ({} free). Reduce the capacity or free space",
            Human(disk.capacity_bytes),
            stands.display(),
            Human(free + has)
        );
        findings.put(severity, key, text);
    } else if left < floor {
        let text = format!(
            "{} leaves {} of {} free on {}, less than reserve_free = {} ({}). Reduce one of them",
            Human(disk.capacity_bytes),
            Human(left),
            Human(total),
            stands.display(),
            disk.reserve_free,
            Human(floor)
        );
        findings.put(severity, key, text);
    }
}
