//! Tables of the exported metric families.
//!
//! Each family is in one table ([`daemon`], [`space`], [`integrity_sample`], [`node`], [`disk`], [`store`], [`code`]), with its name, its
//! help, its kind and a function that turns a snapshot into samples. Nothing is counted here.
//!
//! Names follow the conventions of Prometheus: base units, `_total` for counters. A label has few values, or one for each space
//! (at most `limits.spaces_max`) or disk.
//!
//! `docs/reference/metrics.md` documents every family. A test compares that page, the dashboard and the alert rules with the
//! metrics of a running daemon.

mod code;
mod daemon;
mod disk;
mod family;
mod integrity_sample;
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

/// Content type of the text that [`render`] returns.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All tables, in the order of export.
const TABLES: &[&[Family]] = &[
    daemon::FAMILIES,
    space::FAMILIES,
    integrity_sample::FAMILIES,
    node::FAMILIES,
    disk::FAMILIES,
    store::FAMILIES,
    code::FAMILIES,
];

/// Render a snapshot as the text of a scrape.
pub(super) fn render(snapshot: Arc<Snapshot>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Figures(snapshot)));
    let mut page = String::new();
    text::encode(&mut page, &registry)?;
    Ok(page)
}

/// Adapter that passes a snapshot to the encoder.
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
            assert!(names.insert(name), "{name} is defined twice");
            assert!(name.starts_with("kvtide_"), "{name}");
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{name}");
            assert!(!name.ends_with("_total"), "{name}: the encoder adds _total to counters");
            for unit in ["_ms", "_us", "_ns", "_percent", "_kib", "_mib", "_gib", "_kb", "_mb", "_gb"] {
                assert!(!name.ends_with(unit), "{name}: base units only");
            }
            assert!(family.help.ends_with('.') && !family.help.contains('\n'), "{name}: {}", family.help);
        }
    }
}
