//! Which program this is.

use serde::Serialize;

/// What it was built from and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Build {
    /// Version of the daemon.
    pub version: &'static str,
    /// Version of the protocol that engines speak with it.
    pub protocol: u32,
    /// Architecture of the processor.
    pub arch: &'static str,
    /// `release`, or `debug` with its slower checks.
    pub profile: &'static str,
}

/// This one.
pub(crate) const BUILD: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    protocol: kvtide_wire::layout::VERSION,
    arch: std::env::consts::ARCH,
    profile: if cfg!(debug_assertions) { "debug" } else { "release" },
};
