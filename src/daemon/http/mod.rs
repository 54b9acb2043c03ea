//! HTTP server for operators and monitoring: metrics, health, status, and actions. It serves on a Unix socket beside the attach
//! socket, for tools on this machine, and on an address, loopback by default. [`kvtide_http::access`] says who may read and act.
//!
//! | path | answer |
//! | --- | --- |
//! | `/metrics` | metrics in the text format of Prometheus, or as OpenMetrics if the client accepts it |
//! | `/healthz` | 200 while the daemon is healthy, else 503; JSON with the reasons and the degradations |
//! | `/readyz` | 200 while engines can attach and the daemon is healthy, else 503; JSON with the reasons and the start's progress |
//! | `/v1/status` | full status as JSON |
//! | `/` | the web page ([`page`]) for browsers, else a list of the paths |
//! | `/v1/history` | the figures of the last hour, as columns |
//! | `/v1/cache/search` | a block by its hash, or spaces and tenants by a part of their name |
//! | POST `/v1/cache/why` | where the blocks of a prompt are, or why they are not cached, by their hashes |
//! | POST `/v1/cache/pin`, `unpin`, `evict`, `clear`, POST `/v1/drain`, `/v1/purge`, `/v1/reload` | actions of operators ([`operate`]) |
//!
//! One thread with its own runtime serves all requests, so HTTP cannot block a core thread. The thread asks the health monitor
//! ([`crate::status`]) for a snapshot and renders it; it keeps no state of its own. Connections are bounded in number and in time
//! ([`kvtide_http::listener`]). This module does not compute figures; [`metrics`] is the only place that names them.

pub mod client;
mod metrics;
pub mod operate;
mod page;
mod routes;
mod server;

pub(crate) use operate::Purging;
pub(crate) use routes::{Daemon, access};
pub use server::socket_beside;
pub(crate) use server::{HttpServer, bind, bind_socket, check};
