//! Licences, bans and sources of everything that is linked in.

use crate::run::{Error, cargo, run, target};
use std::process::Command;

/// The version that deny.toml is written for.
const VERSION: &str = "0.20.2";

/// Installs cargo-deny once below target/tools and runs the checks that need no network.
pub fn check() -> Result<(), Error> {
    let tools = target().join("tools").join(format!("cargo-deny-{VERSION}"));
    let binary = tools.join("bin/cargo-deny");
    if !binary.exists() {
        // Unoptimised: it runs once for a second, and an optimised build takes minutes.
        let mut install = cargo();
        install.args(["install", "cargo-deny", "--locked", "--debug", "--version", VERSION, "--root"]).arg(&tools);
        run(install.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_TARGET_DIR", target().join("tools/build")))?;
    }
    // The Python package is a workspace of its own, with a lock of its own, held to the same rules.
    for manifest in ["Cargo.toml", "ffi/python/Cargo.toml"] {
        let mut deny = Command::new(&binary);
        deny.current_dir(crate::run::root()).args(["--locked", "--config", "deny.toml", "--manifest-path", manifest]);
        run(deny.args(["check", "bans", "licenses", "sources"]))?;
    }
    Ok(())
}
