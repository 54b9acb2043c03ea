//! The index log of a disk: a persistent record of what each slot holds, for restarts.
//!
//! ```text
//! core threads ──LogRequest──▶ log thread: kvtide_format::log over the file's log area ──▶ device
//!        ▲                        │    ▲
//!        └── Box<LogRequest> ◀────┘    └── grants and frees of regions: host thread
//! ```
//!
//! One thread per disk. It blocks in reads, writes and flushes, so that the I/O thread never does. The log is read when the disk is
//! opened, before anything is served. Must not depend on spaces, blocks or policy: callers say which slot holds what.

mod discard;
mod file;
mod log_request;
mod open;
mod report;
mod run;
mod thread;

pub(super) use file::LogFile;
pub use log_request::{LogRequest, LogRequestKind};
pub(super) use open::{OpenLog, open};
pub(super) use report::SharedLogStatus;
pub use report::{LogReport, RecoveryReport};
pub(super) use thread::LogThread;

use super::code::KeyError;
use kvtide_format::log::{Log, SlabHeader, Storage};

/// The log over a file, or over a test's storage.
pub(super) type DiskLog = Log<BoxedStorage>;
/// Storage of a log.
pub(super) type BoxedStorage = Box<dyn Storage + Send>;

/// Messages to a log thread.
#[derive(Debug)]
pub enum LogMessage {
    /// A log request.
    LogRequest(Box<LogRequest>),
    /// A region is granted: its earlier records are invalid. Answered by [`super::DiskEvent::Granted`] when this is flushed; the
    /// space writes there only afterwards.
    Grant(SlabHeader),
    /// A region is free. Not answered: the next grant of the region invalidates its records too.
    Free {
        /// The region.
        region: u32,
        /// Number of its grant.
        grant: u64,
    },
    /// Erase the keys of a tenant.
    EraseKeys(EraseKeys),
    /// Write and flush all earlier messages, then stop.
    End,
}

/// A request to erase the keys of a tenant, which makes its encrypted data unreadable. The tenant must have no running spaces.
pub struct EraseKeys {
    /// The tenant.
    pub domain: String,
    /// Called on the log thread with the number of keys that were erased and flushed. Must not block.
    pub answer: Box<dyn FnOnce(Result<u32, KeyError>) + Send>,
}

impl std::fmt::Debug for EraseKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EraseKeys").field("domain", &self.domain).finish_non_exhaustive()
    }
}
