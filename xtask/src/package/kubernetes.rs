//! `e2e kubernetes`: whether the manifests of configs/kubernetes are what Kubernetes and kvtide accept.

use super::{failed, scratch};
use crate::python::venv;
use crate::run::{Error, cargo, output, root, run, target};
use std::fs;
use std::path::Path;
use std::process::Command;

/// What renders and checks them.
const TOOLS: &str = include_str!("kubernetes.txt");
/// Roots of the manifests. The example has all components.
const EXAMPLE: [&str; 2] = ["example", "engine"];
const BASE: [&str; 1] = ["base"];

/// Create the environment of the check in advance.
pub fn environment() -> Result<venv::Python, Error> {
    venv::environment("kubernetes", TOOLS, "")
}

/// Render the manifests and check them.
pub fn check() -> Result<(), Error> {
    // A component cannot add lines to a file: it has the base's with its own at the end.
    let [base, relay] =
        ["base", "relay"].map(|folder| root().join("configs/kubernetes").join(folder).join("kvtided.toml"));
    let read = |path: &Path| fs::read_to_string(path).map_err(failed("read", path));
    if !read(&relay)?.starts_with(&read(&base)?) {
        return Err(Error::Check(format!("{} does not begin with {}: copy it there", relay.display(), base.display())));
    }
    let tools = environment()?;
    // One by one: a dependency of the relay turns features on that the others do not need.
    for package in ["kvtide", "kvtide-relay"] {
        run(cargo().args(["build", "--release", "--locked", "-p", package]))?;
    }
    let place = scratch("kubernetes")?;
    let mut check = tools.command();
    check.arg(root().join("xtask/src/package/kubernetes.py")).arg(&place).arg(env!("CARGO_PKG_VERSION"));
    check.arg(root().join("src/daemon/http/routes.rs"));
    check.args(["kvtide", "kvtide-relay"].map(|program| target().join("release").join(program)));
    for (name, roots) in [("example.yaml", &EXAMPLE[..]), ("base.yaml", &BASE[..])] {
        let mut text = String::new();
        for folder in roots {
            let mut kubectl = Command::new(tools.binary("kubectl"));
            kubectl.arg("kustomize").arg(root().join("configs/kubernetes").join(folder));
            text.push_str(&format!("---\n{}", output(&mut kubectl)?));
        }
        let path = place.join(name);
        fs::write(&path, text).map_err(failed("write", &path))?;
        check.arg(path);
    }
    run(&mut check)
}
