//! NVMe: one file, or raw device, and two threads a disk. The I/O thread moves pages between slots and host memory; the log
//! thread writes down what the slots hold, and flushes.
//!
//! ```text
//! core threads ──DiskLetter──▶ I/O thread: scheduler ─▶ engine (io_uring, or a few threads) ─▶ device
//!        ▲                          │ checksum                                                    ▲
//!        ├──────── Box<Transfer> ◀──┘                 DiskEvent ─▶ host thread                    │
//!        └──Box<Note>──▶ log thread: index log, group commit, flushes ────────────────────────────┘
//! ```
//!
//! [`open_all`] looks at all disks before it writes to any, and reads their logs; a disk that is missing costs only itself, and one
//! that fails too often goes out of service ([`health`]).
//!
//! A [`Transfer`] is a box that its owner fills, sends ([`DiskLetter::Transfer`]) and gets back by the address in it, whatever
//! became of it: the box holds its host memory alive until the device has let go of it. The box and its list are made to be used
//! again. Memory whose pages shall move without being pinned anew each time is registered once ([`DiskLetter::Register`]).
//!
//! Core threads, the host thread, the control thread and `bench nvme` call in here. It must not know blocks, sequences or
//! sessions, nor who holds a region: it is told where a slot begins and what lies in it.
//!
//! All `unsafe` of the daemon is in here: what the kernel is given to write to, and bytes that engines share with us.

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
pub(crate) use code::{Checker, Codec, Coder, Encryption, KeySource, Keyring, MasterKey, SlabCode, stored_bytes};
pub(crate) use code::{CodeStatus, CodedStatus};
pub use error::DiskError;
pub(crate) use log::{LogLetter, LogReport, Note, NoteKind, RecoveryReport};
pub(crate) use memory::Memory;
pub(crate) use settings::{Choice, Discard, EngineChoice, Floor, Place, Settings};
pub(crate) use stats::{ClassStatus, DiskStatus, WayStatus, WrittenStatus};
pub(crate) use store::purge;
pub(crate) use thread::{Disk, DiskEvent, DiskFigures, DiskLetter, DiskThread, OpenDisk, open_all};
pub(crate) use transfer::{Part, SlotKey, Transfer};
