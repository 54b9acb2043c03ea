//! Waiting for descriptors, with a time limit.

use super::failed;
use crate::error::Error;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Maximum descriptors of one wait.
pub const FDS_MAX: usize = 8;

/// Wait until one of the descriptors is readable or hung up. Return a bit for each that is; 0 after the timeout. Signals do not end
/// the wait.
pub fn readable(fds: &[BorrowedFd<'_>], timeout: Duration) -> Result<u32, Error> {
    wait(fds, PollFlags::IN, timeout)
}

/// Wait until one of the descriptors is writable.
pub fn writable(fds: &[BorrowedFd<'_>], timeout: Duration) -> Result<u32, Error> {
    wait(fds, PollFlags::OUT, timeout)
}

fn wait(fds: &[BorrowedFd<'_>], events: PollFlags, timeout: Duration) -> Result<u32, Error> {
    let count = fds.len();
    if count == 0 || count > FDS_MAX {
        return Err(Error::Bound { what: "descriptors of a poll", value: count as u64, min: 1, max: FDS_MAX as u64 });
    }
    let deadline = Instant::now().checked_add(timeout);
    let mut polled: [PollFd<'_>; FDS_MAX] =
        std::array::from_fn(|i| PollFd::from_borrowed_fd(fds[i.min(count - 1)], events));
    loop {
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let left = left.map(|d| Timespec { tv_sec: d.as_secs() as i64, tv_nsec: i64::from(d.subsec_nanos()) });
        match rustix::event::poll(&mut polled[..count], left.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(failed("poll", std::format!("{count} descriptors"), e)),
            Ok(_) => {
                let ready = polled[..count].iter().enumerate();
                return Ok(ready.filter(|(_, p)| !p.revents().is_empty()).fold(0, |bits, (i, _)| bits | 1 << i));
            }
        }
    }
}
