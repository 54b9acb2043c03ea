//! What operators and their machines read: metrics, health, status. HTTP on loopback, GET only, no state of its own.
//!
//! | path | what |
//! | --- | --- |
//! | `/metrics` | the counters, in the OpenMetrics text form that Prometheus reads |
//! | `/healthz` | 200 while nothing is wrong, else 503; JSON with the reasons, and with what it goes on without |
//! | `/readyz` | 200 while engines can attach and nothing is wrong, else 503 with what the start is busy with |
//! | `/v1/status` | everything, as JSON |
//!
//! One thread with a runtime of its own, so that nothing here can hold up a core thread: it asks the watch ([`crate::status`])
//! for a snapshot and renders it. Connections are bounded in number and in time ([`listener`]). It must not know how a figure
//! comes about; [`metrics`] is the one place that names them.

mod listener;
mod metrics;
mod routes;
mod server;

pub(crate) use server::{HttpServer, bind};
