//! Thread of the HTTP server. Its address is bound before any other thread starts; it ends after all others.

use super::listener::{BOUNDS, Bounded, Peer};
use super::routes;
use crate::error::Error;
use crate::status::{HealthMonitor, HttpCounters};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// Maximum time for answers in progress at shutdown.
const GRACE: Duration = Duration::from_secs(1);

/// Running HTTP server.
#[derive(Debug)]
pub(crate) struct HttpServer {
    address: SocketAddr,
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
    /// Start the server thread.
    pub fn start(listener: TcpListener, monitor: HealthMonitor, counters: &HttpCounters) -> Result<HttpServer, Error> {
        let failed = |source| Error::system("start the HTTP server", source);
        let address = listener.local_addr().map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (end, ended) = oneshot::channel::<()>();
        let counters = counters.clone();
        let serve = async move {
            let listener = match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => Bounded::new(listener, BOUNDS, counters.clone()),
                Err(error) => return tracing::error!("cannot serve HTTP: {error}"),
            };
            let (stop, stopped) = oneshot::channel::<()>();
            let service = routes::router(monitor, counters).into_make_service_with_connect_info::<Peer>();
            let server = axum::serve(listener, service).with_graceful_shutdown(async {
                // A message and a dropped sender both mean shutdown.
                let _ = stopped.await;
            });
            let server = tokio::spawn(server.into_future());
            // A message and a dropped sender both mean shutdown.
            let _ = ended.await;
            drop(stop);
            if tokio::time::timeout(GRACE, server).await.is_err() {
                tracing::debug!("HTTP: closing connections whose clients are still reading their answers");
            }
        };
        let builder = std::thread::Builder::new().name("kvtide-http".into());
        let thread = builder.spawn(move || runtime.block_on(serve)).map_err(failed)?;
        tracing::info!("serving metrics, health and status on http://{address}");
        Ok(HttpServer { address, end, thread })
    }

    /// Return the bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stop the server and wait for its thread.
    pub fn end(self) {
        drop(self.end);
        if self.thread.join().is_err() {
            tracing::error!("the HTTP thread panicked");
        }
    }
}
