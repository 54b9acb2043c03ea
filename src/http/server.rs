//! The thread that serves HTTP: bound before anything else starts, ended after everything else has.

use super::listener::{BOUNDS, Bounded, Peer};
use super::routes;
use crate::error::Error;
use crate::status::{HttpCounters, Watch};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long answers under way may take when the server ends.
const GRACE: Duration = Duration::from_secs(1);

/// The running server.
#[derive(Debug)]
pub(crate) struct HttpServer {
    address: SocketAddr,
    /// Dropped, it ends the server.
    end: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

/// Takes the address, so that a daemon whose address is taken does not start.
pub(crate) fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    let failed = |source: io::Error| Error::Http { address, hint: hint(&source), source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    if !address.ip().is_loopback() {
        tracing::warn!("HTTP on {address} is open to other machines: it tells names, users and sizes to whoever asks");
    }
    Ok(listener)
}

/// What an operator can do about it.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another process listens there, perhaps another kvtided; give this one another address in [http] listen or by \
             --http, or none (\"\")"
        }
        io::ErrorKind::AddrNotAvailable => "no interface of this machine has that address",
        io::ErrorKind::PermissionDenied => "ports below 1024 need CAP_NET_BIND_SERVICE; take a higher one",
        _ => "see [http] listen or --http",
    }
}

impl HttpServer {
    /// Starts to serve.
    pub fn start(listener: TcpListener, watch: Watch, counters: &HttpCounters) -> Result<HttpServer, Error> {
        let failed = |source| Error::system("start the HTTP server", source);
        let address = listener.local_addr().map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (end, ended) = oneshot::channel::<()>();
        let counters = counters.clone();
        let serve = async move {
            let listener = match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => Bounded::new(listener, BOUNDS, counters.clone()),
                Err(error) => return tracing::error!("HTTP is not served: {error}"),
            };
            let (stop, stopped) = oneshot::channel::<()>();
            let service = routes::router(watch, counters).into_make_service_with_connect_info::<Peer>();
            let server = axum::serve(listener, service).with_graceful_shutdown(async {
                // Both mean the end.
                let _ = stopped.await;
            });
            let server = tokio::spawn(server.into_future());
            // Both mean the end.
            let _ = ended.await;
            drop(stop);
            if tokio::time::timeout(GRACE, server).await.is_err() {
                tracing::debug!("HTTP: peers that still read are cut off");
            }
        };
        let builder = std::thread::Builder::new().name("kvtide-http".into());
        let thread = builder.spawn(move || runtime.block_on(serve)).map_err(failed)?;
        tracing::info!("metrics, health and status on http://{address}");
        Ok(HttpServer { address, end, thread })
    }

    /// Where it serves.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it.
    pub fn end(self) {
        drop(self.end);
        if self.thread.join().is_err() {
            tracing::error!("the HTTP thread had panicked");
        }
    }
}
