//! How requests reach the kernel: io_uring, or `preadv` and `pwritev` on a few threads. Both do the same; what they do is held by
//! one set of tests. An engine knows one file, and nothing of transfers, pages or classes.

mod threads;
mod uring;

pub(super) use threads::Threads;
pub(super) use uring::{BUFFERS, Uring, UringSetup};

use kvtide_tiering::api::IoKind;
use rustix::io::Errno;
use std::time::Duration;

/// A piece of memory, as `struct iovec`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Piece(pub libc::iovec);

impl Piece {
    /// `bytes` from an address.
    pub fn new(at: *mut u8, bytes: usize) -> Piece {
        Piece(libc::iovec { iov_base: at.cast(), iov_len: bytes })
    }

    /// Its address.
    pub fn at(&self) -> *mut u8 {
        self.0.iov_base.cast()
    }

    /// Its bytes.
    pub fn bytes(&self) -> usize {
        self.0.iov_len
    }
}

/// One request to the device: bytes that stand behind one another in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Command {
    /// Comes back with its completion.
    pub token: u32,
    /// Which way.
    pub kind: IoKind,
    /// Where in the file.
    pub offset: u64,
    /// The pieces of memory, in the order of the file.
    pub pieces: *const Piece,
    /// How many; at least one.
    pub count: u32,
    /// The registered buffer in which all pieces lie.
    pub buffer: Option<u16>,
}

/// A completion: bytes moved, or the error's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Done {
    /// Of the command.
    pub token: u32,
    /// What came of it.
    pub result: Result<u32, i32>,
}

/// How long to wait.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wait {
    /// Completions to wait for; 0: only look.
    pub want: u32,
    /// Wait for one alone after so many microseconds; 0: for one at once.
    pub batch_us: u32,
    /// At most so long.
    pub most: Option<Duration>,
}

/// The seam between the I/O thread and the kernel, and where tests put faults in.
pub(super) trait Engine {
    /// Takes a command, to be started by the next [`Engine::enter`].
    ///
    /// # Safety
    /// The pieces, the list of them and the memory that they name stay valid, and nobody else writes what is read or reads what
    /// is written, until the completion with the command's token has come out of [`Engine::enter`]. At most as many commands as
    /// the engine was made for are on their way.
    unsafe fn push(&mut self, command: &Command);

    /// Starts what was pushed, waits as told, and appends what is done. The bell that the engine watches, and reads, ends a wait
    /// too.
    ///
    /// # Errors
    /// The engine itself fails, not a command.
    fn enter(&mut self, wait: Wait, done: &mut Vec<Done>) -> Result<(), Errno>;

    /// Registers memory as a buffer.
    ///
    /// # Safety
    /// The memory stays valid until it is unregistered or the engine is gone.
    unsafe fn register(&mut self, buffer: u16, piece: Piece) -> Result<(), Errno>;

    /// Takes a buffer back; commands on their way keep it until they are done.
    fn unregister(&mut self, buffer: u16);
}
