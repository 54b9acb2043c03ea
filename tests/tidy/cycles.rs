//! Cycles between the modules of a package: found from `crate::` paths, compared with those that are known. Paths through a re-export at
//! the root, and `super::` paths, are not seen.

use crate::lexer::code_only;
use std::collections::{BTreeMap, BTreeSet};

/// Packages by their source folder, and the cycles between their top-level modules that are left. A new cycle, or a module more in one
/// of these, fails; a cycle that is gone is to be deleted here.
pub const KNOWN: &[(&str, &[&[&str]])] = &[
    ("tiering/types/src", &[]),
    ("tiering/format/src", &[]),
    ("tiering/src", &[]),
    ("ffi/wire/src", &[]),
    ("ffi/client/src", &[&["agent", "client", "memory"]]),
    ("ffi/capi/src", &[]),
    ("kernels/src", &[&["copy", "driver", "memory", "module", "stream"]]),
    ("kernels/sim/src", &[&["emulator", "stream"]]),
    ("ffi/python/src", &[&["blocks", "channel"], &["cuda", "dlpack"]]),
    ("src/rt", &[]),
    ("src/http", &[]),
    ("src/trace", &[]),
    ("src/nvme", &[]),
    ("src/relay", &[]),
    // Threads publish what the health monitor reads, and beat its heartbeats.
    ("src/daemon", &[&["host", "space", "status"]]),
    ("benches", &[]),
    ("src/cli", &[]),
    ("tests/fake/src", &[]),
    ("tests/sim/src", &[&["episode", "world"]]),
    ("xtask/src", &[]),
];

/// Layers of the core, from the bottom. Each is a struct that owns the one below it, so a call upwards needs a name from above.
pub const LAYERS: &[&[&str]] = &[
    &["tables"],
    &["sessions"],
    &["blocks"],
    &["index"],
    &["disk"],
    &["host"],
    &["paging", "block_api"],
    &["requests"],
    &["core"],
];

/// Return the names that a layer of the core uses of its own height or above. `files` as for [`cycles`].
pub fn upward(files: &[(String, String)]) -> Vec<String> {
    let height = |module: &str| LAYERS.iter().position(|layer| layer.contains(&module));
    let mut found = vec![];
    for (path, text) in files {
        let from = path.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        for to in height(from).map(|_| named(&code_only(text))).unwrap_or_default() {
            if to != from && height(&to) >= height(from) {
                found.push(format!("{path} names crate::{to}, which is not below {from}"));
            }
        }
    }
    found
}

/// Return the cycles between top-level modules: sets of modules that all reach each other. `files` are paths relative to the package's
/// source folder, and their text.
pub fn cycles(files: &[(String, String)]) -> Vec<Vec<String>> {
    let top = |path: &str| path.split('/').next().unwrap_or_default().trim_end_matches(".rs").to_owned();
    let modules: BTreeSet<String> = files.iter().map(|(path, _)| top(path)).collect();
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in files {
        let from = top(path);
        let is_test = path.split('/').any(|part| part == "tests" || part == "tests.rs");
        if is_test || from == "lib" || from == "main" {
            continue;
        }
        let code = code_only(text);
        let shipped = code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let known = named(shipped).into_iter().filter(|to| modules.contains(to) && *to != from);
        uses.entry(from.clone()).or_default().extend(known);
    }
    let reached = |from: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(module) = next.pop() {
            next.extend(uses.get(&module).into_iter().flatten().filter(|to| seen.insert((*to).clone())).cloned());
        }
        seen
    };
    let reaches: BTreeMap<&String, BTreeSet<String>> = modules.iter().map(|module| (module, reached(module))).collect();
    let cycle = |module: &String| -> Vec<String> {
        modules
            .iter()
            .filter(|other| reaches[module].contains(*other) && reaches[other].contains(module))
            .cloned()
            .collect()
    };
    let all: BTreeSet<Vec<String>> = modules.iter().map(cycle).filter(|cycle| cycle.len() > 1).collect();
    all.into_iter().collect()
}

/// Return the first names after `crate::` in paths and lists.
fn named(code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, found) in code.match_indices("crate::") {
        let rest = &code[at + found.len()..];
        let Some(list) = rest.strip_prefix('{') else {
            names.insert(word(rest));
            continue;
        };
        let mut depth = 0;
        let mut first = true;
        for (at, letter) in list.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => first = true,
                _ if first && letter.is_alphabetic() => {
                    names.insert(word(&list[at..]));
                    first = false;
                }
                _ => {}
            }
        }
    }
    names
}

fn word(text: &str) -> String {
    text.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
}
