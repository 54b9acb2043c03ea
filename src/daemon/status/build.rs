//! Version and build of this program.

use serde::Serialize;

/// Version, protocol, architecture and profile of the build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Build {
    /// Version of the daemon.
    pub version: &'static str,
    /// Version of the engine protocol.
    pub protocol: u32,
    /// Processor architecture.
    pub arch: &'static str,
    /// `release`, or `debug` with additional checks.
    pub profile: &'static str,
}

/// This build.
pub(crate) const BUILD: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    protocol: kvtide_wire::layout::VERSION,
    arch: std::env::consts::ARCH,
    profile: if cfg!(debug_assertions) { "debug" } else { "release" },
};
