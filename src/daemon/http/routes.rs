//! Paths and their handlers.

use super::metrics::{self, Format};
use super::operate::{OnBlock, Purging};
use super::page;
use crate::attach;
use crate::config::Config;
use crate::error::Error;
use crate::orders::Order;
use crate::output::Versioned;
use crate::status::{HealthMonitor, HttpCounters, Snapshot, ThreadRegistry};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use kvtide_http::access::{Access, Refused, Wants};
use kvtide_http::audit::Audit;
use kvtide_http::bodies::{Bodies, BodyBounds};
use kvtide_http::guard::{SHOWN_MAX, answer, guarded, refuse, shown};
use kvtide_http::listener::{Client, Peer};
use kvtide_rt::mail::Address;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::oneshot;

/// Maximum wait for the health monitor. It answers within 0.1 s unless the machine is too busy to run it.
const MONITOR_MAX: Duration = Duration::from_secs(5);

/// Limits on the bodies of actions: a name or some hundred hashes each. The time is shorter than that of a handler ([`BOUNDS`]), so the client gets
/// the reason.
///
/// [`BOUNDS`]: kvtide_http::listener::BOUNDS
pub(super) const BODIES: BodyBounds = BodyBounds { each: 64 << 10, total: 1 << 20, time: Duration::from_secs(5) };

/// Answer to what needs a token while none is configured.
const NO_TOKEN: &str = "searches of hashes, changes, and names of several tenants or on another machine need the operator's token over an \
                        address: set [http] token_file, or use the kvtide tool on the daemon's machine without --http";

/// Read the operator's token, if its file is configured, and count the tenants.
pub(crate) fn access(config: &Config) -> Result<Access, Error> {
    let token = config.http.token_file.as_deref().map(attach::read_token).transpose()?;
    Ok(Access::new(token.as_ref(), config.domains.len() > 1, NO_TOKEN))
}

/// What the handlers ask.
#[derive(Clone, Debug)]
pub(crate) struct Daemon {
    /// The health monitor, for snapshots.
    pub monitor: HealthMonitor,
    /// The threads, for actions.
    pub registry: ThreadRegistry,
    /// Who may read and act.
    pub access: Access,
    /// Where orders to the control thread go.
    pub orders: Address<Order>,
    /// The purge in progress.
    pub purging: Purging,
}

impl Daemon {
    /// Return an error if a client may not do what it asks; count and log it.
    fn permit(&self, client: Client, headers: &HeaderMap, wants: Wants, path: &str) -> Result<(), Refused> {
        self.access.check(client, headers, wants).inspect_err(|(_, why)| {
            self.registry.http_counters().refused();
            tracing::warn!("{client}: {path} refused: {why}");
        })
    }
}

/// Build the router of all paths.
pub(super) fn router(daemon: Daemon, counters: HttpCounters, bodies: &Bodies) -> Router {
    let acts = Router::new()
        .route("/v1/cache/pin", post(pin))
        .route("/v1/cache/unpin", post(unpin))
        .route("/v1/cache/evict", post(evict))
        .route("/v1/cache/clear", post(clear))
        .route("/v1/cache/why", post(why))
        .route("/v1/drain", post(drain))
        .route("/v1/purge", post(purge))
        .route("/v1/reload", post(reload))
        .layer(middleware::from_fn_with_state((daemon.clone(), Wants::Act, bodies.clone()), admit));
    let reads = Router::new()
        .route("/v1/status", get(status))
        .route("/v1/history", get(history))
        .route("/v1/cache/search", get(search))
        .layer(middleware::from_fn_with_state((daemon.clone(), Wants::Read, bodies.clone()), admit));
    let router = Router::new()
        .route("/", get(index))
        .route("/metrics", get(scrape))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .merge(acts)
        .merge(page::router())
        .merge(reads)
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .with_state(daemon);
    guarded(router, counters)
}

/// Refuse clients that may not do what the path does.
async fn admit(
    State((daemon, wants, bodies)): State<(Daemon, Wants, Bodies)>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let (client, path) = (peer.client(), shown(request.uri()));
    if let Err(refused) = daemon.permit(client, request.headers(), wants, &path) {
        return refuse(refused);
    }
    if wants == Wants::Read {
        return next.run(request).await;
    }
    let (head, body) = request.into_parts();
    let received = match bodies.receive(body).await {
        Ok(received) => received,
        Err(refused) => {
            tracing::warn!("{client}: {path} refused: {}", refused.1);
            return refuse(refused);
        }
    };
    let what: String = String::from_utf8_lossy(&received.bytes).chars().take(SHOWN_MAX).collect();
    let audit = Audit::begin(client, format_args!("{path} {what:?}"));
    let answer = next.run(Request::from_parts(head, received.bytes.clone().into())).await;
    let undone = if answer.extensions().get::<Undone>().is_some() { ", not done" } else { "" };
    audit.end(format_args!("{}{undone}", answer.status()));
    answer
}

/// Marks an answer that says `"done": false`.
#[derive(Clone)]
struct Undone;

/// Return the body of an action.
fn body<T: DeserializeOwned>(bytes: &Bytes) -> Result<T, Refused> {
    serde_json::from_slice(bytes)
        .map_err(|error| (StatusCode::BAD_REQUEST, format!("the body is not as expected: {error}")))
}

fn done(result: Result<impl Serialize, Refused>) -> Response {
    match result {
        Ok(done) => {
            let mut answer = answer(StatusCode::OK, &Versioned::new(&done));
            if serde_json::to_value(&done).is_ok_and(|done| done["done"] == false) {
                answer.extensions_mut().insert(Undone);
            }
            answer
        }
        Err(refused) => refuse(refused),
    }
}

async fn on_block(daemon: &Daemon, what: OnBlock, bytes: &Bytes) -> Response {
    match body(bytes) {
        Ok(of) => done(daemon.on_block(what, &of).await),
        Err(refused) => refuse(refused),
    }
}

async fn pin(State(daemon): State<Daemon>, bytes: Bytes) -> Response {
    on_block(&daemon, OnBlock::Pin, &bytes).await
}

async fn unpin(State(daemon): State<Daemon>, bytes: Bytes) -> Response {
    on_block(&daemon, OnBlock::Unpin, &bytes).await
}

async fn evict(State(daemon): State<Daemon>, bytes: Bytes) -> Response {
    on_block(&daemon, OnBlock::Evict, &bytes).await
}

async fn clear(State(daemon): State<Daemon>, bytes: Bytes) -> Response {
    let what = match body(&bytes) {
        Ok(what) => what,
        Err(refused) => return refuse(refused),
    };
    match snapshot(&daemon).await {
        Ok(snapshot) => done(daemon.clear(&what, &snapshot).await),
        Err(refusal) => refusal,
    }
}

async fn why(State(daemon): State<Daemon>, bytes: Bytes) -> Response {
    let what = match body(&bytes) {
        Ok(what) => what,
        Err(refused) => return refuse(refused),
    };
    match snapshot(&daemon).await {
        Ok(snapshot) => done(daemon.why(&what, &snapshot).await),
        Err(refusal) => refusal,
    }
}

async fn drain(State(daemon): State<Daemon>, bytes: Bytes) -> Response {
    done(body(&bytes).map(|what| daemon.drain(what)))
}

async fn reload(State(daemon): State<Daemon>) -> Response {
    done(daemon.reload().await)
}

async fn purge(State(daemon): State<Daemon>, bytes: Bytes) -> Response {
    let what = match body(&bytes) {
        Ok(what) => what,
        Err(refused) => return refuse(refused),
    };
    match snapshot(&daemon).await {
        Ok(snapshot) => done(daemon.purge(what, &snapshot).await),
        Err(refusal) => refusal,
    }
}

/// Figures of the last hour: `columns` by name, the oldest value first; `now_s`: the daemon's clock.
async fn history(State(daemon): State<Daemon>) -> Response {
    let columns: serde_json::Map<String, Value> = daemon
        .registry
        .history()
        .columns()
        .into_iter()
        .map(|(name, values)| (name.to_owned(), values.into()))
        .collect();
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    answer(StatusCode::OK, &Versioned::new(&json!({ "now_s": now_s, "columns": columns })))
}

async fn search(
    State(daemon): State<Daemon>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
    Query(asked): Query<Asked>,
) -> Response {
    // Who knows the hash of a prompt could learn whether another tenant has sent it.
    if kvtide_types::hash_from_hex(&asked.q).is_some()
        && let Err(refused) = daemon.permit(peer.client(), &headers, Wants::Act, "/v1/cache/search of a hash")
    {
        return refuse(refused);
    }
    let snapshot = match snapshot(&daemon).await {
        Ok(snapshot) => snapshot,
        Err(refusal) => return refusal,
    };
    match daemon.search(&asked.q, &snapshot).await {
        Ok(found) => answer(StatusCode::OK, &Versioned::new(&found)),
        Err(refused) => refuse(refused),
    }
}

/// Query of a search.
#[derive(Debug, Deserialize)]
struct Asked {
    #[serde(default)]
    q: String,
}

async fn index(headers: HeaderMap) -> Response {
    page::index(&headers).unwrap_or_else(|| PATHS.into_response())
}

/// What is where, for clients that are no browsers.
const PATHS: &str = "kvtided\n\n/metrics    Prometheus metrics\n/healthz    200 while healthy, else 503 with the reasons\n\
     /readyz     200 while engines can attach, else 503 with the reasons\n/v1/status  full status as JSON\n/v1/history the last hour, as columns\n\
     /v1/cache/search?q=TEXT  a block by its hash, or spaces and tenants by a part of their name\n\
     POST /v1/cache/why  where the blocks of a prompt are, or why they are not cached, by their hashes\n\
     POST /v1/cache/pin, unpin, evict, clear, /v1/drain, /v1/purge, /v1/reload  actions of operators\n";

async fn not_found(uri: Uri) -> Response {
    (StatusCode::NOT_FOUND, format!("{}: not found; GET / lists the paths\n", shown(&uri))).into_response()
}

async fn method_not_allowed() -> Response {
    (StatusCode::METHOD_NOT_ALLOWED, "method not allowed: use GET, or POST for the actions that GET / lists\n")
        .into_response()
}

async fn scrape(State(daemon): State<Daemon>, headers: HeaderMap) -> Response {
    let snapshot = match snapshot(&daemon).await {
        Ok(snapshot) => snapshot,
        Err(refusal) => return refusal,
    };
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = Format::accepted(accept);
    let described = [
        (header::CONTENT_TYPE, HeaderValue::from_static(format.content_type())),
        (header::VARY, HeaderValue::from_static("accept")),
    ];
    (described, metrics::render(&snapshot, format)).into_response()
}

async fn healthz(State(daemon): State<Daemon>) -> Response {
    match snapshot(&daemon).await {
        Ok(snapshot) => {
            let reasons = snapshot.unhealthy.iter().map(|reason| json!(reason)).collect();
            verdict("healthy", snapshot.unhealthy.is_empty(), &snapshot, reasons)
        }
        Err(refusal) => refusal,
    }
}

async fn readyz(State(daemon): State<Daemon>) -> Response {
    match snapshot(&daemon).await {
        Ok(snapshot) => {
            let unhealthy = snapshot.unhealthy.iter().map(|reason| json!(reason));
            let unready = snapshot.unready();
            let reasons = unhealthy.chain(unready.iter().map(|unready| json!(unready))).collect();
            verdict("ready", snapshot.is_ready(), &snapshot, reasons)
        }
        Err(refusal) => refusal,
    }
}

fn verdict(what: &str, good: bool, snapshot: &Snapshot, reasons: Vec<Value>) -> Response {
    let code = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    answer(code, &json!({ what: good, "stage": snapshot.stage, "reasons": reasons, "degraded": snapshot.degraded }))
}

async fn status(State(daemon): State<Daemon>) -> Response {
    match snapshot(&daemon).await {
        Ok(snapshot) => answer(StatusCode::OK, &*snapshot),
        Err(refusal) => refusal,
    }
}

/// Return a snapshot of the daemon, or the 503 answer if the health monitor does not supply one.
async fn snapshot(daemon: &Daemon) -> Result<Arc<Snapshot>, Response> {
    let (reply, answer) = oneshot::channel();
    let asked = daemon.monitor.ask(move |snapshot| {
        // The client may have disconnected: then the receiver is gone.
        let _ = reply.send(snapshot);
    });
    let unavailable = |text: &'static str| (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    if !asked {
        return Err(unavailable("no status: too many requests at once, or the daemon is shutting down\n"));
    }
    match tokio::time::timeout(MONITOR_MAX, answer).await {
        Ok(Ok(snapshot)) => Ok(snapshot),
        Ok(Err(_)) => Err(unavailable("no status: the daemon is shutting down\n")),
        Err(_) => Err(unavailable("no status: the health monitor does not answer\n")),
    }
}
