//! Tables of the exported metric families.
//!
//! Each family is in one table ([`daemon`], [`tenant`], [`space`], [`node`], [`disk`], [`store`], [`code`]), with its name, its
//! help, its kind and a function that turns a snapshot into samples. [`family`] writes them in a [`Format`]. Nothing is counted here.
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
mod format;
mod node;
mod space;
mod store;
mod tenant;

use crate::status::Snapshot;
use family::Family;
pub(super) use format::Format;

/// All tables, in the order of export.
const TABLES: &[&[Family]] = &[
    daemon::FAMILIES,
    tenant::FAMILIES,
    space::FAMILIES,
    node::FAMILIES,
    disk::FAMILIES,
    store::FAMILIES,
    code::FAMILIES,
];

/// Render a snapshot as the text of a scrape.
pub(super) fn render(snapshot: &Snapshot, format: Format) -> String {
    let mut page = String::new();
    TABLES.iter().copied().flatten().for_each(|family| family.write(snapshot, format, &mut page));
    page.push_str(format.end());
    page
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
            assert!(!name.ends_with("_total"), "{name}: the text adds _total to counters");
            for unit in ["_ms", "_us", "_ns", "_percent", "_kib", "_mib", "_gib", "_kb", "_mb", "_gb"] {
                assert!(!name.ends_with(unit), "{name}: base units only");
            }
            assert!(family.help.ends_with('.') && !family.help.contains('\n'), "{name}: {}", family.help);
        }
    }
}
