//! The socket that engines attach to: taken only if no live daemon serves it, cleaned if a dead one left it.
//!
//! The lock file beside the path decides (`kvtide_wire::os::socket::Listener` holds its flock). A connect test before it covers
//! a lock file that was removed by hand, and sockets that are not a daemon's.

use crate::error::Error;
use kvtide_wire::error::Error as WireError;
use kvtide_wire::os::socket::{Listener, Socket};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Serves `path` with these permission bits.
pub(crate) fn bind(path: &Path, mode: u32) -> Result<Listener, Error> {
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        let failed = |source| Error::File { action: "create the directory of the socket", path: dir.into(), source };
        fs::create_dir_all(dir).map_err(failed)?;
    }
    if let Ok(found) = fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(Error::NoSocket { path: path.into() });
        }
        refuse_if_served(path)?;
    }
    Listener::bind(path, mode).map_err(|source| match errno(&source) {
        Some(Errno::ADDRINUSE) => {
            let evidence = format!("it holds the lock {}.lock", path.display());
            Error::SocketInUse { path: path.into(), evidence }
        }
        Some(Errno::EXIST) => Error::NoSocket { path: path.into() },
        _ => Error::Wire { action: "serve the socket", source },
    })
}

fn refuse_if_served(path: &Path) -> Result<(), Error> {
    let in_use = |evidence: &str| Err(Error::SocketInUse { path: path.into(), evidence: evidence.into() });
    match Socket::connect(path) {
        Ok(_) => in_use("it accepts connections"),
        Err(error) => match errno(&error) {
            Some(Errno::AGAIN) => in_use("its queue of connections is full"),
            Some(Errno::PROTOTYPE) => in_use("it accepts connections of another kind"),
            // Refused: a dead daemon's, which the bind replaces. Whatever else it is, the bind will say.
            _ => Ok(()),
        },
    }
}

fn errno(error: &WireError) -> Option<Errno> {
    match error {
        WireError::Os { errno, .. } => Some(Errno::from_raw_os_error(*errno)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let path = std::env::temp_dir().join(format!("kvtide-listener-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Dir(path)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn a_served_socket_is_refused_and_a_closed_one_is_free() {
        let dir = Dir::new("served");
        let path = dir.0.join("sub/s");
        let first = bind(&path, 0o600).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = bind(&path, 0o600).unwrap_err().to_string();
        assert!(error.contains("another daemon already does (it accepts connections)"), "{error}");
        fs::remove_file(&path).unwrap();
        let error = bind(&path, 0o600).unwrap_err().to_string();
        assert!(error.contains("it holds the lock") && error.contains("s.lock"), "{error}");
        drop(first);
        bind(&path, 0o600).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_dead_daemons_socket_is_cleaned_and_a_live_ones_without_its_lock_is_not() {
        let dir = Dir::new("stale");
        let path = dir.0.join("s");
        let live = bind(&path, 0o600).unwrap();
        fs::remove_file(dir.0.join("s.lock")).unwrap();
        assert!(matches!(bind(&path, 0o600), Err(Error::SocketInUse { .. })));
        drop(live);
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "std leaves the path behind, as a killed daemon does");
        bind(&path, 0o600).unwrap();
    }

    #[test]
    fn what_is_no_socket_is_not_removed() {
        let dir = Dir::new("file");
        let path = dir.0.join("s");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(bind(&path, 0o600), Err(Error::NoSocket { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        fs::remove_file(&path).unwrap();
        let _stream = UnixListener::bind(&path).unwrap();
        assert!(matches!(bind(&path, 0o600), Err(Error::SocketInUse { .. })));
    }
}
