//! HTTP server for operators and monitoring: metrics, health and status. It serves GET only: on a Unix socket beside the attach
//! socket, for tools on this machine, and on an address, loopback by default.
//!
//! | path | answer |
//! | --- | --- |
//! | `/metrics` | metrics in the text format of Prometheus, or as OpenMetrics if the client accepts it |
//! | `/healthz` | 200 while the daemon is healthy, else 503; JSON with the reasons and the degradations |
//! | `/readyz` | 200 while engines can attach and the daemon is healthy, else 503; JSON with the reasons and the start's progress |
//! | `/v1/status` | full status as JSON |
//!
//! One thread with its own runtime serves all requests, so HTTP cannot block a core thread. The thread asks the health monitor
//! ([`crate::status`]) for a snapshot and renders it; it keeps no state of its own. Connections are bounded in number and in time
//! ([`listener`]). This module does not compute figures; [`metrics`] is the only place that names them.

pub mod client;
mod listener;
mod metrics;
mod routes;
mod server;

pub use server::socket_beside;
pub(crate) use server::{HttpServer, bind, bind_socket};
