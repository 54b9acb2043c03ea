//! Waking threads of this process, and sleeping with a bound.

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec},
    io::Errno,
};
use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU32, Ordering, fence},
    time::Duration,
};

/// A thread that sleeps and those that wake it: flag and eventfd. An eventfd is shared with no other process here, so it can
/// neither be filled nor blocked by one.
pub(crate) struct Nudge {
    fd: OwnedFd,
    asleep: AtomicU32,
}

impl Nudge {
    pub fn new() -> std::io::Result<Nudge> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Nudge { fd, asleep: AtomicU32::new(0) })
    }

    /// Sleeper: announces itself. It must look once more for what it waits for afterwards, before it sleeps.
    pub fn announce(&self, how: u32) {
        self.asleep.store(how, Ordering::Relaxed);
        fence(Ordering::SeqCst); // pairs with the one before `announced`
    }

    /// Sleeper: is awake, and forgets earlier nudges.
    pub fn awake(&self) {
        self.asleep.store(0, Ordering::Relaxed);
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8]); // empty: nobody nudged
    }

    /// What the sleeper announced; 0 if it is awake. The caller has stored what the sleeper waits for, and fenced (SeqCst).
    pub fn announced(&self) -> u32 {
        self.asleep.load(Ordering::Relaxed)
    }

    /// Wakes the sleeper.
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes()); // full: it is woken already
    }
}

impl AsFd for Nudge {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Sleeps until one of `fds` is readable, `peer` is hung up, or the time is over. Any failure counts as a wake-up: callers
/// look for themselves.
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
