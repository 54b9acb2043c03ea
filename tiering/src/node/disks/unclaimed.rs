//! Regions with blocks of an earlier run, for spaces that have not attached yet, or never will.

use super::{DiskGrant, Disks};
use serde::{Deserialize, Serialize};

/// A region with blocks of an earlier run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Unclaimed {
    /// Domain that it is charged to; `None`: the domain does not exist any more.
    domain: Option<usize>,
    /// Number of the grant; a lower number is older.
    grant: u64,
}

/// An unclaimed region that was evicted: its contents are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Evicted {
    /// Disk.
    pub disk: u32,
    /// Region of the disk.
    pub region: u32,
}

impl Disks {
    /// Add an unclaimed region, granted as number `grant` in an earlier run, of `domain` (`None`: unknown). Return false, and add nothing,
    /// if the region is not free, the disk failed or does not exist, or `domain` does not exist.
    pub fn add_unclaimed(&mut self, disk: u32, region: u32, domain: Option<usize>, grant: u64) -> bool {
        let known = domain.is_none_or(|domain| domain < self.by_domain.len());
        let Some(on) = self.disks.get_mut(disk as usize).filter(|disk| known && !disk.status.failed) else {
            return false;
        };
        if !on.free.remove(&region) {
            return false;
        }
        on.unclaimed.insert(region, Unclaimed { domain, grant });
        on.status.unclaimed += 1;
        if let Some(domain) = domain {
            self.by_domain[domain] += self.region_bytes;
        }
        true
    }

    /// Evict the unclaimed regions of domains above their quota, oldest first, until they are within it.
    pub fn trim(&mut self) -> Vec<Evicted> {
        let mut evicted = Vec::new();
        for domain in 0..self.by_domain.len() {
            while self.by_domain[domain] > self.quotas_bytes[domain]
                && let Some(gone) = self.evict(Some(domain))
            {
                evicted.push(gone);
            }
        }
        evicted
    }

    /// Assign an unclaimed region of an unknown domain to a domain. Return whether it is an unclaimed region of that domain now.
    pub fn assign_domain(&mut self, disk: u32, region: u32, domain: usize) -> bool {
        let Some(held) = self.by_domain.get_mut(domain) else { return false };
        let Some(unclaimed) = self.disks.get_mut(disk as usize).and_then(|disk| disk.unclaimed.get_mut(&region)) else {
            return false;
        };
        if unclaimed.domain.is_none() {
            unclaimed.domain = Some(domain);
            *held += self.region_bytes;
        }
        unclaimed.domain == Some(domain)
    }

    /// Grant an unclaimed region to a space. Return `None`, and change nothing, if it is not one of the space's domain, or the space
    /// has no free slab id.
    pub fn adopt(&mut self, space: u32, disk: u32, region: u32) -> Option<DiskGrant> {
        let at = self.at(space)?;
        let slab = self.spaces[at].free()?;
        let on = self.disks.get_mut(disk as usize)?;
        let domain = on.unclaimed.get(&region)?.domain;
        if domain != Some(self.spaces[at].domain) {
            return None;
        }
        on.unclaimed.remove(&region);
        on.status.unclaimed -= 1;
        on.status.granted += 1;
        Some(self.spaces[at].hold(slab, disk, region))
    }

    /// Drop an unclaimed region, so that it may be granted at once. Return false if there is no such region.
    pub fn drop_unclaimed(&mut self, disk: u32, region: u32) -> bool {
        let Some(on) = self.disks.get_mut(disk as usize) else { return false };
        let Some(unclaimed) = on.unclaimed.remove(&region) else { return false };
        on.status.unclaimed -= 1;
        on.free.insert(region);
        if let Some(domain) = unclaimed.domain {
            self.by_domain[domain] -= self.region_bytes;
        }
        true
    }

    /// Evict an unclaimed region of a domain, or of any domain: first of unknown domains, then the oldest.
    pub(super) fn evict(&mut self, domain: Option<usize>) -> Option<Evicted> {
        let wanted = |unclaimed: &Unclaimed| domain.is_none() || unclaimed.domain == domain;
        let unclaimed = self
            .serving()
            .flat_map(|(disk, on)| on.unclaimed.iter().map(move |(region, unclaimed)| (disk, *region, *unclaimed)));
        let oldest = unclaimed
            .filter(|(.., unclaimed)| wanted(unclaimed))
            .min_by_key(|(.., unclaimed)| (unclaimed.domain.is_some(), unclaimed.grant));
        let (disk, region, _) = oldest?;
        self.drop_unclaimed(disk, region).then_some(Evicted { disk, region })
    }

    /// Drop the unclaimed regions of a failed disk.
    pub(super) fn forget(&mut self, disk: u32) {
        let Some(on) = self.disks.get_mut(disk as usize) else { return };
        on.status.unclaimed = 0;
        for unclaimed in std::mem::take(&mut on.unclaimed).into_values() {
            if let Some(domain) = unclaimed.domain {
                self.by_domain[domain] -= self.region_bytes;
            }
        }
    }
}
