//! Doorbells: they wake the other side when it sleeps. There are two kinds, because the sides do not trust each other equally.
//!
//! * Towards the daemon: an eventfd. It is one open file description in both processes, so an engine can clear O_NONBLOCK or empty
//!   the counter at any time. The daemon therefore reads it with RWF_NOWAIT, which applies to the single call. An engine never gets
//!   a SIGPIPE from it.
//! * From the daemon (and within one process): a pipe. Its ends are two descriptions, so an engine cannot make the daemon's write
//!   block, as it could with an eventfd by filling the counter: that write has no RWF_NOWAIT.
//!
//! A socket pair has neither problem but wakes an idle daemon 20 to 30 µs later (measured on Linux 6.18, a virtual machine, both
//! sides idle for 10 ms before).

use super::failed;
use crate::error::Error;
use crate::wake::Bell;
use rustix::event::EventfdFlags;
use rustix::io::{Errno, ReadWriteFlags};
use rustix::pipe::PipeFlags;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Minimum size of a pipe: a page. One ring is 8 bytes; a full pipe counts as rung.
const PIPE_BYTES: usize = 4096;

/// The ringing end; any thread may ring. A process that rings a pipe must ignore SIGPIPE, as every Rust program does.
#[derive(Clone, Debug)]
pub struct Ringer(Arc<OwnedFd>);

/// The waiting end: readable when rung, and, for a pipe, when every ringer is closed.
#[derive(Debug)]
pub struct Sleepable(OwnedFd);

/// Return a bell that the daemon, or a thread of the same process, rings.
pub fn bell() -> Result<(Ringer, Sleepable), Error> {
    let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
    let (read, write) = rustix::pipe::pipe_with(flags).map_err(|e| failed("pipe2", "doorbell", e))?;
    rustix::pipe::fcntl_setpipe_size(&write, PIPE_BYTES).map_err(|e| failed("fcntl(F_SETPIPE_SZ)", "doorbell", e))?;
    Ok((Ringer::from_fd(write), Sleepable::from_fd(read)))
}

/// Return a bell that an engine rings.
pub(super) fn bell_of_the_engine() -> Result<(Ringer, Sleepable), Error> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let fd = rustix::event::eventfd(0, flags).map_err(|e| failed("eventfd", "doorbell", e))?;
    let engine = fd.try_clone().map_err(|e| super::failed_io("dup of an eventfd", "doorbell", &e))?;
    Ok((Ringer::from_fd(engine), Sleepable::from_fd(fd)))
}

impl Ringer {
    /// Create a ringer from a descriptor that the peer passed.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Ringer {
        Ringer(Arc::new(fd))
    }
}

impl Bell for Ringer {
    fn ring(&self) {
        // If the bell is full it has already been rung. After any other failure the peer is gone, and its socket reports that.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

impl AsFd for Ringer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Sleepable {
    /// Create the waiting end from a descriptor that the peer passed.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Sleepable {
        Sleepable(fd)
    }

    /// Clear earlier rings, so that the next wait blocks. Never blocks itself. Return false if every ringer of this pipe is closed.
    pub fn quiet(&self) -> bool {
        let mut rings = [0u8; PIPE_BYTES];
        loop {
            let mut buffer = [IoSliceMut::new(&mut rings)];
            // The offset value for "no offset".
            let read = rustix::io::preadv2(&self.0, &mut buffer, u64::MAX, ReadWriteFlags::NOWAIT);
            let read = match read {
                // A pipe before Linux 6.4. Its description belongs to this process alone and does not block.
                Err(Errno::OPNOTSUPP) => rustix::io::read(&self.0, &mut rings),
                other => other,
            };
            match read {
                Ok(0) => return false,
                Ok(count) if count == PIPE_BYTES => {} // there may be more
                Err(Errno::INTR) => {}
                Ok(_) | Err(Errno::AGAIN) => return true,
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

#[cfg(test)]
mod tests {
    use super::super::poll;
    use super::*;
    use rustix::fs::OFlags;
    use std::time::Duration;

    fn rung(bell: &Sleepable) -> bool {
        poll::readable(&[bell.as_fd()], Duration::ZERO).expect("poll") != 0
    }

    #[test]
    fn a_bell_remembers_and_forgets() {
        for (ringer, bell) in [bell().expect("pipe"), bell_of_the_engine().expect("eventfd")] {
            assert!(!rung(&bell) && bell.quiet());
            (0..10_000).for_each(|_| ringer.ring());
            assert!(rung(&bell) && bell.quiet() && !rung(&bell));
        }
        let (ringer, bell) = bell().expect("pipe");
        drop(ringer);
        assert!(rung(&bell) && !bell.quiet());
    }

    #[test]
    fn a_hostile_engine_cannot_make_the_daemon_block() {
        let (engine, daemon) = bell_of_the_engine().expect("eventfd");
        rustix::fs::fcntl_setfl(&engine, OFlags::empty()).expect("clear O_NONBLOCK for both");
        assert!(daemon.quiet(), "an empty eventfd that blocks");
        let (daemon, engine) = bell().expect("pipe");
        rustix::fs::fcntl_setfl(&engine, OFlags::empty()).expect("clear O_NONBLOCK of one end");
        (0..10_000).for_each(|_| daemon.ring());
        assert!(rung(&engine), "a full pipe, and ringing it returned");
    }
}
