//! Regions with blocks of an earlier run, for spaces that have not attached yet, or never will.

use super::{DiskGrant, Disks};
use serde::{Deserialize, Serialize};

/// A region with blocks of an earlier run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    /// Domain that it is charged to; `None`: the domain does not exist any more.
    domain: Option<usize>,
    /// Number of the grant; a lower number is older.
    grant: u64,
}

/// A kept region that was evicted: its contents are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Evicted {
    /// Disk.
    pub disk: u32,
    /// Region of the disk.
    pub region: u32,
}

impl Disks {
    /// Keep a region, granted as number `grant` in an earlier run, for `domain` (`None`: unknown). Return false, and keep nothing,
    /// if the region is not free, the disk failed or does not exist, or `domain` does not exist.
    pub fn keep(&mut self, disk: u32, region: u32, domain: Option<usize>, grant: u64) -> bool {
        let known = domain.is_none_or(|domain| domain < self.by_domain.len());
        let Some(on) = self.disks.get_mut(disk as usize).filter(|disk| known && !disk.status.failed) else {
            return false;
        };
        if !on.free.remove(&region) {
            return false;
        }
        on.kept.insert(region, Kept { domain, grant });
        on.status.kept += 1;
        if let Some(domain) = domain {
            self.by_domain[domain] += self.region_bytes;
        }
        true
    }

    /// Evict the kept regions of domains above their quota, oldest first, until they are within it.
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

    /// Assign a kept region of an unknown domain to a domain. Return whether the region is kept for that domain now.
    pub fn claim(&mut self, disk: u32, region: u32, domain: usize) -> bool {
        let Some(held) = self.by_domain.get_mut(domain) else { return false };
        let Some(kept) = self.disks.get_mut(disk as usize).and_then(|disk| disk.kept.get_mut(&region)) else {
            return false;
        };
        if kept.domain.is_none() {
            kept.domain = Some(domain);
            *held += self.region_bytes;
        }
        kept.domain == Some(domain)
    }

    /// Grant a kept region to a space. Return `None`, and change nothing, if it is not kept for the space's domain, or the space
    /// has no free slab id.
    pub fn adopt(&mut self, space: u32, disk: u32, region: u32) -> Option<DiskGrant> {
        let at = self.at(space)?;
        let slab = self.spaces[at].free()?;
        let on = self.disks.get_mut(disk as usize)?;
        let domain = on.kept.get(&region)?.domain;
        if domain != Some(self.spaces[at].domain) {
            return None;
        }
        on.kept.remove(&region);
        on.status.kept -= 1;
        on.status.granted += 1;
        Some(self.spaces[at].hold(slab, disk, region))
    }

    /// Drop a kept region, so that it may be granted at once. Return false if the region is not kept.
    pub fn drop_kept(&mut self, disk: u32, region: u32) -> bool {
        let Some(on) = self.disks.get_mut(disk as usize) else { return false };
        let Some(kept) = on.kept.remove(&region) else { return false };
        on.status.kept -= 1;
        on.free.insert(region);
        if let Some(domain) = kept.domain {
            self.by_domain[domain] -= self.region_bytes;
        }
        true
    }

    /// Evict a kept region of a domain, or of any domain: first of unknown domains, then the oldest.
    pub(super) fn evict(&mut self, domain: Option<usize>) -> Option<Evicted> {
        let wanted = |kept: &Kept| domain.is_none() || kept.domain == domain;
        let kept =
            self.serving().flat_map(|(disk, on)| on.kept.iter().map(move |(region, kept)| (disk, *region, *kept)));
        let oldest =
            kept.filter(|(.., kept)| wanted(kept)).min_by_key(|(.., kept)| (kept.domain.is_some(), kept.grant));
        let (disk, region, _) = oldest?;
        self.drop_kept(disk, region).then_some(Evicted { disk, region })
    }

    /// Drop the kept regions of a failed disk.
    pub(super) fn forget(&mut self, disk: u32) {
        let Some(on) = self.disks.get_mut(disk as usize) else { return };
        on.status.kept = 0;
        for kept in std::mem::take(&mut on.kept).into_values() {
            if let Some(domain) = kept.domain {
                self.by_domain[domain] -= self.region_bytes;
            }
        }
    }
}
