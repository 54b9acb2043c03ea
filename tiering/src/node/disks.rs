//! NVMe space: disks of fixed-size regions, each granted as a slab to one space at a time.
//!
//! A region serves only once it was written whole (its disk says so), and one of a disk that failed serves nobody any more.
//! Spaces get regions from the disk of which the largest share is free, so that disks fill, and are read, in proportion to
//! their size.

use super::SLABS_MAX;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What there is to give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DisksConfig {
    /// Bytes of a region, the same on all disks.
    pub region_bytes: u64,
    /// Regions of each disk.
    pub regions: Vec<u32>,
    /// Bytes that each domain may hold at most.
    pub quotas_bytes: Vec<u64>,
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
    /// A region that the space may have is still being written: ask again when one is ready.
    NotReady,
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
    /// Of them, those that were written and serve or may serve.
    pub ready: u32,
    /// Of them, those granted to spaces.
    pub granted: u32,
    /// Of them, those that a space left behind with transfers perhaps in flight: nobody gets them until the daemon starts anew.
    pub lost: u32,
    /// It failed: nothing of it is granted any more.
    pub failed: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Disk {
    /// Ready and granted to nobody. The lowest is granted first.
    free: BTreeSet<u32>,
    /// Written whole, whoever has it now.
    written: BTreeSet<u32>,
    status: DiskStatus,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Space {
    id: u32,
    domain: usize,
    slots: u32,
    /// Disk and region by slab id.
    slabs: Vec<Option<(u32, u32)>>,
}

/// The disks of all spaces.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Disks {
    cfg: DisksConfig,
    disks: Vec<Disk>,
    /// Bytes granted, by domain.
    by_domain: Vec<u64>,
    spaces: Vec<Space>,
}

impl Disks {
    /// Disks of which no region is ready.
    #[must_use]
    pub fn new(cfg: DisksConfig) -> Disks {
        let disk = |&regions: &u32| Disk {
            free: BTreeSet::new(),
            written: BTreeSet::new(),
            status: DiskStatus { regions, ..DiskStatus::default() },
        };
        let (disks, by_domain) = (cfg.regions.iter().map(disk).collect(), vec![0; cfg.quotas_bytes.len()]);
        Disks { disks, by_domain, spaces: Vec::new(), cfg }
    }

    /// As [`super::Node::set_quotas`].
    pub fn set_quotas(&mut self, quotas_bytes: Vec<u64>) {
        self.by_domain.resize(quotas_bytes.len().max(self.by_domain.len()), 0);
        self.cfg.quotas_bytes = quotas_bytes;
        self.cfg.quotas_bytes.resize(self.by_domain.len(), 0);
    }

    /// A region was written whole and may serve. False if there is no such region, or it is ready already.
    pub fn ready(&mut self, disk: u32, region: u32) -> bool {
        let Some(disk) = self.disks.get_mut(disk as usize).filter(|disk| region < disk.status.regions) else {
            return false;
        };
        let new = disk.written.insert(region);
        if new {
            disk.free.insert(region);
            disk.status.ready += 1;
        }
        new
    }

    /// The disk failed: nothing of it is granted any more. What is granted stays with its spaces, whose transfers fail.
    pub fn fail(&mut self, disk: u32) {
        if let Some(disk) = self.disks.get_mut(disk as usize) {
            disk.status.failed = true;
        }
    }

    /// A space begins whose blocks take `slot_bytes` each.
    ///
    /// # Errors
    /// [`NoSlot`].
    pub fn join(&mut self, space: u32, domain: usize, slot_bytes: u64) -> Result<(), NoSlot> {
        if domain >= self.by_domain.len() || self.at(space).is_some() {
            return Err(NoSlot::Space { space, domain });
        }
        let region_bytes = self.cfg.region_bytes;
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
            self.by_domain[space.domain] -= self.cfg.region_bytes;
            lost += 1;
        }
        lost
    }

    /// Grants a region.
    ///
    /// # Errors
    /// [`NoDisk`].
    pub fn grant(&mut self, space: u32) -> Result<DiskGrant, NoDisk> {
        let at = self.at(space).ok_or(NoDisk::Unknown)?;
        let Space { domain, slots, ref slabs, .. } = self.spaces[at];
        let slab = slabs.iter().position(Option::is_none).unwrap_or(slabs.len());
        let quota = self.cfg.quotas_bytes[domain].saturating_sub(self.by_domain[domain]);
        if quota < self.cfg.region_bytes || slab >= SLABS_MAX {
            return Err(NoDisk::Full);
        }
        let serving = || self.disks.iter().zip(0u32..).filter(|(disk, _)| !disk.status.failed);
        // The largest share free; of several the first. Shares are compared by cross multiplication.
        let share = |disk: &Disk| (disk.free.len() as u64, u64::from(disk.status.regions));
        let freest = serving().filter(|(disk, _)| !disk.free.is_empty()).reduce(|best, other| {
            let ((a, of_a), (b, of_b)) = (share(best.0), share(other.0));
            if b * of_a > a * of_b { other } else { best }
        });
        let Some((_, disk)) = freest else {
            let coming = serving().any(|(disk, _)| disk.status.ready < disk.status.regions);
            return Err(if coming { NoDisk::NotReady } else { NoDisk::Full });
        };
        let Some(region) = self.disks[disk as usize].free.pop_first() else { return Err(NoDisk::Full) };
        self.disks[disk as usize].status.granted += 1;
        self.by_domain[domain] += self.cfg.region_bytes;
        let slabs = &mut self.spaces[at].slabs;
        if slab == slabs.len() {
            slabs.push(None);
        }
        slabs[slab] = Some((disk, region));
        Ok(DiskGrant { slab: slab as u32, disk, region, slots })
    }

    /// Takes a slab back that no transfer is under way to: its region may be granted again at once. False when the space does not hold it.
    pub fn take_back(&mut self, space: u32, slab: u32) -> bool {
        let Some(at) = self.at(space) else { return false };
        let Some((disk, region)) = self.spaces[at].slabs.get_mut(slab as usize).and_then(Option::take) else {
            return false;
        };
        self.by_domain[self.spaces[at].domain] -= self.cfg.region_bytes;
        let disk = &mut self.disks[disk as usize];
        disk.free.insert(region);
        disk.status.granted -= 1;
        true
    }

    /// How each disk stands.
    pub fn status(&self) -> impl Iterator<Item = DiskStatus> {
        self.disks.iter().map(|disk| disk.status)
    }

    /// Bytes of a region.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.cfg.region_bytes
    }

    fn at(&self, space: u32) -> Option<usize> {
        self.spaces.iter().position(|s| s.id == space)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const REGION: u64 = 1 << 20;
    const REGIONS: [u32; 3] = [5, 0, 3];
    const QUOTAS: [u64; 2] = [4 * REGION, 7 * REGION + 1];

    fn disks() -> Disks {
        Disks::new(DisksConfig { region_bytes: REGION, regions: REGIONS.to_vec(), quotas_bytes: QUOTAS.to_vec() })
    }

    proptest! {
        #[test]
        fn a_region_is_ones_alone_and_only_once_written(
            ops in prop::collection::vec((0u8..7, 0u32..4, 0u32..7), 1..300)
        ) {
            let mut node = disks();
            let mut ready: BTreeSet<(u32, u32)> = BTreeSet::new();
            let mut held: BTreeMap<(u32, u32), (u32, u32)> = BTreeMap::new();
            let mut joined: BTreeSet<u32> = BTreeSet::new();
            let mut failed: BTreeSet<u32> = BTreeSet::new();
            let mut lost: BTreeSet<(u32, u32)> = BTreeSet::new();
            for (op, space, n) in ops {
                let domain = space as usize % 2;
                match op {
                    0 => prop_assert_eq!(node.join(space, domain, 1000 + u64::from(space)).is_ok(), joined.insert(space)),
                    1 => {
                        let known = n < REGIONS.get(space as usize).copied().unwrap_or(0);
                        prop_assert_eq!(node.ready(space, n), known && ready.insert((space, n)));
                    }
                    2 if n == 0 => {
                        let gone: Vec<_> = held.iter().filter(|(key, _)| key.0 == space).map(|(_, at)| *at).collect();
                        held.retain(|key, _| key.0 != space);
                        prop_assert_eq!(node.leave(space) as usize, gone.len());
                        joined.remove(&space);
                        lost.extend(gone);
                    }
                    3 if n == 0 => { node.fail(space); failed.insert(space); }
                    2..=4 => {
                        let free = |disk: u32| {
                            let taken = held.values().chain(&lost).filter(|at| at.0 == disk).count();
                            ready.iter().filter(|at| at.0 == disk).count() - taken
                        };
                        let domain_holds = held.keys().filter(|key| key.0 as usize % 2 == domain).count() as u64 * REGION;
                        match node.grant(space) {
                            Ok(g) => {
                                prop_assert!(joined.contains(&space) && !failed.contains(&g.disk));
                                prop_assert!(ready.contains(&(g.disk, g.region)), "not written: {:?}", g);
                                prop_assert!(held.values().chain(&lost).all(|at| *at != (g.disk, g.region)), "granted twice: {:?}", g);
                                prop_assert!(domain_holds + REGION <= QUOTAS[domain]);
                                prop_assert_eq!(u64::from(g.slots), REGION / (1000 + u64::from(space)));
                                for other in (0..3).filter(|d| !failed.contains(d) && REGIONS[*d as usize] > 0) {
                                    let share = |d: u32| free(d) as f64 / f64::from(REGIONS[d as usize]);
                                    prop_assert!(share(g.disk) >= share(other), "not the freest: {:?}", g);
                                }
                                prop_assert!((0..g.slab).all(|slab| held.contains_key(&(space, slab))), "not the lowest id");
                                prop_assert!(held.insert((space, g.slab), (g.disk, g.region)).is_none());
                            }
                            Err(NoDisk::Unknown) => prop_assert!(!joined.contains(&space)),
                            Err(why) => {
                                let some = (0..3).any(|d| !failed.contains(&d) && free(d) > 0);
                                let over = domain_holds + REGION > QUOTAS[domain];
                                prop_assert!(over || !some, "a region is free");
                                let coming = (0..3).any(|d| !failed.contains(&d)
                                    && ready.iter().filter(|at| at.0 == d).count() < REGIONS[d as usize] as usize);
                                prop_assert_eq!(why == NoDisk::NotReady, !over && coming);
                            }
                        }
                    }
                    _ => prop_assert_eq!(node.take_back(space, n), held.remove(&(space, n)).is_some()),
                }
                for (status, disk) in node.status().zip(0u32..) {
                    prop_assert_eq!(status.granted as usize, held.values().filter(|at| at.0 == disk).count());
                    prop_assert_eq!(status.lost as usize, lost.iter().filter(|at| at.0 == disk).count());
                    prop_assert_eq!(status.ready as usize, ready.iter().filter(|at| at.0 == disk).count());
                }
            }
        }
    }

    #[test]
    fn a_block_larger_than_a_region_is_refused_with_both_sizes() {
        let error = disks().join(1, 0, REGION + 4096).unwrap_err();
        assert_eq!(error, NoSlot::TooLarge { slot_bytes: REGION + 4096, region_bytes: REGION });
        assert_eq!(error.to_string(), "a block of 1052672 bytes does not fit into a slab of 1048576 bytes on NVMe");
        assert!(disks().join(1, 2, 4096).is_err(), "no such domain");
    }
}
