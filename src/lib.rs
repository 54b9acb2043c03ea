//! The shell of the daemon.
