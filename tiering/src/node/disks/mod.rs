//! NVMe space: disks of fixed-size regions, each granted as a slab to one space at a time.
//!
//! A region of a disk that failed serves nobody any more. Spaces get regions from the disk that they ask for, else from the one that is least
//! full for its size and speed, so that
//! disks fill, and are read, in proportion to both.
//!
//! What an earlier run left in a region is **kept** ([`kept`]) until its space comes and adopts it: it counts to its domain's
//! quota, and is evicted, oldest first, when a space wants a region and none is free.

mod kept;
mod wear;

pub use kept::Evicted;

use super::SLABS_MAX;
use kept::Kept;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What there is to give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DisksConfig {
    /// Bytes of a region, the same on all disks.
    pub region_bytes: u64,
    /// The disks.
    pub disks: Vec<DiskConfig>,
    /// Bytes that each domain may hold at most.
    pub quotas_bytes: Vec<u64>,
}

/// One disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskConfig {
    /// Its regions; none: it is out of service.
    pub regions: u32,
    /// How fast it is against the others: of two disks of equal size, one of weight 2 gets two regions for each of the other's.
    pub weight: u32,
}

/// One grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskGrant {
    /// Id, unique among the space's grants on NVMe; the lowest free one.
    pub slab: u32,
    /// The disk.
    pub disk: u32,
    /// Its region.
    pub region: u32,
    /// Slots of the space's size that fit into it.
    pub slots: u32,
}

/// Why there is no grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoDisk {
    /// Every region is granted, or the domain's quota is.
    Full,
    /// No such space.
    Unknown,
}

/// A space's slots cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoSlot {
    /// The id is in use, or there is no such domain.
    #[error("space {space} of domain {domain} is known already, or its domain is not")]
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

/// How one disk stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskStatus {
    /// Its regions.
    pub regions: u32,
    /// Of them, those granted to spaces.
    pub granted: u32,
    /// Of them, those that hold what an earlier run left and no space has adopted.
    pub kept: u32,
    /// Of them, those that a space left behind with transfers perhaps in flight: nobody gets them until the daemon starts anew.
    pub lost: u32,
    /// It failed: nothing of it is granted any more.
    pub failed: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Disk {
    /// Granted to nobody. The lowest is granted first.
    free: BTreeSet<u32>,
    /// What an earlier run left, by region.
    kept: BTreeMap<u32, Kept>,
    weight: u32,
    status: DiskStatus,
}

impl Disk {
    /// Regions in use once one more is granted, and what they are measured by.
    fn fullness(&self) -> (u128, u128) {
        let DiskStatus { granted, kept, lost, regions, .. } = self.status;
        let used = u128::from(granted) + u128::from(kept) + u128::from(lost) + 1;
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
    /// The lowest free slab id.
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

/// The disks of all spaces.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Disks {
    region_bytes: u64,
    quotas_bytes: Vec<u64>,
    disks: Vec<Disk>,
    /// Bytes granted or kept, by domain.
    by_domain: Vec<u64>,
    spaces: Vec<Space>,
}

impl Disks {
    /// Disks of which every region is free.
    #[must_use]
    pub fn new(cfg: DisksConfig) -> Disks {
        let disk = |&DiskConfig { regions, weight }: &DiskConfig| Disk {
            free: (0..regions).collect(),
            kept: BTreeMap::new(),
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

    /// As [`super::Node::set_quotas`]. What is kept beyond a lower quota is evicted.
    pub fn set_quotas(&mut self, quotas_bytes: Vec<u64>) -> Vec<Evicted> {
        self.by_domain.resize(quotas_bytes.len().max(self.by_domain.len()), 0);
        self.quotas_bytes = quotas_bytes;
        self.quotas_bytes.resize(self.by_domain.len(), 0);
        self.trim()
    }

    /// The disk failed: nothing of it is granted any more, and what was kept there is gone. The slabs that spaces hold there, by
    /// space and slab; they stay held until each is given back.
    pub fn fail(&mut self, disk: u32) -> Vec<(u32, u32)> {
        self.forget(disk);
        let Some(failed) = self.disks.get_mut(disk as usize) else { return Vec::new() };
        failed.status.failed = true;
        let slabs =
            self.spaces.iter().flat_map(|space| (0..).zip(&space.slabs).map(move |(slab, at)| (space, slab, at)));
        let there = |at: &Option<(u32, u32)>| at.is_some_and(|(on, _)| on == disk);
        slabs.filter(|(.., at)| there(at)).map(|(space, slab, _)| (space.id, slab)).collect()
    }

    /// A space begins whose blocks take `slot_bytes` each.
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

    /// A space has ended. Regions that it did not give back are lost: its transfers may still be in flight, and nobody knows
    /// which. Returns their number.
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

    /// Grants a region, of the disk `wanted` if it has a free one. If none is free, or the quota is used up, something that is
    /// kept goes for it, and is named.
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

    /// Takes a slab back that no transfer is under way to: its region may be granted again at once, unless its disk failed.
    /// Where it was; nothing if the space does not hold it.
    pub fn take_back(&mut self, space: u32, slab: u32) -> Option<(u32, u32)> {
        let at = self.at(space)?;
        let (disk, region) = self.spaces[at].slabs.get_mut(slab as usize).and_then(Option::take)?;
        self.by_domain[self.spaces[at].domain] -= self.region_bytes;
        self.disks[disk as usize].free.insert(region);
        self.disks[disk as usize].status.granted -= 1;
        Some((disk, region))
    }

    /// How each disk stands.
    pub fn status(&self) -> impl Iterator<Item = DiskStatus> {
        self.disks.iter().map(|disk| disk.status)
    }

    /// Bytes of a region.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// The disk of the next region: the wanted one while it has any, else the one that is least full then. Fullness is compared
    /// by cross multiplication; of equals the first.
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
