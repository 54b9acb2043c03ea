//! Thread of the HTTP server. Its listeners are bound before any other thread starts; it ends after all others.

use super::routes::{self, BODIES, Daemon};
use crate::error::Error;
use crate::status::HttpCounters;
use kvtide_http::bodies::Bodies;
use kvtide_http::listener::{BOUNDS, Bounded, Peer, Places, Source};
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

/// Maximum time for answers in progress at shutdown.
const GRACE: Duration = Duration::from_secs(1);

/// Running HTTP server.
#[derive(Debug)]
pub(crate) struct HttpServer {
    socket: Bound,
    /// Dropping the sender stops the server.
    end: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

/// Path of the HTTP socket, with the device and inode that were bound there. Dropping it removes the path, unless another daemon has
/// bound it meanwhile.
#[derive(Debug)]
pub(crate) struct Bound {
    path: PathBuf,
    identity: (u64, u64),
}

impl Drop for Bound {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.identity)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::debug!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Check that the address can be bound. One in use is left to [`bind`]: the daemon itself may have it.
pub(crate) fn check(address: SocketAddr) -> Result<(), Error> {
    match TcpListener::bind(address) {
        Err(source) if source.kind() != io::ErrorKind::AddrInUse => {
            Err(Error::Http { address, hint: hint(&source), source })
        }
        _ => Ok(()),
    }
}

/// Bind the address. The daemon does this first: it does not start if the address is in use.
pub(crate) fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    let failed = |source: io::Error| Error::Http { address, hint: hint(&source), source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    if !address.ip().is_loopback() {
        tracing::warn!(
            "HTTP on {address} is reachable from other machines: /metrics names models and tenants without authentication"
        );
    }
    Ok(listener)
}

/// Return the path of the HTTP socket beside an attach socket.
#[must_use]
pub fn socket_beside(attach: &Path) -> PathBuf {
    let mut name = attach.as_os_str().to_owned();
    name.push(".http");
    name.into()
}

/// Bind the socket of this machine's tools beside the attach socket, with the same permission bits. The lock of the attach socket,
/// which the caller holds, protects both: a socket that is left at the path is a dead daemon's. Anything else there is an error.
pub(crate) fn bind_socket(attach: &Path, mode: u32) -> Result<(UnixListener, Bound), Error> {
    let path = socket_beside(attach);
    let failed = |source| Error::File { action: "bind the HTTP socket", path: path.clone(), source };
    match fs::symlink_metadata(&path) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(&path).map_err(failed)?,
        Ok(_) => return Err(Error::NoSocket { path }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let listener = UnixListener::bind(&path).map_err(failed)?;
    fs::set_permissions(&path, PermissionsExt::from_mode(mode)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let bound = fs::symlink_metadata(&path).map_err(failed)?;
    let identity = (bound.dev(), bound.ino());
    Ok((listener, Bound { path, identity }))
}

/// Return what an operator can do about a bind error.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another process listens on this address, perhaps another kvtided; set another address in [http] listen or with \
             --http, or \"\" to disable HTTP"
        }
        io::ErrorKind::AddrNotAvailable => {
            "no interface of this machine has this address; set another one in [http] listen or with --http"
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need CAP_NET_BIND_SERVICE; set a higher port in [http] listen or with --http"
        }
        _ => "check the address in [http] listen or --http",
    }
}

impl HttpServer {
    /// Start the server thread, for the socket and, if there is one, the address. Return when it accepts connections.
    ///
    /// # Errors
    /// A thread cannot be started, or a listener cannot be served.
    pub fn start(
        (unix, socket): (UnixListener, Bound),
        tcp: Option<TcpListener>,
        daemon: Daemon,
        counters: &HttpCounters,
    ) -> Result<HttpServer, Error> {
        let failed = |source| Error::system("start the HTTP server", source);
        let address = tcp.as_ref().and_then(|tcp| tcp.local_addr().ok());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (end, ended) = oneshot::channel::<()>();
        let (started, start) = std::sync::mpsc::sync_channel(1);
        let counters = counters.clone();
        let serve = async move {
            let unix = tokio::net::UnixListener::from_std(unix).map(Source::Unix);
            let tcp = tcp.map(|tcp| tokio::net::TcpListener::from_std(tcp).map(Source::Tcp)).transpose();
            let sources = match unix.and_then(|unix| Ok(tcp?.into_iter().chain([unix]))) {
                Ok(sources) => sources,
                Err(error) => {
                    // The receiver waits for it.
                    let _ = started.send(Err(error));
                    return;
                }
            };
            let places = Places::new(BOUNDS, counters.clone());
            let bodies = Bodies::new(BODIES);
            let (stop, stopped) = watch::channel(());
            let mut servers = JoinSet::new();
            for source in sources {
                let listener = Bounded::new(source, &places);
                let router = routes::router(daemon.clone(), counters.clone(), &bodies);
                let service = router.into_make_service_with_connect_info::<Peer>();
                let mut stopped = stopped.clone();
                let server = axum::serve(listener, service).with_graceful_shutdown(async move {
                    // A message and a dropped sender both mean shutdown.
                    let _ = stopped.changed().await;
                });
                servers.spawn(server.into_future());
            }
            // The receiver waits for it.
            let _ = started.send(Ok(()));
            // A message and a dropped sender both mean shutdown.
            let _ = ended.await;
            drop(stop);
            if tokio::time::timeout(GRACE, servers.join_all()).await.is_err() {
                tracing::debug!("HTTP: closing connections whose clients are still reading their answers");
            }
        };
        let builder = std::thread::Builder::new().name("kvtide-http".into());
        let thread = builder.spawn(move || runtime.block_on(serve)).map_err(failed)?;
        let ended = |_| Err(io::Error::other("its thread ended"));
        start.recv().unwrap_or_else(ended).map_err(failed)?;
        if let Some(address) = address {
            tracing::info!("serving metrics, health and status on http://{address}");
        }
        Ok(HttpServer { socket, end, thread })
    }

    /// Stop the server and wait for its thread.
    pub fn end(self) {
        drop(self.end);
        if self.thread.join().is_err() {
            tracing::error!("the HTTP thread panicked");
        }
        drop(self.socket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Purging;
    use crate::orders::ORDERS;
    use crate::status::{HealthMonitor, ThreadRegistry};
    use kvtide_http::access::Access;
    use kvtide_rt::mail::mailbox;
    use std::os::fd::OwnedFd;

    #[test]
    fn a_server_that_cannot_serve_is_not_started() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let (orders, _taken) = mailbox(ORDERS).unwrap();
        let registry = ThreadRegistry::default();
        let daemon = Daemon {
            monitor: HealthMonitor::ended(),
            registry: registry.clone(),
            access: Access::new(None, false, ""),
            orders,
            purging: Purging::default(),
        };
        let start = |unix, tcp| HttpServer::start(unix, tcp, daemon.clone(), registry.http_counters());
        let (unix, bound) = bind_socket(&dir.join("a"), 0o600).unwrap();
        let path = bound.path.clone();
        let server = start((unix, bound), None).unwrap();
        assert!(super::super::client::Address::Unix(path).get("/").unwrap().contains("/metrics"), "it answers at once");
        server.end();
        // The kernel refuses to watch a regular file.
        let file = || OwnedFd::from(fs::File::create(dir.join("file")).unwrap());
        let (good, bound) = bind_socket(&dir.join("b"), 0o600).unwrap();
        let error = start((good, bound), Some(TcpListener::from(file()))).unwrap_err().to_string();
        assert!(error.contains("cannot start the HTTP server"), "{error}");
        let (_, bound) = bind_socket(&dir.join("c"), 0o600).unwrap();
        let error = start((UnixListener::from(file()), bound), None).unwrap_err().to_string();
        assert!(error.contains("cannot start the HTTP server"), "{error}");
    }

    #[test]
    fn only_a_dead_daemons_socket_is_replaced_and_only_the_own_one_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let attach = dir.path().join("s");
        let path = socket_beside(&attach);
        fs::write(&path, "precious").unwrap();
        let error = bind_socket(&attach, 0o600).unwrap_err();
        assert!(matches!(error, Error::NoSocket { .. }), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        fs::remove_file(&path).unwrap();
        let first = bind_socket(&attach, 0o600).unwrap();
        let second = bind_socket(&attach, 0o600).unwrap();
        drop(first);
        assert!(path.exists(), "the first one removed the socket of the second");
        drop(second);
        assert!(!path.exists());
    }
}
