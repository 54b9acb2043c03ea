//! The pictures of the documentation: the one of the packages is drawn from `cargo metadata`, and the others name only folders that exist.

use super::arrows::{Edge, Member};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

/// Size of a box and the distances between boxes, in units of the picture.
const BOX: (usize, usize) = (136, 40);
const STEP: (usize, usize) = (190, 62);

/// Beginnings of the folders' names.
const FOLDERS: &[&str] =
    &["src/", "ffi/", "tiering/", "kernels/", "tests/", "benches/", "xtask/", "configs/", "docs/", "examples/"];

/// Fill and stroke of a box by the beginning of its folder.
const COLORS: &[(&str, &str)] = &[
    ("tiering", "fill=\"#dcfce7\" stroke=\"#16a34a\""),
    ("ffi/wire", "fill=\"#ede9fe\" stroke=\"#7c3aed\""),
    ("ffi", "fill=\"#e0f2fe\" stroke=\"#0284c7\""),
    ("kernels", "fill=\"#e0f2fe\" stroke=\"#0284c7\""),
    ("tests", "fill=\"#fff\" stroke=\"#94a3b8\" stroke-dasharray=\"5 4\""),
    ("", "fill=\"#fff\" stroke=\"#334155\""),
];

/// Return the uses between packages that follow from no others, tests left out.
fn needed(edges: &[Edge]) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for edge in edges.iter().filter(|edge| !edge.dev) {
        uses.entry(&edge.from).or_default().insert(&edge.to);
    }
    let mut needed = BTreeMap::new();
    for (from, to) in &uses {
        let follows =
            |package: &str| to.iter().any(|other| *other != package && reached(&uses, other).contains(package));
        needed.insert(*from, to.iter().copied().filter(|package| !follows(package)).collect());
    }
    needed
}

/// Return all packages that one uses, directly or not.
fn reached<'a>(uses: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&str> = uses.get(from).into_iter().flatten().copied().collect();
    while let Some(package) = next.pop() {
        if found.insert(package) {
            next.extend(uses.get(package).into_iter().flatten());
        }
    }
    found
}

/// Draw the packages, each to the right of all that use it and as near to them as possible. One without arrows is left out.
pub fn packages(members: &[Member], edges: &[Edge]) -> String {
    let needed = needed(edges);
    let drawn = |name: &str| needed.iter().any(|(from, to)| *from == name || to.contains(name));
    let mut height: BTreeMap<&str, usize> = BTreeMap::new();
    for _ in members {
        for (from, to) in &needed {
            let above = to.iter().map(|package| height.get(package).map_or(0, |height| *height)).max();
            height.insert(from, above.map_or(0, |above| above + 1));
        }
    }
    let highest = height.values().copied().max().unwrap_or(0);
    let column: BTreeMap<&str, usize> = members
        .iter()
        .filter(|member| drawn(&member.name))
        .map(|member| (&*member.name, highest - height.get(&*member.name).copied().unwrap_or(0)))
        .collect();
    // In a column the order of the folders: related ones stand together.
    let mut members: Vec<&Member> = members.iter().filter(|member| drawn(&member.name)).collect();
    members.sort_by_key(|member| (column[&*member.name], &member.folder));
    let columns = column.values().max().map_or(0, |last| last + 1);
    let count = |at: usize| column.values().filter(|column| **column == at).count();
    let rows = (0..columns).map(count).max().unwrap_or(0);
    let mut places: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for at in 0..columns {
        let top = (rows - count(at)) * STEP.1 / 2;
        for (row, member) in members.iter().filter(|member| column[&*member.name] == at).enumerate() {
            places.insert(&member.name, (20 + at * STEP.0, 50 + top + row * STEP.1));
        }
    }
    let (width, height) = (20 + columns * STEP.0, 50 + rows * STEP.1);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"Helvetica,Arial,sans-serif\" font-size=\"14\">\n\
         <!-- Written by tests/tidy/pictures.rs, if KVTIDE_BLESS is set. -->\n\
         <defs><marker id=\"a\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\">\
         <path d=\"M0 0L10 5L0 10z\" fill=\"#334155\"/></marker></defs>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"20\" y=\"26\" font-size=\"13\" fill=\"#475569\">An arrow goes from a package to one that it uses; what follows from other arrows \
         is left out. tests/sim is not shipped.</text>\n\
         <g stroke=\"#334155\" stroke-width=\"1.4\" fill=\"none\">\n"
    );
    for (from, to) in &needed {
        for to in to {
            let ((x, y), (end_x, end_y)) = (places[from], places[to]);
            let (mut x, mut y, end_y) = (x + BOX.0, y + BOX.1 / 2, end_y + BOX.1 / 2);
            let mut path = format!("M{x} {y}");
            let mut bend = |to_x: usize, to_y: usize| {
                let middle = x.midpoint(to_x);
                let _ = write!(path, "C{middle} {y} {middle} {to_y} {to_x} {to_y}");
                (x, y) = (to_x, to_y);
            };
            // Past the columns between: above or below their boxes.
            for at in column[from] + 1..column[to] {
                let left = 20 + at * STEP.0;
                let boxes: Vec<usize> = places.values().filter(|(x, _)| *x == left).map(|(_, y)| *y).collect();
                let gap = (STEP.1 - BOX.1) / 2;
                let gaps = boxes.iter().flat_map(|y| [y - gap, y + BOX.1 + gap]);
                let straight = end_y.midpoint(places[from].1 + BOX.1 / 2);
                let through = gaps.min_by_key(|gap| gap.abs_diff(straight)).unwrap_or(straight);
                bend(left, through);
                bend(left + BOX.0, through);
            }
            bend(end_x, end_y);
            let _ = writeln!(svg, "<path d=\"{path}\" marker-end=\"url(#a)\"/>");
        }
    }
    svg += "</g>\n";
    for member in members {
        let ((x, y), folder) = (places[&*member.name], &member.folder);
        let color = COLORS.iter().find(|(beginning, _)| folder.starts_with(beginning)).map_or("", |(_, color)| color);
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" rx=\"6\" {color}/><text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            BOX.0,
            BOX.1,
            x + BOX.0 / 2,
            y + 25,
            if folder.is_empty() { "src" } else { folder }
        );
    }
    svg + "</svg>\n"
}

/// Return the folders of the code that a picture names and that do not exist.
pub fn missing_folders(root: &Path, svg: &str) -> Vec<String> {
    let words = svg.split(|c: char| !(c.is_ascii_alphanumeric() || "_/-.".contains(c)));
    let folders = words.filter(|word| FOLDERS.iter().any(|top| word.starts_with(top)));
    folders.filter(|folder| !root.join(folder.trim_end_matches('.')).exists()).map(String::from).collect()
}
