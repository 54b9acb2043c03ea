//! Metrics of tenants: hits, and use of the quota. They include spaces that have ended.

use super::family::{Family, Samples};
use crate::status::{ByTier, Hits, Snapshot, Tenant};
use kvtide_tiering::api::Cause;
use std::collections::BTreeMap;

/// Return the loaded tokens by tier.
pub(super) fn by_tier(hits: &Hits) -> [(&'static str, u64); 3] {
    let ByTier { tier0, host, nvme } = hits.loaded_tokens;
    [("tier0", tier0), ("host", host), ("nvme", nvme)]
}

/// Return the lookups that missed, by cause; some causes together, because a series for each would be too many.
fn misses(hits: &Hits) -> impl Iterator<Item = (&'static str, u64)> {
    let label = |cause: Cause| match cause {
        Cause::MemoryFull | Cause::OtherSpace | Cause::IndexFull => "memory_full",
        Cause::Corrupt | Cause::Unreadable | Cause::DiskLost | Cause::EngineLost => "lost",
        Cause::StoreNoRoom | Cause::StoreNoParent | Cause::StoreFailed => "store_failed",
        Cause::RestoreNoParent | Cause::RestoreRefused => "not_restored",
        other => other.name(),
    };
    let mut causes: BTreeMap<&str, u64> = BTreeMap::new();
    for (cause, count) in Cause::ALL.into_iter().zip(hits.missed) {
        *causes.entry(label(cause)).or_default() += count;
    }
    causes.into_iter()
}

/// Call `sample` for each tenant with the label value of its domain.
fn each(snapshot: &Snapshot, samples: &mut Samples, sample: impl Fn(&Tenant, &str, &mut Samples)) {
    for tenant in &snapshot.tenants {
        sample(tenant, &tenant.name, samples);
    }
}

/// Define a family with the domain as its only label.
macro_rules! tenant_figure {
    ($kind:ident, $name:literal, $help:literal, $figure:expr) => {
        Family::$kind($name, $help, |snapshot, samples| {
            let figure: fn(&Tenant) -> u64 = $figure;
            each(snapshot, samples, |tenant, domain, samples| {
                samples.whole(&[("domain", domain)], figure(tenant));
            });
        })
    };
}

/// Families of tenants.
pub(super) const FAMILIES: &[Family] = &[
    tenant_figure!(
        counter,
        "kvtide_tenant_asked_tokens",
        "Tokens of prompts that a tenant's engines asked the cache for.",
        |tenant| tenant.hits.asked_tokens
    ),
    tenant_figure!(
        counter,
        "kvtide_tenant_found_tokens",
        "Tokens asked for by a tenant's engines that were cached.",
        |tenant| tenant.hits.found_tokens
    ),
    Family::counter(
        "kvtide_tenant_lookup_misses",
        "Lookups of a tenant's engines that found less than they asked for, by the cause of the first missing block that they named.",
        |snapshot, samples| {
            each(snapshot, samples, |tenant, domain, samples| {
                for (cause, count) in misses(&tenant.hits) {
                    samples.whole(&[("domain", domain), ("cause", cause)], count);
                }
            });
        },
    ),
    Family::counter(
        "kvtide_tenant_loaded_tokens",
        "Cached tokens that a tenant's engines loaded, by the tier that held them.",
        |snapshot, samples| {
            each(snapshot, samples, |tenant, domain, samples| {
                for (tier, tokens) in by_tier(&tenant.hits) {
                    samples.whole(&[("domain", domain), ("tier", tier)], tokens);
                }
            });
        },
    ),
    Family::counter(
        "kvtide_tenant_recompute_saved_seconds",
        "Time that a tenant's engines would have needed to compute the loaded tokens.",
        |snapshot, samples| {
            each(snapshot, samples, |tenant, domain, samples| {
                samples.real(&[("domain", domain)], tenant.hits.recompute_us as f64 / 1e6);
            });
        },
    ),
    Family::counter("kvtide_tenant_hit_load_seconds", "Time that loading these tokens took.", |snapshot, samples| {
        each(snapshot, samples, |tenant, domain, samples| {
            samples.real(&[("domain", domain)], tenant.hits.load_us as f64 / 1e6);
        });
    }),
    tenant_figure!(gauge, "kvtide_tenant_sessions", "Live sessions of a tenant.", |tenant| tenant.sessions),
    tenant_figure!(gauge, "kvtide_tenant_cached_blocks", "Cached blocks of a tenant.", |tenant| tenant.blocks),
    tenant_figure!(gauge, "kvtide_tenant_host_bytes", "Host memory that a tenant holds.", |tenant| tenant.host_bytes),
    tenant_figure!(
        gauge,
        "kvtide_tenant_host_limit_bytes",
        "Host memory that a tenant may hold: its quota.",
        |tenant| { tenant.host_bytes_max }
    ),
    tenant_figure!(gauge, "kvtide_tenant_nvme_bytes", "NVMe space that a tenant holds.", |tenant| tenant.nvme_bytes),
    tenant_figure!(
        gauge,
        "kvtide_tenant_nvme_limit_bytes",
        "NVMe space that a tenant may hold: its quota.",
        |tenant| { tenant.nvme_bytes_max }
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_miss_has_one_cause() {
        let hits = Hits { missed: [1; Cause::ALL.len()], ..Hits::default() };
        assert_eq!(misses(&hits).map(|(_, count)| count).sum::<u64>(), Cause::ALL.len() as u64);
    }
}
