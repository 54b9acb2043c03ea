//! Signals and the parent's end, as descriptors.

use crate::error::Error;
use kvtide_wire::os::poll::readable;
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::low_level::pipe;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// What the daemon takes signals for.
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

/// Signals that have come; readable while there are any.
#[derive(Debug)]
pub(super) struct Signals {
    /// All kinds ring here, so that one descriptor is enough to sleep on.
    any: UnixStream,
    end: UnixStream,
    reload: UnixStream,
    dump: UnixStream,
    record: UnixStream,
}

impl Signals {
    /// Takes the signals from now on.
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

    /// A signal that has come; several of one kind are one.
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

/// Empties a stream; whether anything was there.
fn take(stream: &mut UnixStream) -> bool {
    let mut bytes = [0; 64];
    let mut any = false;
    while matches!(stream.read(&mut bytes), Ok(count) if count > 0) {
        any = true;
    }
    any
}

/// A descriptor that is readable once the parent has ended. Its pid is the caller's word: who has another parent by now was
/// too late.
pub(super) fn watch_parent(pid: u32) -> Result<OwnedFd, Error> {
    let failed = |source: io::Error| Error::system(format!("watch the parent (pid {pid})"), source);
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let parent = raw.ok_or_else(|| failed(io::Error::from(io::ErrorKind::InvalidInput)))?;
    let pidfd = pidfd_open(parent, PidfdFlags::empty()).map_err(|errno| failed(errno.into()))?;
    // Opened first, asked afterwards: a parent that is still ours now was the one that was opened.
    match getppid() {
        Some(now) if now == parent => Ok(pidfd),
        _ => Err(failed(io::Error::other("it is not this process's parent, or has already ended"))),
    }
}

/// Whether the process behind a pidfd has ended.
pub(super) fn has_ended(pidfd: &OwnedFd) -> bool {
    matches!(readable(&[pidfd.as_fd()], Duration::ZERO), Ok(bits) if bits != 0)
}
