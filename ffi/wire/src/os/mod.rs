//! The system calls that both processes need, behind safe types: shared memory, the attach socket, doorbells, waiting, and the
//! two sides of a session built from them.
//!
//! `unsafe` of this crate stands in here only: mapping memory as atomics, putting it on huge pages, an allocator that asks for them, the scheduler's
//! attributes of a thread, and one `getsockopt`. Errors carry what was tried, on
//! what, and errno. Nothing in here blocks without a bound.

pub mod bell;
pub mod heap;
mod huge;
pub mod map;
pub mod memfd;
pub mod poll;
pub mod session;
pub mod socket;
pub mod spin;
pub mod token;

use crate::error::Error;
use std::fmt::Display;
use std::string::ToString;

/// A failed system call.
pub(crate) fn failed(tried: &'static str, on: impl Display, errno: rustix::io::Errno) -> Error {
    let code = errno.raw_os_error();
    // "No such file or directory (os error 2)" without its tail: the code stands in the error anyway.
    let reason = std::io::Error::from_raw_os_error(code).to_string();
    let reason = reason.split(" (os error").next().unwrap_or_default().into();
    Error::Os { tried, on: on.to_string(), errno: code, reason }
}

/// The same for calls that return [`std::io::Error`].
pub(crate) fn failed_io(tried: &'static str, on: impl Display, error: &std::io::Error) -> Error {
    match rustix::io::Errno::from_io_error(error) {
        Some(errno) => failed(tried, on, errno),
        None => Error::Os { tried, on: on.to_string(), errno: 0, reason: error.to_string() },
    }
}
