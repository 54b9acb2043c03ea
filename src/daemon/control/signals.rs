//! Signals and the parent's exit, as file descriptors.

use crate::error::Error;
use kvtide_wire::os::poll::readable;
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::low_level::pipe;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Meaning of the handled signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// SIGTERM, SIGINT.
    End,
    /// SIGHUP.
    Reload,
    /// SIGUSR1.
    Dump,
    /// SIGUSR2.
    Record,
}

/// Pending signals; readable while there are any.
#[derive(Debug)]
pub(super) struct Signals {
    /// Receives a byte for every signal, so that polling one descriptor is enough.
    any: UnixStream,
    end: UnixStream,
    reload: UnixStream,
    dump: UnixStream,
    record: UnixStream,
}

impl Signals {
    /// Install the signal handlers.
    pub fn install() -> Result<Signals, Error> {
        let failed = |source: io::Error| Error::system("install signal handlers", source);
        let pair = |signals: &[i32], wake: &UnixStream| -> io::Result<UnixStream> {
            let (read, write) = UnixStream::pair()?;
            read.set_nonblocking(true)?;
            for signal in signals {
                pipe::register(*signal, write.try_clone()?)?;
                pipe::register(*signal, wake.try_clone()?)?;
            }
            Ok(read)
        };
        let (any, wake) = UnixStream::pair().map_err(failed)?;
        any.set_nonblocking(true).map_err(failed)?;
        let end = pair(&[SIGTERM, SIGINT], &wake).map_err(failed)?;
        let reload = pair(&[SIGHUP], &wake).map_err(failed)?;
        let dump = pair(&[SIGUSR1], &wake).map_err(failed)?;
        let record = pair(&[SIGUSR2], &wake).map_err(failed)?;
        Ok(Signals { any, end, reload, dump, record })
    }

    /// Return a pending signal. Several signals of one kind count once.
    pub fn take(&mut self) -> Option<Signal> {
        take(&mut self.any);
        if take(&mut self.end) {
            return Some(Signal::End);
        }
        if take(&mut self.reload) {
            return Some(Signal::Reload);
        }
        if take(&mut self.dump) {
            return Some(Signal::Dump);
        }
        take(&mut self.record).then_some(Signal::Record)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.any.as_fd()
    }
}

/// Drain a stream; return true if it held any bytes.
fn take(stream: &mut UnixStream) -> bool {
    let mut bytes = [0; 64];
    let mut any = false;
    while matches!(stream.read(&mut bytes), Ok(count) if count > 0) {
        any = true;
    }
    any
}

/// Return a descriptor that becomes readable when the parent exits. `pid` comes from the caller; if this process now has another
/// parent, the former one has already exited.
pub(super) fn watch_parent(pid: u32) -> Result<OwnedFd, Error> {
    let failed = |source: io::Error| Error::system(format!("watch the parent (pid {pid})"), source);
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let parent = raw.ok_or_else(|| failed(io::Error::from(io::ErrorKind::InvalidInput)))?;
    let pidfd = pidfd_open(parent, PidfdFlags::empty()).map_err(|errno| failed(errno.into()))?;
    // Open the pidfd first, then compare: if `pid` is still the parent now, the pidfd refers to it.
    match getppid() {
        Some(now) if now == parent => Ok(pidfd),
        _ => Err(failed(io::Error::other("it is not this process's parent, or has already ended"))),
    }
}

/// Return true if the process behind a pidfd has exited.
pub(super) fn has_ended(pidfd: &OwnedFd) -> bool {
    matches!(readable(&[pidfd.as_fd()], Duration::ZERO), Ok(bits) if bits != 0)
}
