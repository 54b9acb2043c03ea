//! `[[tiers.nvme.disks]]`.

use crate::config::ConfigError;
use crate::config::raw::{Field, RawDisk};
use crate::config::size::ByteSize;
use crate::config::sourced::{File, Sourced};
use crate::config::{Disk, Overrides, Place, Reserve, defaults};
use std::path::{Path, PathBuf};

/// The disks, with the origins of their paths and capacities for error messages.
pub(super) struct SourcedDisks {
    pub disks: Vec<Disk>,
    places: Vec<Sourced<PathBuf>>,
    pub smallest: Option<Sourced<ByteSize>>,
    /// Total capacity, for error messages; 0 without an NVMe tier.
    pub total: Sourced<ByteSize>,
}

pub(super) fn disks(file: File<'_>, raw: Vec<RawDisk>, overrides: &Overrides) -> Result<SourcedDisks, ConfigError> {
    let no_disks = file.field("tiers.nvme.disks", None, ByteSize(0));
    let mut all = SourcedDisks { disks: Vec::new(), places: Vec::new(), smallest: None, total: no_disks };
    if let (Some(dir), Some(bytes)) = (&overrides.nvme_dir, overrides.nvme_bytes) {
        let dir = file.field("tiers.nvme.disks[0].dir", None, PathBuf::new()).or_flag("--nvme-dir", Some(dir.clone()));
        let capacity = file.field("tiers.nvme.disks[0].capacity", None, bytes).or_flag("--nvme-bytes", Some(bytes));
        let first = raw.into_iter().next();
        let of_dir = first.as_ref().filter(|disk| disk.device.is_none()).and_then(|disk| disk.reserve_free.clone());
        let default = if overrides.remove_dir { Reserve::Bytes(0) } else { defaults::NVME_RESERVE_FREE };
        let reserve = file.field("tiers.nvme.disks[0].reserve_free", of_dir, default).value;
        let place = Place::Dir(dir.value.clone());
        let disk = Disk {
            place,
            capacity_bytes: 0,
            reserve_free: reserve,
            bytes_per_day: None,
            endurance_bytes: None,
            weight: defaults::WEIGHT,
        };
        all.add(file, dir, capacity, disk)?;
        return Ok(all);
    }
    for (index, disk) in raw.into_iter().enumerate() {
        let key = |field: &str| format!("tiers.nvme.disks[{index}].{field}");
        let capacity = file.given(key("capacity"), disk.capacity);
        let (path, place) = place(file, &key, &capacity, disk.dir, disk.device)?;
        let reserve_free = match (&place, disk.reserve_free) {
            (Place::Device(_), Some(reserve)) => {
                let reserve = file.given(key("reserve_free"), reserve);
                return Err(file.contradiction(
                    &reserve,
                    &path,
                    "a raw device has no file system; remove reserve_free",
                ));
            }
            (Place::Device(_), None) => Reserve::Bytes(0),
            (Place::Dir(_), reserve) => file.field(key("reserve_free"), reserve, defaults::NVME_RESERVE_FREE).value,
        };
        let weight = file.field(key("weight"), disk.weight, defaults::WEIGHT);
        let disk = Disk {
            place,
            capacity_bytes: 0,
            reserve_free,
            bytes_per_day: wear(file, key("bytes_per_day"), disk.bytes_per_day)?,
            endurance_bytes: wear(file, key("endurance"), disk.endurance)?,
            weight: file.in_range(&weight, &defaults::WEIGHT_RANGE)?,
        };
        all.add(file, path, capacity, disk)?;
    }
    Ok(all)
}

/// Return the directory or the device. Exactly one must be given.
fn place(
    file: File<'_>,
    key: &dyn Fn(&str) -> String,
    capacity: &Sourced<ByteSize>,
    dir: Field<PathBuf>,
    device: Field<PathBuf>,
) -> Result<(Sourced<PathBuf>, Place), ConfigError> {
    match (dir, device) {
        (Some(dir), None) => {
            let dir = file.given(key("dir"), dir);
            let place = Place::Dir(dir.value.clone());
            Ok((dir, place))
        }
        (None, Some(device)) => {
            let device = file.given(key("device"), device);
            let place = Place::Device(device.value.clone());
            Ok((device, place))
        }
        (Some(dir), Some(device)) => {
            let (dir, device) = (file.given(key("dir"), dir), file.given(key("device"), device));
            Err(file.contradiction(&dir, &device, "a disk is either a directory or a raw device; remove one of them"))
        }
        (None, None) => Err(file.value(capacity, "`dir` or `device` in the same table")),
    }
}

/// Return a write budget or an endurance; 0 means not set.
fn wear(file: File<'_>, key: String, field: Field<ByteSize>) -> Result<Option<u64>, ConfigError> {
    let bytes = file.field(key, field, ByteSize(0)).map(|size| size.0);
    Ok(Some(file.in_range(&bytes, &defaults::WEAR_RANGE)?).filter(|bytes| *bytes > 0))
}

impl SourcedDisks {
    /// Check capacity and path of a disk and add it.
    fn add(
        &mut self,
        file: File<'_>,
        path: Sourced<PathBuf>,
        capacity: Sourced<ByteSize>,
        disk: Disk,
    ) -> Result<(), ConfigError> {
        if self.disks.len() == defaults::DISKS_MAX {
            return Err(file.value(&path, format_args!("at most {} disks", defaults::DISKS_MAX)));
        }
        if !path.value.is_absolute() {
            return Err(file.value(&path, "an absolute path"));
        }
        let own = normal(&path.value);
        if let Some(other) = self.places.iter().find(|other| normal(&other.value) == own) {
            return Err(file.contradiction(&path, other, "two disks cannot use the same directory or device"));
        }
        let capacity_bytes = file.in_range(&capacity.clone().map(|size| size.0), &defaults::DISK_RANGE)?;
        self.disks.push(Disk { capacity_bytes, ..disk });
        self.places.push(path);
        if self.smallest.as_ref().is_none_or(|smallest| capacity.value < smallest.value) {
            self.smallest = Some(capacity.clone());
        }
        self.total = match self.disks.len() {
            1 => capacity,
            _ => self.total.clone().renamed("the sum of tiers.nvme.disks").map(|sum| ByteSize(sum.0 + capacity_bytes)),
        };
        Ok(())
    }
}

/// Normalize a path: remove `.`, doubled and trailing slashes.
fn normal(path: &Path) -> PathBuf {
    path.components().collect()
}
