//! What plays the engine: benches, the demo, the replay of traces and the crash test, as a library that `kvtide` calls.
//!
//! Each attaches to a [private daemon](private_daemon) like any engine, or drives the core directly. They print their results through
//! [`kvtide_daemon::output`].
#![deny(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // they panic when the disk behind them is full; `output` does not

pub mod bench;
pub mod crash_test;
pub mod demo;
pub mod private_daemon;
pub mod replay;
mod scan;
