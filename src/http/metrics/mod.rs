//! The names under which the daemon's figures are exported, and what they are read from.
//!
//! Every family stands in one table ([`daemon`], [`space`], [`canary`], [`node`], [`disk`], [`store`], [`code`]): its name, its help, its kind, and a function from a
//! snapshot to samples. Nothing is counted here. Names follow Prometheus' conventions: base units, `_total` for counters; a
//! label takes few values, or one a space (bounded by `limits.spaces_max`) or a disk. `docs/metrics.md` says what each answers;
//! a test compares that page, the dashboard and the alerts with what a daemon exports.

mod canary;
mod code;
mod daemon;
mod disk;
mod family;
mod node;
mod space;
mod store;

use crate::status::Snapshot;
use family::Family;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;

/// What [`render`] makes.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All tables.
const TABLES: &[&[Family]] = &[
    daemon::FAMILIES,
    space::FAMILIES,
    canary::FAMILIES,
    node::FAMILIES,
    disk::FAMILIES,
    store::FAMILIES,
    code::FAMILIES,
];

/// The page of a scrape.
pub(super) fn render(snapshot: Arc<Snapshot>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Figures(snapshot)));
    let mut page = String::new();
    text::encode(&mut page, &registry)?;
    Ok(page)
}

/// A snapshot as the encoder asks for it.
#[derive(Debug)]
struct Figures(Arc<Snapshot>);

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        TABLES.iter().copied().flatten().try_for_each(|family| family.encode(&self.0, &mut encoder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_keep_the_conventions() {
        let mut names = BTreeSet::new();
        for family in TABLES.iter().copied().flatten() {
            let name = family.name;
            assert!(names.insert(name), "{name} stands twice");
            assert!(name.starts_with("kvtide_"), "{name}");
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{name}");
            assert!(!name.ends_with("_total"), "{name}: the encoder adds it to counters");
            for unit in ["_ms", "_us", "_ns", "_percent", "_kib", "_mib", "_gib", "_kb", "_mb", "_gb"] {
                assert!(!name.ends_with(unit), "{name}: base units only");
            }
            assert!(family.help.ends_with('.') && !family.help.contains('\n'), "{name}: {}", family.help);
        }
    }
}
