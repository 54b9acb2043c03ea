//! The attach socket: SEQPACKET, which preserves message boundaries and carries descriptors. All descriptors are close-on-exec and
//! non-blocking; [`super::poll`] waits for them.

use super::{failed, failed_io, poll};
use crate::error::Error;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::ffi::OsString;
use std::fs::Metadata;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::string::String;
use std::time::Duration;
use std::vec::Vec;

/// Maximum descriptors of one message: two regions, the daemon's bell, the copy loop's, and one for each channel, rounded up.
pub const FDS_MAX: usize = 32;
/// Length of the accept queue. The daemon accepts all connections at once, so the queue is full only while the daemon is stopped or
/// flooded.
const BACKLOG: i32 = 256;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Socket where engines attach. A lock file beside the path (`PATH.lock`, which is never removed) protects it, so that a stale
/// socket of a killed daemon is distinguished without a race from one in use.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket's path.
    identity: (u64, u64),
    _lock: OwnedFd,
}

/// A connection between an engine and the daemon; its end is the end of the session.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
}

/// Result of a receive.
#[derive(Debug)]
pub enum Received {
    /// One whole message: its length in the buffer and the descriptors that came with it.
    Message(usize, Vec<OwnedFd>),
    /// No message now.
    Empty,
    /// The peer is gone.
    Closed,
}

/// The process at the other end, at the time of its `connect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process id in this process's namespace.
    pub pid: u32,
    /// User id in this process's namespace; 65534 if it is not mapped there.
    pub uid: u32,
    /// Group id in this process's namespace.
    pub gid: u32,
}

fn address(path: &Path) -> Result<SocketAddrUnix, Error> {
    SocketAddrUnix::new(path).map_err(|e| failed("socket address (at most 107 bytes)", path.display(), e))
}

fn socket(kind: SocketType) -> Result<OwnedFd, Error> {
    rustix::net::socket_with(AddressFamily::UNIX, kind, FLAGS, None).map_err(|e| failed("socket(AF_UNIX)", "socket", e))
}

/// Return why a directory cannot be that of a socket, if all users may write to it. In one with the sticky bit they could still bind the
/// socket of a process that does not run.
#[must_use]
pub fn why_open(dir: &Path, found: &Metadata) -> Option<String> {
    (found.mode() & 0o002 != 0).then(|| {
        std::format!(
            "writable by all users (mode {:04o}): they could replace the socket. Use a directory of its own, or run: chmod o-w {}",
            found.mode() & 0o7777,
            dir.display()
        )
    })
}

/// Return why a user other than root and the process's own could replace a socket in a directory: clients would send their tokens to that
/// user, or believe it.
#[must_use]
pub fn why_not_ours(dir: &Path, found: &Metadata) -> Option<String> {
    let (owner, us) = (found.uid(), rustix::process::geteuid().as_raw());
    match owner == us || owner == 0 {
        true => why_open(dir, found),
        false => Some(std::format!(
            "owned by uid {owner}, which could replace the socket; use a directory owned by root or uid {us}"
        )),
    }
}

impl Listener {
    /// Listen at `path` with these permission bits. A stale socket is replaced. A socket in use, or anything that is not a socket,
    /// is an error (EADDRINUSE, EEXIST).
    pub fn bind(path: &Path, mode: u32) -> Result<Listener, Error> {
        Listener::bind_kind(path, mode, SocketType::SEQPACKET)
    }

    /// Listen at `path` for streams, such as those of ZeroMQ. Otherwise as [`Listener::bind`]; [`Listener::accept`] is for the other kind.
    pub fn bind_stream(path: &Path, mode: u32) -> Result<Listener, Error> {
        Listener::bind_kind(path, mode, SocketType::STREAM)
    }

    fn bind_kind(path: &Path, mode: u32, kind: SocketType) -> Result<Listener, Error> {
        let lock = lock(path)?;
        match std::fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => {
                std::fs::remove_file(path).map_err(|e| failed_io("remove the stale socket", path.display(), &e))?;
            }
            Ok(_) => return Err(failed("listen where something else than a socket is", path.display(), Errno::EXIST)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed_io("look at the socket path", path.display(), &e)),
        }
        let fd = socket(kind)?;
        rustix::net::bind(&fd, &address(path)?).map_err(|e| failed("bind", path.display(), e))?;
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode))
            .map_err(|e| failed_io("chmod of the socket", path.display(), &e))?;
        rustix::net::listen(&fd, BACKLOG).map_err(|e| failed("listen", path.display(), e))?;
        let identity = identity(path).map_err(|e| failed_io("look at the new socket", path.display(), &e))?;
        Ok(Listener { fd, path: path.into(), identity, _lock: lock })
    }

    /// Return true if its path still leads to it, or cannot be examined. If not, no client can connect.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        match identity(&self.path) {
            Ok(found) => found == self.identity,
            Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
        }
    }

    /// Accept a waiting engine, if there is one.
    pub fn accept(&self) -> Result<Option<Socket>, Error> {
        loop {
            match rustix::net::accept_with(&self.fd, FLAGS) {
                Ok(fd) => return Ok(Some(Socket { fd })),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(e) => return Err(failed("accept", self.path.display(), e)),
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // If the lock file and the socket were removed, another daemon may serve the path.
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Return device and inode of a path, without following links.
fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn lock(path: &Path) -> Result<OwnedFd, Error> {
    let mut name = OsString::from(path);
    name.push(".lock");
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = rustix::fs::open(&name, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|e| failed("open the socket's lock", Path::new(&name).display(), e))?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(Errno::WOULDBLOCK) => {
            Err(failed("listen where another daemon already listens", path.display(), Errno::ADDRINUSE))
        }
        Err(e) => Err(failed("lock the socket path", Path::new(&name).display(), e)),
    }
}

impl Socket {
    /// Connect to a daemon.
    pub fn connect(path: &Path) -> Result<Socket, Error> {
        let fd = socket(SocketType::SEQPACKET)?;
        rustix::net::connect(&fd, &address(path)?).map_err(|e| failed("connect to the daemon", path.display(), e))?;
        Ok(Socket { fd })
    }

    /// Create two connected ends, for tests.
    pub fn pair() -> Result<(Socket, Socket), Error> {
        let (a, b) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)
            .map_err(|e| failed("socketpair(SOCK_SEQPACKET)", "attach socket", e))?;
        Ok((Socket { fd: a }, Socket { fd: b }))
    }

    /// Send one message with descriptors without blocking. A full socket is an error (EAGAIN); a peer that is gone is
    /// [`Error::Closed`].
    pub fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        const TRIED: &str = "sendmsg to the peer";
        if fds.len() > FDS_MAX {
            let (value, max) = (fds.len() as u64, FDS_MAX as u64);
            return Err(Error::Bound { what: "descriptors of a message", value, min: 0, max });
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(failed(TRIED, "descriptors", Errno::NOBUFS));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match rustix::net::sendmsg(&self.fd, &[IoSlice::new(message)], &mut control, flags) {
                Ok(sent) if sent == message.len() => return Ok(()),
                Ok(_) => return Err(failed(TRIED, std::format!("{} bytes", message.len()), Errno::MSGSIZE)),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Error::Closed { tried: TRIED }),
                Err(e) => return Err(failed(TRIED, std::format!("{} bytes", message.len()), e)),
            }
        }
    }

    /// Receive one message, if there is one, with at most `fds_max` descriptors. A truncated message or descriptor list is an
    /// error; the descriptors that did arrive are closed.
    pub fn receive(&self, buffer: &mut [u8], fds_max: usize) -> Result<Received, Error> {
        const TRIED: &str = "recvmsg from the peer";
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let room = if fds_max == 0 { 0 } else { space.len() };
        let mut control = RecvAncillaryBuffer::new(&mut space[..room]);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        // An end of file counts only when it is seen twice. If a peer closes with unread messages, the kernel reports a connection
        // reset before it delivers the peer's messages. Linux also checks for a message first and for the shutdown second, and
        // both may arrive between the two checks. No message comes after the shutdown.
        let mut ended = false;
        let received = loop {
            match rustix::net::recvmsg(&self.fd, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
                Ok(received) if received.bytes > 0 => break received,
                Ok(_) | Err(Errno::CONNRESET) if !ended => ended = true,
                Ok(_) | Err(Errno::CONNRESET) => return Ok(Received::Closed),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(if ended { Received::Closed } else { Received::Empty }),
                Err(e) => return Err(failed(TRIED, "attach socket", e)),
            }
        };
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(failed(TRIED, std::format!("more than {} bytes", buffer.len()), Errno::MSGSIZE));
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || fds.len() > fds_max {
            return Err(failed(TRIED, std::format!("more than {fds_max} descriptors"), Errno::TOOMANYREFS));
        }
        Ok(Received::Message(received.bytes, fds))
    }

    /// Wait for one message, at most for `timeout`.
    pub fn receive_within(
        &self,
        buffer: &mut [u8],
        fds_max: usize,
        timeout: Duration,
    ) -> Result<(usize, Vec<OwnedFd>), Error> {
        const TRIED: &str = "wait for a message of the peer";
        let deadline = std::time::Instant::now() + timeout;
        loop {
            match self.receive(buffer, fds_max)? {
                Received::Message(len, fds) => return Ok((len, fds)),
                Received::Closed => return Err(Error::Closed { tried: TRIED }),
                Received::Empty => {}
            }
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if poll::readable(&[self.as_fd()], left)? == 0 {
                return Err(Error::TimedOut { tried: TRIED, timeout_ms: timeout.as_millis() as u64 });
            }
        }
    }

    /// Return the process that connected. Its `pid` is 0 if it is in a container and this process in another one: neither has a number
    /// for the other.
    pub fn peer(&self) -> Result<Peer, Error> {
        // Not by rustix, which takes a process id of 0 for an error.
        let unknown = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        // SAFETY: the kernel writes a ucred.
        let cred = unsafe { self.option("getsockopt(SO_PEERCRED)", libc::SO_PEERCRED, unknown) }?;
        Ok(Peer { pid: cred.pid as u32, uid: cred.uid, gid: cred.gid })
    }

    /// Return a pidfd of the process that connected: readable once that process has exited, even if children still hold the socket.
    /// Linux 6.5.
    pub fn peer_pidfd(&self) -> Result<OwnedFd, Error> {
        let unset: libc::c_int = -1;
        // SAFETY: the kernel writes a c_int.
        let pidfd = unsafe { self.option("getsockopt(SO_PEERPIDFD)", libc::SO_PEERPIDFD, unset) }?;
        // SAFETY: the kernel just created this descriptor for this process; nothing else uses it. It is close-on-exec by
        // definition.
        Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
    }

    /// Return the value of a socket option.
    ///
    /// # Safety
    /// The option must have the type `T`, for which all bytes are valid.
    unsafe fn option<T>(&self, tried: &'static str, option: libc::c_int, mut value: T) -> Result<T, Error> {
        let mut len = size_of::<T>() as libc::socklen_t;
        // SAFETY: the descriptor is open during the call, which writes at most `len` bytes into `value`.
        let rc = unsafe {
            let at = (&raw mut value).cast();
            libc::getsockopt(self.fd.as_raw_fd(), libc::SOL_SOCKET, option, at, &raw mut len)
        };
        match rc {
            0 => Ok(value),
            _ => Err(failed_io(tried, "attach socket", &std::io::Error::last_os_error())),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
