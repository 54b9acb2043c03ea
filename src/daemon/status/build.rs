//! Version and build of this program.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Version, protocol, architecture and profile of the build.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Build {
    /// Version of the daemon.
    pub version: Cow<'static, str>,
    /// Version of the engine protocol.
    pub protocol: u32,
    /// Processor architecture.
    pub arch: Cow<'static, str>,
    /// `release`, or `debug` with additional checks.
    pub profile: Cow<'static, str>,
}

/// This build.
pub(crate) const BUILD: Build = Build {
    version: Cow::Borrowed(env!("CARGO_PKG_VERSION")),
    protocol: kvtide_wire::layout::VERSION,
    arch: Cow::Borrowed(std::env::consts::ARCH),
    profile: Cow::Borrowed(if cfg!(debug_assertions) { "debug" } else { "release" }),
};
