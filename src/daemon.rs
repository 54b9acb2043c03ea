//! The daemon's entry, the same for `kvtided` and `kvtide daemon`.

/// What the daemon says on stdout, before its socket's path, when engines can attach: a parent can wait for it.
pub const READY: &str = "kvtided is ready on ";
/// What it says, before the path, when it has written a status dump.
pub const DUMPED: &str = "kvtided wrote ";
