//! Thread of the HTTP server. Its listeners are bound before any other thread starts; it ends after all others.

use super::listener::{BOUNDS, Bounded, Peer, Places, Source};
use super::routes;
use crate::error::Error;
use crate::status::{HealthMonitor, HttpCounters};
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
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
    /// Path of its socket, removed at the end.
    socket: PathBuf,
    /// Dropping the sender stops the server.
    end: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

/// Bind the address. The daemon does this first: it does not start if the address is in use.
pub(crate) fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    let failed = |source: io::Error| Error::Http { address, hint: hint(&source), source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    if !address.ip().is_loopback() {
        tracing::warn!(
            "HTTP on {address} is reachable from other machines without authentication: it exposes names, users and sizes"
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
/// which the caller holds, protects both: what is left at the path is a dead daemon's.
pub(crate) fn bind_socket(attach: &Path, mode: u32) -> Result<(UnixListener, PathBuf), Error> {
    let path = socket_beside(attach);
    let failed = |source| Error::File { action: "bind the HTTP socket", path: path.clone(), source };
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(&path).map_err(failed)?;
    fs::set_permissions(&path, PermissionsExt::from_mode(mode)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok((listener, path))
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
    /// Start the server thread, for the socket and, if there is one, the address.
    pub fn start(
        (unix, socket): (UnixListener, PathBuf),
        tcp: Option<TcpListener>,
        monitor: HealthMonitor,
        counters: &HttpCounters,
    ) -> Result<HttpServer, Error> {
        let failed = |source| Error::system("start the HTTP server", source);
        if let Some(address) = tcp.as_ref().and_then(|tcp| tcp.local_addr().ok()) {
            tracing::info!("serving metrics, health and status on http://{address}");
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (end, ended) = oneshot::channel::<()>();
        let counters = counters.clone();
        let serve = async move {
            let unix = tokio::net::UnixListener::from_std(unix).map(Source::Unix);
            let tcp = tcp.map(|tcp| tokio::net::TcpListener::from_std(tcp).map(Source::Tcp));
            let places = Places::new(BOUNDS, counters.clone());
            let (stop, stopped) = watch::channel(());
            let mut servers = JoinSet::new();
            for source in tcp.into_iter().chain([unix]) {
                let listener = match source {
                    Ok(source) => Bounded::new(source, &places),
                    Err(error) => return tracing::error!("cannot serve HTTP: {error}"),
                };
                let router = routes::router(monitor.clone(), counters.clone());
                let service = router.into_make_service_with_connect_info::<Peer>();
                let mut stopped = stopped.clone();
                let server = axum::serve(listener, service).with_graceful_shutdown(async move {
                    // A message and a dropped sender both mean shutdown.
                    let _ = stopped.changed().await;
                });
                servers.spawn(server.into_future());
            }
            // A message and a dropped sender both mean shutdown.
            let _ = ended.await;
            drop(stop);
            if tokio::time::timeout(GRACE, servers.join_all()).await.is_err() {
                tracing::debug!("HTTP: closing connections whose clients are still reading their answers");
            }
        };
        let builder = std::thread::Builder::new().name("kvtide-http".into());
        let thread = builder.spawn(move || runtime.block_on(serve)).map_err(failed)?;
        Ok(HttpServer { socket, end, thread })
    }

    /// Stop the server and wait for its thread.
    pub fn end(self) {
        drop(self.end);
        if self.thread.join().is_err() {
            tracing::error!("the HTTP thread panicked");
        }
        if let Err(error) = fs::remove_file(&self.socket) {
            tracing::debug!("cannot remove {}: {error}", self.socket.display());
        }
    }
}
