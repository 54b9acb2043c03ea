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

mod note;

pub(crate) use note::{Note, NoteKind};

/// To a log thread.
#[derive(Debug)]
pub(crate) enum LogLetter {
    /// Write this down.
    Note(Box<Note>),
    /// A region holds nothing of a grant any more. Without an answer: the region's next grant says so too.
    Free {
        /// The region.
        region: u32,
        /// Number of the grant under which it was held.
        grant: u64,
    },
    /// Write and flush everything that was sent before, and end.
    End,
}
