//! NVMe capacity: disks of fixed-size regions. Each region is granted as a slab to one space at a time.
//!
//! Regions of a failed disk are not granted. A space gets a region of the disk that it asks for. If that disk has none, it gets one
//! of the disk with the lowest fill level relative to its size and speed. Disks therefore fill, and are read, in proportion to
//! both.
//!
//! A region with blocks of an earlier run is **unclaimed** ([`unclaimed`]) until its space attaches and adopts it. It counts towards its
//! domain's quota. It is evicted, oldest first, when a space needs a region and none is free.

mod unclaimed;
mod write_budget;

pub use unclaimed::Evicted;

use super::SLABS_MAX;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use unclaimed::Unclaimed;

/// Disks of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DisksConfig {
    /// Bytes of a region, equal on all disks.
    pub region_bytes: u64,
    /// The disks.
    pub disks: Vec<DiskConfig>,
    /// Maximum bytes per domain.
    pub quotas_bytes: Vec<u64>,
}

/// One disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskConfig {
    /// Number of regions; 0: out of service.
    pub regions: u32,
    /// Relative speed. Of two disks of equal size, one of weight 2 gets two regions for each region of one of weight 1.
    pub weight: u32,
}

/// A granted region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskGrant {
    /// Id, unique among the space's grants on NVMe; the lowest free one.
    pub slab: u32,
    /// Disk.
    pub disk: u32,
    /// Region of the disk.
    pub region: u32,
    /// Number of the space's slots that fit into the region.
    pub slots: u32,
}

/// Reason why no region was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoDisk {
    /// All regions are granted, or the domain's quota is used up.
    Full,
    /// No such space.
    Unknown,
}

/// Reason why a space gets no NVMe slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoSlot {
    /// The id is in use, or the domain does not exist.
    #[error("space id {space} is in use, or domain {domain} does not exist")]
    Space {
        /// The space.
        space: u32,
        /// Its domain.
        domain: usize,
    },
    /// A block does not fit into a region.
    #[error("a block of {slot_bytes} bytes does not fit into a slab of {region_bytes} bytes on NVMe")]
    TooLarge {
        /// Bytes of the space's slot.
        slot_bytes: u64,
        /// Bytes of a region.
        region_bytes: u64,
    },
}

/// State of one disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskStatus {
    /// Number of regions.
    pub regions: u32,
    /// Regions granted to spaces.
    pub granted: u32,
    /// Regions with blocks of an earlier run that no space has adopted.
    pub unclaimed: u32,
    /// Regions of ended spaces with transfers possibly in flight; unavailable until the daemon restarts.
    pub lost: u32,
    /// The disk failed: no region is granted any more.
    pub failed: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Disk {
    /// Free regions. The lowest is granted first.
    free: BTreeSet<u32>,
    /// Unclaimed regions.
    unclaimed: BTreeMap<u32, Unclaimed>,
    weight: u32,
    status: DiskStatus,
}

impl Disk {
    /// Return the number of regions in use after one more grant, and the capacity that it is relative to: regions × weight.
    fn fullness(&self) -> (u128, u128) {
        let DiskStatus { granted, unclaimed, lost, regions, .. } = self.status;
        let used = u128::from(granted) + u128::from(unclaimed) + u128::from(lost) + 1;
        (used, u128::from(regions) * u128::from(self.weight))
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Space {
    id: u32,
    domain: usize,
    slots: u32,
    /// Disk and region by slab id.
    slabs: Vec<Option<(u32, u32)>>,
}

impl Space {
    /// Return the lowest free slab id.
    fn free(&self) -> Option<usize> {
        let slab = self.slabs.iter().position(Option::is_none).unwrap_or(self.slabs.len());
        (slab < SLABS_MAX).then_some(slab)
    }

    fn hold(&mut self, slab: usize, disk: u32, region: u32) -> DiskGrant {
        if slab == self.slabs.len() {
            self.slabs.push(None);
        }
        self.slabs[slab] = Some((disk, region));
        DiskGrant { slab: slab as u32, disk, region, slots: self.slots }
    }
}

/// Disks of all spaces.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Disks {
    region_bytes: u64,
    quotas_bytes: Vec<u64>,
    disks: Vec<Disk>,
    /// Bytes granted or unclaimed, by domain.
    by_domain: Vec<u64>,
    spaces: Vec<Space>,
}

impl Disks {
    /// Create disks on which every region is free.
    #[must_use]
    pub fn new(cfg: DisksConfig) -> Disks {
        let disk = |&DiskConfig { regions, weight }: &DiskConfig| Disk {
            free: (0..regions).collect(),
            unclaimed: BTreeMap::new(),
            weight: weight.max(1),
            status: DiskStatus { regions, ..DiskStatus::default() },
        };
        Disks {
            disks: cfg.disks.iter().map(disk).collect(),
            by_domain: vec![0; cfg.quotas_bytes.len()],
            spaces: Vec::new(),
            region_bytes: cfg.region_bytes,
            quotas_bytes: cfg.quotas_bytes,
        }
    }

    /// Set the quotas, see [`super::Node::set_quotas`]. Unclaimed regions above a lower quota are evicted and returned.
    pub fn set_quotas(&mut self, quotas_bytes: Vec<u64>) -> Vec<Evicted> {
        self.by_domain.resize(quotas_bytes.len().max(self.by_domain.len()), 0);
        self.quotas_bytes = quotas_bytes;
        self.quotas_bytes.resize(self.by_domain.len(), 0);
        self.trim()
    }

    /// Mark a disk as failed: its regions are no longer granted, and its unclaimed regions are dropped. Return the slabs that spaces
    /// hold there, by space and slab. They stay held until each is given back.
    pub fn fail(&mut self, disk: u32) -> Vec<(u32, u32)> {
        self.forget(disk);
        let Some(failed) = self.disks.get_mut(disk as usize) else { return Vec::new() };
        failed.status.failed = true;
        let slabs =
            self.spaces.iter().flat_map(|space| (0..).zip(&space.slabs).map(move |(slab, at)| (space, slab, at)));
        let there = |at: &Option<(u32, u32)>| at.is_some_and(|(on, _)| on == disk);
        slabs.filter(|(.., at)| there(at)).map(|(space, slab, _)| (space.id, slab)).collect()
    }

    /// Add a space with blocks of `slot_bytes` each.
    ///
    /// # Errors
    /// [`NoSlot`].
    pub fn join(&mut self, space: u32, domain: usize, slot_bytes: u64) -> Result<(), NoSlot> {
        if domain >= self.by_domain.len() || self.at(space).is_some() {
            return Err(NoSlot::Space { space, domain });
        }
        let region_bytes = self.region_bytes;
        match region_bytes.checked_div(slot_bytes).map(|slots| u32::try_from(slots).unwrap_or(u32::MAX)) {
            None | Some(0) => Err(NoSlot::TooLarge { slot_bytes, region_bytes }),
            Some(slots) => {
                self.spaces.push(Space { id: space, domain, slots, slabs: Vec::new() });
                Ok(())
            }
        }
    }

    /// Remove a space. Regions that it did not give back are lost until restart, because transfers to them may still be in flight.
    /// Return their number.
    pub fn leave(&mut self, space: u32) -> u32 {
        let Some(at) = self.at(space) else { return 0 };
        let space = self.spaces.swap_remove(at);
        let mut lost = 0;
        for (disk, _) in space.slabs.into_iter().flatten() {
            self.disks[disk as usize].status.granted -= 1;
            self.disks[disk as usize].status.lost += 1;
            self.by_domain[space.domain] -= self.region_bytes;
            lost += 1;
        }
        lost
    }

    /// Grant a region, of disk `wanted` if it has a free one. If no region is free, or the quota is used up, an unclaimed region is
    /// evicted first and returned.
    ///
    /// # Errors
    /// [`NoDisk`].
    pub fn grant(&mut self, space: u32, wanted: Option<u32>) -> Result<(DiskGrant, Option<Evicted>), NoDisk> {
        let at = self.at(space).ok_or(NoDisk::Unknown)?;
        let domain = self.spaces[at].domain;
        let slab = self.spaces[at].free().ok_or(NoDisk::Full)?;
        let (quota, held) = (self.quotas_bytes[domain], self.by_domain[domain]);
        let evicted = if held > quota {
            return Err(NoDisk::Full);
        } else if quota - held < self.region_bytes {
            Some(self.evict(Some(domain)).ok_or(NoDisk::Full)?)
        } else if self.serving().any(|(_, disk)| !disk.free.is_empty()) {
            None
        } else {
            Some(self.evict(None).ok_or(NoDisk::Full)?)
        };
        let disk = self.choose(wanted).ok_or(NoDisk::Full)?;
        let region = self.disks[disk as usize].free.pop_first().ok_or(NoDisk::Full)?;
        self.disks[disk as usize].status.granted += 1;
        self.by_domain[domain] += self.region_bytes;
        Ok((self.spaces[at].hold(slab, disk, region), evicted))
    }

    /// Take back a slab without transfers in flight. Its region may be granted again at once unless its disk failed. Return its
    /// disk and region; `None` if the space does not hold it.
    pub fn take_back(&mut self, space: u32, slab: u32) -> Option<(u32, u32)> {
        let at = self.at(space)?;
        let (disk, region) = self.spaces[at].slabs.get_mut(slab as usize).and_then(Option::take)?;
        self.by_domain[self.spaces[at].domain] -= self.region_bytes;
        self.disks[disk as usize].free.insert(region);
        self.disks[disk as usize].status.granted -= 1;
        Some((disk, region))
    }

    /// Return the state of each disk.
    pub fn status(&self) -> impl Iterator<Item = DiskStatus> {
        self.disks.iter().map(|disk| disk.status)
    }

    /// Return the bytes of a region.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Return the disk of the next region: the wanted one while it has a free region, else the one with the lowest fill level after
    /// the grant. Fill levels are compared by cross multiplication; the first of equal disks wins.
    fn choose(&self, wanted: Option<u32>) -> Option<u32> {
        let with_room = || self.serving().filter(|(_, disk)| !disk.free.is_empty());
        if let Some((disk, _)) = with_room().find(|(disk, _)| Some(*disk) == wanted) {
            return Some(disk);
        }
        let emptiest = with_room().reduce(|best, other| {
            let ((a, of_a), (b, of_b)) = (best.1.fullness(), other.1.fullness());
            if b * of_a < a * of_b { other } else { best }
        });
        emptiest.map(|(disk, _)| disk)
    }

    fn serving(&self) -> impl Iterator<Item = (u32, &Disk)> {
        (0..).zip(&self.disks).filter(|(_, disk)| !disk.status.failed)
    }

    fn at(&self, space: u32) -> Option<usize> {
        self.spaces.iter().position(|s| s.id == space)
    }
}

#[cfg(test)]
mod tests;
