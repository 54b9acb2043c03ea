//! The socket that engines attach to. A socket of a running daemon is never taken; one left by a dead daemon is replaced.
//!
//! The lock file beside the path decides (`kvtide_wire::os::socket::Listener` holds its flock). A connection attempt before that
//! also covers a lock file that was deleted by hand and sockets of other programs.

use crate::error::Error;
use kvtide_wire::error::Error as WireError;
use kvtide_wire::os::socket::{Listener, Socket, why_not_ours};
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Action of errors about the directory of the socket.
pub(crate) const USE_DIR: &str = "use the socket directory";

/// Check the directory of a socket, if it exists, and the path, as [`bind`] does. Nothing is created.
pub(crate) fn check(path: &Path) -> Result<(), Error> {
    if let Some(dir) = path.parent().filter(|dir| dir.is_dir()) {
        ours(dir)?;
    }
    check_path(path)
}

/// Check that nothing but a socket is at the path.
pub(crate) fn check_path(path: &Path) -> Result<(), Error> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => Err(Error::NoSocket { path: path.into() }),
        _ => Ok(()),
    }
}

/// Bind and listen on `path` with these permission bits.
pub(crate) fn bind(path: &Path, mode: u32) -> Result<Listener, Error> {
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        let failed = |source| Error::File { action: "create the socket directory", path: dir.into(), source };
        fs::create_dir_all(dir).map_err(failed)?;
        ours(dir)?;
    }
    check_path(path)?;
    if fs::symlink_metadata(path).is_ok() {
        refuse_if_served(path)?;
    }
    Listener::bind(path, mode).map_err(|source| match errno(&source) {
        Some(libc::EADDRINUSE) => {
            let lock = PathBuf::from(format!("{}.lock", path.display()));
            let holder = lock_holder(&lock).map_or_else(String::new, |pid| format!(": {}", process(pid)));
            Error::SocketInUse { path: path.into(), evidence: format!("the lock {} is held{holder}", lock.display()) }
        }
        Some(libc::EEXIST) => Error::NoSocket { path: path.into() },
        _ => Error::Wire { action: "bind the socket", source },
    })
}

/// Fail if a user other than root and the daemon's could replace the socket in `dir`: engines would send their tokens to that user.
fn ours(dir: &Path) -> Result<(), Error> {
    let failed = |source| Error::File { action: USE_DIR, path: dir.into(), source };
    let found = fs::metadata(dir).map_err(failed)?;
    let why = why_not_ours(dir, &found);
    why.map_or(Ok(()), |why| Err(failed(io::Error::new(io::ErrorKind::PermissionDenied, why))))
}

/// Return the name of a process's program, if it can be read.
pub(crate) fn program(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// Format a process for messages: its pid and, if readable, its name.
fn process(pid: u32) -> String {
    match program(pid) {
        Some(name) => format!("pid {pid}, {name}"),
        None => format!("pid {pid}"),
    }
}

/// Return the pid that holds the flock of a file, from /proc/locks: `1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF`
/// (proc(5)).
fn lock_holder(path: &Path) -> Option<u32> {
    let inode = fs::metadata(path).ok()?.ino().to_string();
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (kind, pid, file) = (fields.next()?, fields.nth(2)?, fields.next()?);
        (kind == "FLOCK" && file.rsplit(':').next() == Some(&inode)).then(|| pid.parse().ok())?
    })
}

fn refuse_if_served(path: &Path) -> Result<(), Error> {
    let in_use = |evidence: &str| Err(Error::SocketInUse { path: path.into(), evidence: evidence.into() });
    match Socket::connect(path) {
        // The peer of a connected socket is the process that listens.
        Ok(socket) => match socket.peer() {
            Ok(peer) => in_use(&format!("it accepts connections: {}, uid {}", process(peer.pid), peer.uid)),
            Err(_) => in_use("it accepts connections"),
        },
        Err(error) => match errno(&error) {
            Some(libc::EAGAIN) => in_use("its queue of connections is full"),
            Some(libc::EPROTOTYPE) => in_use("its socket is not of type SEQPACKET"),
            // Connection refused: the socket of a dead daemon, which the bind replaces. Any other error is left to the bind to
            // report.
            _ => Ok(()),
        },
    }
}

fn errno(error: &WireError) -> Option<i32> {
    match error {
        WireError::Os { errno, .. } => Some(*errno),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use tempfile::tempdir;

    #[test]
    fn a_served_socket_is_refused_and_a_closed_one_is_free() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("sub/s");
        let first = bind(&path, 0o600).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = bind(&path, 0o600).unwrap_err().to_string();
        let us = std::process::id();
        assert!(error.contains(&format!("another daemon serves it (it accepts connections: pid {us}, ")), "{error}");
        fs::remove_file(&path).unwrap();
        let error = bind(&path, 0o600).unwrap_err().to_string();
        assert!(error.contains("(the lock ") && error.contains(&format!("s.lock is held: pid {us}, ")), "{error}");
        drop(first);
        bind(&path, 0o600).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_dead_daemons_socket_is_cleaned_and_a_live_ones_without_its_lock_is_not() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("s");
        let live = bind(&path, 0o600).unwrap();
        fs::remove_file(dir.path().join("s.lock")).unwrap();
        assert!(matches!(bind(&path, 0o600), Err(Error::SocketInUse { .. })));
        drop(live);
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "std leaves the path in place, as a killed daemon does");
        bind(&path, 0o600).unwrap();
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        let dir = tempdir().unwrap();
        let theirs = dir.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        if std::os::unix::fs::chown(&theirs, Some(12345), None).is_err() {
            eprintln!("SKIPPED a_directory_of_another_user_is_refused: needs root to change the owner of a directory");
            return;
        }
        let error = bind(&theirs.join("s"), 0o600).unwrap_err().to_string();
        assert!(error.contains("theirs: owned by uid 12345, which could replace the socket"), "{error}");
        assert!(fs::read_dir(&theirs).unwrap().next().is_none(), "no file was created in it");
    }

    #[test]
    fn a_directory_that_all_users_may_write_is_refused() {
        let dir = tempdir().unwrap();
        for mode in [0o777, 0o1777, 0o702] {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            let error = bind(&dir.path().join("s"), 0o600).unwrap_err().to_string();
            assert!(error.contains(&format!("writable by all users (mode {mode:04o})")), "{error}");
            assert!(fs::read_dir(dir.path()).unwrap().next().is_none(), "no file was created in it");
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o775)).unwrap();
        bind(&dir.path().join("s"), 0o600).unwrap();
    }

    #[test]
    fn what_is_no_socket_is_not_removed() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("s");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(bind(&path, 0o600), Err(Error::NoSocket { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        fs::remove_file(&path).unwrap();
        let _stream = UnixListener::bind(&path).unwrap();
        assert!(matches!(bind(&path, 0o600), Err(Error::SocketInUse { .. })));
    }
}
