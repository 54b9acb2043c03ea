//! The daemon as a library: configuration, attach, sessions, space threads, host memory, HTTP.
//!
//! It drives the sans-IO core (`kvtide_tiering`) with requests from the rings of `kvtide_wire`, and never writes KV bytes.
#![deny(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // they panic when the disk behind them is full; `output` does not

pub mod announce;
pub mod answer;
mod attach;
pub mod check;
pub mod command;
pub mod config;
mod control;
pub mod error;
mod host;
pub mod http;
mod log;
mod orders;
pub mod output;
mod serve;
mod session;
mod space;
pub mod status;
mod supervisor;
mod trace;

pub use error::Error;
