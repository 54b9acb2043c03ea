//! Regions that hold what an earlier run left, for spaces that have not come, or never will.

use super::{DiskGrant, Disks};
use serde::{Deserialize, Serialize};

/// What an earlier run left in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    /// Whose quota it counts to; of a domain that there is not any more, nobody's.
    domain: Option<usize>,
    /// Number of the grant: the lower, the longer ago.
    grant: u64,
}

/// Something kept that had to go: its region holds nothing any more, and nothing of it may be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Evicted {
    /// The disk.
    pub disk: u32,
    /// Its region.
    pub region: u32,
}

impl Disks {
    /// A region, granted once as number `grant`, holds what an earlier run left for `domain`, or for one that is unknown. False,
    /// and nothing is kept, if the region is not free.
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

    /// Evicts what is kept for domains that hold more than their quota, oldest first, until they do not.
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

    /// A domain turns out to be known: what is kept counts to it from now on. False if nothing is kept there, or the domain is not
    /// known.
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

    /// Grants a space what is kept for it. Nothing, and nothing changed, if it is not kept for the space's domain, or the space
    /// has no slab id left.
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

    /// Lets go of what is kept in a region: it may be granted at once. False if nothing is.
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

    /// Evicts what is kept for a domain, or for any: first of domains that nobody knows, then the oldest.
    pub(super) fn evict(&mut self, domain: Option<usize>) -> Option<Evicted> {
        let wanted = |kept: &Kept| domain.is_none() || kept.domain == domain;
        let kept =
            self.serving().flat_map(|(disk, on)| on.kept.iter().map(move |(region, kept)| (disk, *region, *kept)));
        let oldest =
            kept.filter(|(.., kept)| wanted(kept)).min_by_key(|(.., kept)| (kept.domain.is_some(), kept.grant));
        let (disk, region, _) = oldest?;
        self.drop_kept(disk, region).then_some(Evicted { disk, region })
    }

    /// What is kept on a disk that failed is gone.
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
