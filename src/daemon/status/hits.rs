//! Figures of hits: tokens that engines asked for, found and loaded, and the time that this saved.

use crate::space::SpaceStatus;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Tokens by the tier that held them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ByTier {
    /// Tokens in tier 0.
    pub tier0: u64,
    /// Tokens in host memory.
    pub host: u64,
    /// Tokens on NVMe.
    pub nvme: u64,
}

/// Hits of an engine, a space, a tenant or the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hits {
    /// Tokens that engines asked for.
    pub asked_tokens: u64,
    /// Of those, tokens found in the cache.
    pub found_tokens: u64,
    /// Of those, tokens loaded, by the tier that held them.
    pub loaded_tokens: ByTier,
    /// Time that engines would have needed to compute the loaded tokens.
    pub recompute_us: u64,
    /// Time that the loads took.
    pub load_us: u64,
}

/// A tenant: the sums over all spaces of a domain, and its quota.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Tenant {
    /// Name of the domain.
    pub name: String,
    /// Live sessions.
    pub sessions: u64,
    /// Cached blocks.
    pub blocks: u64,
    /// Host memory held.
    pub host_bytes: u64,
    /// Host memory that it may hold.
    pub host_bytes_max: u64,
    /// NVMe space held.
    pub nvme_bytes: u64,
    /// NVMe space that it may hold.
    pub nvme_bytes_max: u64,
    /// Its hits.
    pub hits: Hits,
}

impl Tenant {
    /// Return the tenants that have spaces.
    pub(crate) fn of(spaces: &[SpaceStatus]) -> Vec<Tenant> {
        let mut tenants = BTreeMap::new();
        for space in spaces {
            let name = space.domain.clone();
            let tenant = tenants.entry(name.clone()).or_insert_with(|| Tenant { name, ..Tenant::default() });
            tenant.sessions += space.sessions as u64;
            tenant.blocks += u64::from(space.occupancy.published);
            tenant.host_bytes += space.slab_bytes;
            tenant.nvme_bytes += u64::from(space.occupancy.nvme_slots) * space.occupancy.nvme_slot_bytes;
        }
        tenants.into_values().collect()
    }
}
