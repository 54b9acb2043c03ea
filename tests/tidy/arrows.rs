//! Dependencies between crates: read from `cargo metadata`, compared with the table below.

use std::path::Path;
use std::process::Command;

/// A dependency of one member of the workspace on another.
#[derive(Debug)]
pub struct Edge {
    pub from: String,
    pub to: String,
    /// For tests and benches only.
    pub dev: bool,
    /// Features that this edge enables.
    pub features: Vec<String>,
}

/// A package: of the workspace, or the Python package, which is a workspace of its own.
#[derive(Debug)]
pub struct Member {
    pub name: String,
    /// Its folder, from the root; empty for the root.
    pub folder: String,
}

/// Return the packages that are part of kvtide or test it, and the edges between them.
pub fn shipped(root: &Path) -> (Vec<Member>, Vec<Edge>) {
    let mut packages = metadata(root)["packages"].as_array().expect("packages").clone();
    packages.extend(metadata(&root.join("ffi/python"))["packages"].as_array().expect("packages").clone());
    packages.retain(|package| package["name"] != "xtask");
    let folder = |package: &serde_json::Value| {
        let manifest = Path::new(package["manifest_path"].as_str().expect("manifest path"));
        let folder =
            manifest.parent().and_then(|folder| folder.strip_prefix(root).ok()).expect("a folder below the root");
        folder.to_str().expect("UTF-8").to_owned()
    };
    let name = |package: &serde_json::Value| package["name"].as_str().expect("name").to_owned();
    let members = packages.iter().map(|package| Member { name: name(package), folder: folder(package) }).collect();
    (members, edges_of(&packages))
}

/// Allowed dependencies between crates. Reasons: the core is sans-IO, the wire is shared by two processes, and both depend on the
/// vocabulary alone; the daemon never touches the engine's side; an engine that links the client must not carry
/// the core; the simulator runs everything that is shipped and is not shipped itself.
const ALLOWED: &[(&str, &[&str])] = &[
    (
        "kvtide",
        &[
            "kvtide-bench",
            "kvtide-client",
            "kvtide-daemon",
            "kvtide-format",
            "kvtide-nvme",
            "kvtide-tiering",
            "kvtide-types",
            "kvtide-wire",
        ],
    ),
    (
        "kvtide-bench",
        &[
            "kvtide-client",
            "kvtide-daemon",
            "kvtide-fake",
            "kvtide-format",
            "kvtide-nvme",
            "kvtide-rt",
            "kvtide-tiering",
            "kvtide-types",
            "kvtide-wire",
        ],
    ),
    (
        "kvtide-bench-remote",
        &["kvtide-bench", "kvtide-client", "kvtide-daemon", "kvtide-relay", "kvtide-types", "kvtide-wire"],
    ),
    (
        "kvtide-daemon",
        &[
            "kvtide-format",
            "kvtide-http",
            "kvtide-nvme",
            "kvtide-rt",
            "kvtide-tiering",
            "kvtide-trace",
            "kvtide-types",
            "kvtide-wire",
        ],
    ),
    ("kvtide-http", &["kvtide-wire"]),
    ("kvtide-trace", &["kvtide-wire"]),
    ("kvtide-rt", &["kvtide-wire"]),
    ("kvtide-nvme", &["kvtide-format", "kvtide-rt", "kvtide-types", "kvtide-wire"]),
    ("kvtide-relay", &["kvtide-client", "kvtide-http", "kvtide-trace", "kvtide-types", "kvtide-wire"]),
    ("kvtide-types", &[]),
    ("kvtide-format", &["kvtide-types"]),
    ("kvtide-tiering", &["kvtide-format", "kvtide-types"]),
    ("kvtide-fake", &["kvtide-tiering"]),
    ("kvtide-wire", &["kvtide-types"]),
    ("kvtide-client", &["kvtide-types", "kvtide-wire", "kvtide-kernels", "kvtide-cuda-sim"]),
    ("kvtide-capi", &["kvtide-client", "kvtide-wire"]),
    ("kvtide-kernels", &["kvtide-wire", "kvtide-cuda-sim"]),
    ("kvtide-cuda-sim", &[]),
    ("kvtide-sim", &["kvtide-format", "kvtide-tiering", "kvtide-wire", "kvtide-client"]),
    ("xtask", &[]),
];

/// Dependencies allowed for tests besides those: daemons share blocks through relays, the core runs in a fake machine.
const ALLOWED_IN_TESTS: &[(&str, &[&str])] = &[("kvtide", &["kvtide-relay"]), ("kvtide-tiering", &["kvtide-fake"])];

/// The only crate that may enable the deliberate faults.
const MUTANTS_USER: &str = "kvtide-sim";

/// Return all edges between members.
pub fn workspace_edges(root: &Path) -> Vec<Edge> {
    edges_of(metadata(root)["packages"].as_array().expect("packages"))
}

fn edges_of(packages: &[serde_json::Value]) -> Vec<Edge> {
    let names: Vec<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    let mut edges = vec![];
    for package in packages {
        for dep in package["dependencies"].as_array().expect("dependencies") {
            let to = dep["name"].as_str().expect("name");
            if names.contains(&to) {
                edges.push(Edge {
                    from: package["name"].as_str().expect("name").into(),
                    to: to.into(),
                    dev: dep["kind"].as_str() == Some("dev"),
                    features: dep["features"]
                        .as_array()
                        .expect("features")
                        .iter()
                        .filter_map(|f| f.as_str().map(String::from))
                        .collect(),
                });
            }
        }
    }
    assert!(edges.len() >= 3, "found only {edges:?}: the metadata was misread");
    edges
}

/// Return the violations among these edges, one line each.
pub fn violations(edges: &[Edge]) -> Vec<String> {
    let mut problems = vec![];
    for edge in edges {
        let in_tests = if edge.dev { ALLOWED_IN_TESTS } else { &[] };
        if !ALLOWED.iter().chain(in_tests).any(|(from, to)| *from == edge.from && to.contains(&edge.to.as_str())) {
            let kind = if edge.dev { "for tests" } else { "always" };
            problems.push(format!("{} → {} ({kind}) is not an allowed dependency", edge.from, edge.to));
        }
        if edge.features.iter().any(|f| f == "mutants") && edge.from != MUTANTS_USER {
            problems.push(format!("{} enables the mutants of {}: only {MUTANTS_USER} may", edge.from, edge.to));
        }
    }
    problems
}

/// Return the members without the workspace's lints or licence, or with default features that enable the mutants.
pub fn manifest_violations(root: &Path) -> Vec<String> {
    let mut problems = vec![];
    for package in metadata(root)["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("name");
        let path = package["manifest_path"].as_str().expect("manifest path");
        let text = std::fs::read_to_string(path).expect("readable manifest");
        if !text.contains("[lints]\nworkspace = true") {
            problems.push(format!("{name}: does not use the workspace's lints"));
        }
        if package["license"].as_str() != Some("Apache-2.0") {
            problems.push(format!("{name}: licence is {}", package["license"]));
        }
        let default = package["features"]["default"].as_array().cloned().unwrap_or_default();
        if default.iter().any(|f| f.as_str().is_some_and(|f| f.contains("mutants"))) {
            problems.push(format!("{name}: mutants are on by default"));
        }
    }
    problems
}

fn metadata(root: &Path) -> serde_json::Value {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .expect("cargo runs");
    assert!(out.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("cargo metadata prints JSON")
}
