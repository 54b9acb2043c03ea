//! Figures of tenants: sums over the spaces of a domain, those that have ended included.

use crate::config::Domain;
use crate::space::SpaceStatus;
use kvtide_tiering::Hits;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Name and quotas of a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    name: String,
    host_bytes: u64,
    nvme_bytes: u64,
}

impl Quota {
    /// Return the names and quotas of the configured domains.
    pub fn of(domains: &[Domain]) -> Vec<Quota> {
        let quota = |domain: &Domain| Quota {
            name: domain.name.clone(),
            host_bytes: domain.host_bytes,
            nvme_bytes: domain.nvme_bytes,
        };
        domains.iter().map(quota).collect()
    }
}

/// A tenant: all spaces of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tenant {
    /// Its name in `[[domains]]`.
    pub name: String,
    /// Live sessions.
    pub sessions: u64,
    /// Cached blocks.
    pub blocks: u64,
    /// Host memory that its spaces hold.
    pub host_bytes: u64,
    /// Its quota of host memory.
    pub host_bytes_max: u64,
    /// NVMe space in use.
    pub nvme_bytes: u64,
    /// Its quota of NVMe space.
    pub nvme_bytes_max: u64,
    /// What the prefix cache gave to its engines since the daemon started.
    pub hits: Hits,
}

/// Figures of spaces that have ended, and those of the others at the last reading.
#[derive(Debug, Default)]
pub(super) struct Ended {
    last: BTreeMap<u32, (String, Hits)>,
    ended: BTreeMap<String, Hits>,
}

impl Ended {
    /// Read the figures of all spaces, and count those that have ended since the last reading. `lives`: whether a space still runs.
    /// Return the figures of each tenant, and those of the whole daemon.
    pub fn look(
        &mut self,
        spaces: &[SpaceStatus],
        quotas: &[Quota],
        lives: impl Fn(u32) -> bool,
    ) -> (Vec<Tenant>, Hits) {
        for space in spaces {
            self.last.insert(space.space, (space.domain.clone(), space.hits));
        }
        let gone: Vec<u32> = self.last.keys().copied().filter(|space| !lives(*space)).collect();
        for space in gone {
            if let Some((domain, hits)) = self.last.remove(&space) {
                self.ended.entry(domain).or_default().add(&hits);
            }
        }
        let mut tenants: BTreeMap<&str, Tenant> = BTreeMap::new();
        for Quota { name, host_bytes, nvme_bytes } in quotas {
            let (host_bytes_max, nvme_bytes_max) = (*host_bytes, *nvme_bytes);
            let tenant = Tenant { name: name.clone(), host_bytes_max, nvme_bytes_max, ..Tenant::default() };
            tenants.insert(name, tenant);
        }
        let new = |name: &str| Tenant { name: name.to_owned(), ..Tenant::default() };
        for (domain, hits) in self.ended.iter().chain(self.last.values().map(|(domain, hits)| (domain, hits))) {
            tenants.entry(domain).or_insert_with(|| new(domain)).hits.add(hits);
        }
        for space in spaces {
            let tenant = tenants.entry(&space.domain).or_insert_with(|| new(&space.domain));
            tenant.sessions += space.sessions as u64;
            tenant.blocks += u64::from(space.occupancy.published);
            tenant.host_bytes += space.slab_bytes;
            tenant.nvme_bytes += space.occupancy.nvme_used_of_all().0;
        }
        let tenants: Vec<Tenant> = tenants.into_values().collect();
        let mut all = Hits::default();
        tenants.iter().for_each(|tenant| all.add(&tenant.hits));
        (tenants, all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(number: u32, domain: &str, asked_tokens: u64) -> SpaceStatus {
        let hits = Hits { asked_tokens, ..Hits::default() };
        SpaceStatus {
            space: number,
            domain: domain.into(),
            sessions: 1,
            slab_bytes: 10,
            hits,
            ..SpaceStatus::default()
        }
    }

    #[test]
    fn a_tenant_has_the_sum_of_its_spaces_and_keeps_those_that_ended() {
        let quotas = ["a", "b"].map(|name| Quota { name: name.into(), host_bytes: 100, nvme_bytes: 0 });
        let mut ended = Ended::default();
        let first = [space(1, "a", 5), space(2, "a", 7)];
        let (tenants, all) = ended.look(&first, &quotas, |_| true);
        let asked =
            |tenants: &[Tenant]| tenants.iter().map(|t| (t.name.clone(), t.hits.asked_tokens)).collect::<Vec<_>>();
        assert_eq!(asked(&tenants), [("a".into(), 12), ("b".into(), 0)]);
        assert_eq!((all.asked_tokens, tenants[0].sessions, tenants[0].host_bytes), (12, 2, 20));
        assert_eq!((tenants[0].host_bytes_max, tenants[1].host_bytes_max), (100, 100));
        // Space 1 did not answer in time: its last figures count. Space 2 has ended.
        let (tenants, all) = ended.look(&[], &quotas, |space| space == 1);
        assert_eq!((asked(&tenants)[0].1, all.asked_tokens, tenants[0].sessions), (12, 12, 0));
        let (_, all) = ended.look(&[space(1, "a", 6), space(3, "gone from the configuration", 1)], &quotas, |s| s != 2);
        assert_eq!(all.asked_tokens, 14);
    }
}
