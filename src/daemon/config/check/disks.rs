//! Findings about the disks of the NVMe tier on this machine.

use super::{Findings, device};
use crate::config::{NvmeTier, Place};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

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
            Place::Dir(dir) => directory(dir),
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

/// Return the file system of a directory, or of its nearest existing ancestor. The start itself checks the directory.
fn directory(dir: &Path) -> Option<On> {
    let stands = dir.ancestors().find_map(|dir| fs::metadata(dir).ok())?;
    Some(On::FileSystem(stands.dev()))
}
