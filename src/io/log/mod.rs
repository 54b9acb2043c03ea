//! The index log of a disk: what its slots hold, written down so that a restart finds it.
//!
//! ```text
//! core threads ──Note──▶ log thread: tiering::log over the file's log area ──▶ device
//!        ▲                  │    ▲
//!        └──── Box<Note> ◀──┘    └── grants and frees of regions: host thread
//! ```
//!
//! One thread a disk, which blocks in reads, writes and flushes so that the I/O thread never does. The disk's opener reads the log
//! before anything is served. It must not know spaces, blocks or policy: it is told which slot holds what.

mod discard;
mod file;
mod note;
mod open;
mod report;
mod run;
mod thread;

pub(super) use file::LogFile;
pub(crate) use note::{Note, NoteKind};
pub(super) use open::{OpenLog, open};
pub(super) use report::Desk;
pub(crate) use report::{LogReport, RecoveryReport};
pub(super) use thread::LogThread;

use kvtide_tiering::log::{Log, SlabHeader, Storage};

/// The log over a file, or what a test puts in its stead.
pub(super) type DiskLog = Log<BoxedStorage>;
/// What a log stands on.
pub(super) type BoxedStorage = Box<dyn Storage + Send>;

/// To a log thread.
#[derive(Debug)]
pub(crate) enum LogLetter {
    /// Write this down.
    Note(Box<Note>),
    /// A region is granted: what was recorded of it does not count any more. Answered by [`super::DiskEvent::Granted`] when that
    /// is flushed; nobody writes there before.
    Grant(SlabHeader),
    /// A region holds nothing any more. Without an answer: the region's next grant says so too.
    Free {
        /// The region.
        region: u32,
        /// Number of the grant under which it was held.
        grant: u64,
    },
    /// Write and flush everything that was sent before, and end.
    End,
}
