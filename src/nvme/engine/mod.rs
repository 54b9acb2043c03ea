//! I/O engines: submit requests by io_uring, or by `preadv` and `pwritev` on a few threads. Both behave the same and pass the same
//! tests. An engine serves one file; it must not depend on transfers, pages or priorities.

mod threads;
mod uring;

pub(super) use threads::Threads;
pub(super) use uring::{BUFFERS, Uring, UringSetup};

use kvtide_types::IoKind;
use rustix::io::Errno;
use std::time::Duration;

/// A range of memory, laid out as `struct iovec`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Piece(pub libc::iovec);

impl Piece {
    /// Create a range of `bytes` at an address.
    pub fn new(at: *mut u8, bytes: usize) -> Piece {
        Piece(libc::iovec { iov_base: at.cast(), iov_len: bytes })
    }

    /// Return its address.
    pub fn at(&self) -> *mut u8 {
        self.0.iov_base.cast()
    }

    /// Return its size in bytes.
    pub fn bytes(&self) -> usize {
        self.0.iov_len
    }
}

/// One request to the device: a contiguous range of the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Command {
    /// Returned with the completion.
    pub token: u32,
    /// Read or write.
    pub kind: IoKind,
    /// Offset in the file.
    pub offset: u64,
    /// The memory ranges, in file order.
    pub pieces: *const Piece,
    /// Number of ranges; at least one.
    pub count: u32,
    /// The registered buffer that contains all ranges.
    pub buffer: Option<u16>,
}

/// A completion: bytes transferred, or the error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Done {
    /// Token of the command.
    pub token: u32,
    /// Result of the command.
    pub result: Result<u32, i32>,
}

/// Parameters of a wait.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wait {
    /// Completions to wait for; 0: only poll.
    pub want: u32,
    /// After this many microseconds one completion is enough; 0: one is always enough.
    pub batch_us: u32,
    /// Timeout.
    pub most: Option<Duration>,
}

/// Interface between the I/O thread and the kernel; tests inject faults here.
pub(super) trait Engine {
    /// Queue a command; the next [`Engine::enter`] starts it.
    ///
    /// # Safety
    /// The list of ranges and their memory must stay valid until [`Engine::enter`] returns the completion with the command's token.
    /// Until then memory being read into must not be accessed, and memory being written must not be changed. No more commands may
    /// be in flight than the engine was created for.
    unsafe fn push(&mut self, command: &Command);

    /// Start the queued commands, wait, and append completions. The eventfd that the engine reads also ends a wait.
    ///
    /// # Errors
    /// The engine itself fails, not a single command.
    fn enter(&mut self, wait: Wait, done: &mut Vec<Done>) -> Result<(), Errno>;

    /// Register memory as a buffer.
    ///
    /// # Safety
    /// The memory must stay valid until it is unregistered or the engine is dropped.
    unsafe fn register(&mut self, buffer: u16, piece: Piece) -> Result<(), Errno>;

    /// Unregister a buffer; commands in flight keep it until they end.
    fn unregister(&mut self, buffer: u16);
}
