//! Wakers for threads of this process, and a bounded sleep.

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec},
    io::Errno,
};
use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU32, Ordering, fence},
    time::Duration,
};

/// Waker of one sleeping thread: a flag and an eventfd. The eventfd is shared with no other process, so no other process can
/// fill or block it.
pub(crate) struct ThreadWaker {
    fd: OwnedFd,
    asleep: AtomicU32,
}

impl ThreadWaker {
    pub fn new() -> std::io::Result<ThreadWaker> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(ThreadWaker { fd, asleep: AtomicU32::new(0) })
    }

    /// Sleeper: announce the sleep. Afterwards the sleeper must check its condition once more before it sleeps.
    pub fn announce(&self, how: u32) {
        self.asleep.store(how, Ordering::Relaxed);
        fence(Ordering::SeqCst); // pairs with the caller's fence before `announced`
    }

    /// Sleeper: withdraw the announcement and discard earlier wake-ups.
    pub fn awake(&self) {
        self.asleep.store(0, Ordering::Relaxed);
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8]); // empty: no wake-up arrived
    }

    /// Return the value that the sleeper announced; 0 if it is awake. Before the call, the caller must store the state that the
    /// sleeper waits for and issue a SeqCst fence.
    pub fn announced(&self) -> u32 {
        self.asleep.load(Ordering::Relaxed)
    }

    /// Wake the sleeper.
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes()); // full: a wake-up is already pending
    }
}

impl AsFd for ThreadWaker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Sleep until one of `fds` is readable, `peer` hangs up, or `timeout` passes. Any failure counts as a wake-up: callers check
/// their conditions themselves.
pub(crate) fn sleep(fds: &[BorrowedFd<'_>], peer: BorrowedFd<'_>, timeout: Duration) {
    const MAX: usize = 4;
    let mut polled: [PollFd<'_>; MAX] = std::array::from_fn(|i| match fds.get(i) {
        Some(fd) => PollFd::from_borrowed_fd(*fd, PollFlags::IN),
        None => PollFd::from_borrowed_fd(peer, PollFlags::RDHUP),
    });
    let count = (fds.len() + 1).min(MAX);
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    match rustix::event::poll(&mut polled[..count], Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(_) => std::thread::yield_now(),
    }
}
