//! Doorbells: what a sleeping side is woken with.
//!
//! A bell is a stream socket pair. An eventfd, which looks cheaper, is one open file description in both processes: an engine
//! that clears its O_NONBLOCK and fills its counter blocks the daemon's core thread in `write`, and one that empties it blocks a
//! `read`. The two ends of a socket pair are two descriptions, and MSG_DONTWAIT belongs to the call.

use super::failed;
use crate::error::Error;
use crate::wake::Bell;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The ringing end; any thread may ring.
#[derive(Clone, Debug)]
pub struct Ringer(Arc<OwnedFd>);

/// The sleeping end: readable when rung, and when every ringer is gone.
#[derive(Debug)]
pub struct Sleepable(OwnedFd);

/// A new bell.
pub fn bell() -> Result<(Ringer, Sleepable), Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (a, b) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|e| failed("socketpair", "doorbell", e))?;
    Ok((Ringer::from_fd(a), Sleepable::from_fd(b)))
}

impl Ringer {
    /// From a descriptor that the peer passed.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Ringer {
        Ringer(Arc::new(fd))
    }
}

impl Bell for Ringer {
    fn ring(&self) {
        // Full: rung already. Any other failure: the peer is gone, which its socket tells whoever waits.
        let _ = rustix::net::send(&*self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

impl AsFd for Ringer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Sleepable {
    /// From a descriptor that the peer passed.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Sleepable {
        Sleepable(fd)
    }

    /// Forgets earlier rings, so that the next wait blocks. False: every ringer is gone.
    pub fn quiet(&self) -> bool {
        let mut rings = [0u8; 512];
        loop {
            match rustix::net::recv(&self.0, &mut rings[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return false,
                Ok((_, count)) if count == rings.len() => {}
                Err(rustix::io::Errno::INTR) => {}
                Ok(_) | Err(rustix::io::Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
    }
}

impl AsFd for Sleepable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
