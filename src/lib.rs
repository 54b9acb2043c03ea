//! The daemon: configuration, attach, sessions, core threads, host memory, command line.
//!
//! It drives the sans-IO core (`kvtide_tiering`) with requests from the rings of `kvtide_wire`, and never writes KV bytes. Only
//! `demo`, `bench` and `crash_test` use the client library, as any engine would.
#![deny(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // they panic when the disk behind them is full; `output` does not

mod attach;
pub mod bench;
pub mod cli;
pub mod config;
mod control;
mod crash_test;
mod daemon;
pub mod demo;
mod error;
mod host;
mod http;
mod log;
mod output;
pub mod replay;
mod scan;
mod session;
mod space;
mod status;
mod supervisor;
pub mod translate;

pub use error::Error;
