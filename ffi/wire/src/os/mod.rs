//! System calls that both processes need, behind safe types: shared memory, the attach socket, doorbells, waiting, and the two
//! sides of a session built from them.
//!
//! All `unsafe` code of this crate is in this module: mapping memory as atomics, putting it on huge pages and NUMA nodes, an
//! allocator that requests huge pages, the scheduler's attributes of a thread, and one `getsockopt`. Errors contain the action, its
//! object and errno. No call in this module blocks without a time limit.

mod aligned;
pub mod bell;
pub mod heap;
pub mod huge;
pub mod map;
pub mod memfd;
pub mod numa;
pub mod poll;
pub mod session;
pub mod socket;
pub mod spin;
pub mod token;

use crate::error::Error;
use std::fmt::Display;
use std::string::ToString;

impl Error {
    /// Return true if a call would have had to wait: a socket or its queue of connections is full (EAGAIN).
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Error::Os { errno, .. } if *errno == rustix::io::Errno::AGAIN.raw_os_error())
    }
}

/// Return an error for a failed system call.
pub(crate) fn failed(tried: &'static str, on: impl Display, errno: rustix::io::Errno) -> Error {
    let code = errno.raw_os_error();
    // Drop the tail of "No such file or directory (os error 2)": the error contains the code anyway.
    let reason = std::io::Error::from_raw_os_error(code).to_string();
    let reason = reason.split(" (os error").next().unwrap_or_default().into();
    Error::Os { tried, on: on.to_string(), errno: code, reason }
}

/// Return an error for a failed call that returns [`std::io::Error`].
pub(crate) fn failed_io(tried: &'static str, on: impl Display, error: &std::io::Error) -> Error {
    match rustix::io::Errno::from_io_error(error) {
        Some(errno) => failed(tried, on, errno),
        None => Error::Os { tried, on: on.to_string(), errno: 0, reason: error.to_string() },
    }
}
