//! NVMe I/O. Each disk is one file or raw device with two threads: the I/O thread copies pages between slots and host memory, the
//! log thread records the contents of the slots and flushes.
//!
//! ```text
//! core threads ──DiskMessage──▶ I/O thread: scheduler ─▶ engine (io_uring, or a few threads) ─▶ device
//!        ▲                           │ checksum                                                    ▲
//!        ├──────── Box<Transfer> ◀───┘                 DiskEvent ─▶ host thread                    │
//!        └──Box<LogRequest>──▶ log thread: index log, group commit, flushes ───────────────────────┘
//! ```
//!
//! [`open_all`] checks all disks before it writes to any, and reads their logs. A missing disk affects only its own blocks; a disk
//! that fails too often is taken out of service ([`health`]).
//!
//! A [`Transfer`] is a box that its owner fills and sends ([`DiskMessage::Transfer`]). It always comes back, to the address in it.
//! It keeps its host memory alive until the device has finished. The box and its list are meant to be reused. Memory that is used
//! often is registered once ([`DiskMessage::Register`]), so that its pages are not pinned for each request.
//!
//! Used by core threads, the host thread, the control thread and `bench nvme`. Must not depend on blocks, sequences or sessions,
//! nor on the owner of a region: callers pass the offset of a slot and a description of its content.
//!
//! All `unsafe` code of the daemon is here: memory that the kernel writes to, and bytes shared with engines.

#![deny(clippy::print_stdout, clippy::print_stderr)] // they panic when the disk behind them is full

mod cap;
mod checksum;
mod code;
mod engine;
mod error;
mod health;
mod log;
mod memory;
mod plan;
mod probe;
mod schedule;
mod settings;
mod staging;
mod stats;
mod store;
mod thread;
mod transfer;

#[cfg(test)]
mod tests;

pub use code::KeyError;
pub use code::{Checker, Codec, Coder, Encryption, KeySource, Keyring, MasterKey, SlabCode, stored_bytes};
pub use code::{CodeStatus, CodedStatus};
pub use error::{DiskError, Error};
pub use log::{EraseKeys, LogMessage, LogReport, LogRequest, LogRequestKind, RecoveryReport};
pub use memory::Memory;
pub use settings::{Discard, FeatureUse, IoEngine, Place, Reserve, Settings};
pub use stats::{ClassStatus, DiskStatus, WayStatus, WrittenStatus};
pub use store::purge;
pub use thread::{Disk, DiskEvent, DiskFigures, DiskMessage, DiskThread, Obstacle, OpenDisk, check_all, open_all};
pub use transfer::{Part, SlotKey, Transfer};
