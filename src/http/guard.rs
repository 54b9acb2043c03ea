//! Layer for all routes: it refuses requests for other hosts and contains panics of handlers.

use crate::access::{Access, Refused};
use crate::counters::HttpCounters;
use crate::listener::Peer;
use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;
use tokio::task::JoinSet;

/// Maximum characters of a path or body in a message.
pub const SHOWN_MAX: usize = 200;

/// Wrap a router: a request in a handler marks its connection as busy, and a panic in a handler is answered with 500.
pub fn guarded(router: Router, counters: HttpCounters) -> Router {
    router.layer(middleware::from_fn_with_state(counters, guard))
}

/// Run the handler of a request. A panic in it is a bug: it is counted and answered with 500, and the connection stays open.
async fn guard(
    State(counters): State<HttpCounters>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    peer.requested();
    let path = shown(request.uri());
    if let Err(refused) = Access::check_host(peer.client(), request.headers()) {
        counters.refused();
        tracing::warn!("{}: {path} refused: {}", peer.client(), refused.1);
        return refuse(refused);
    }
    // A separate task contains the panic. Dropping the set aborts the task when the client disconnects.
    let mut tasks = JoinSet::new();
    tasks.spawn(next.run(request));
    match tasks.join_next().await {
        Some(Ok(response)) => response,
        Some(Err(_)) | None => {
            let panics = counters.panicked();
            // Log the 1st, 2nd, 4th, 8th, ... panic only: a periodic scraper must not fill the log.
            if panics.is_power_of_two() {
                tracing::error!(
                    "HTTP: the handler of {path} panicked (panic {panics} since start). This is a bug in kvtide; please report it"
                );
            }
            let text =
                format!("{path}: kvtide panicked while it handled this request; see its log. Please report this bug\n");
            (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
        }
    }
}

/// Return the path of a request for messages, cut.
#[must_use]
pub fn shown(uri: &Uri) -> String {
    uri.path().chars().take(SHOWN_MAX).collect()
}

/// Return the answer to a refused request.
pub fn refuse((status, error): Refused) -> Response {
    answer(status, &json!({ "error": error }))
}

/// Return an answer in JSON.
pub fn answer(code: StatusCode, value: &impl Serialize) -> Response {
    let json = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    match serde_json::to_string_pretty(value) {
        Ok(text) => (code, json, text + "\n").into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot render the answer: {error}\n")).into_response()
        }
    }
}
