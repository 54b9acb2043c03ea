//! HTTP of the relay: metrics, health, recalls, and tokens of blocks.

use crate::config;
use crate::endpoint::Use;
use crate::error::Error;
use crate::queue::Recall;
use crate::requests::{Ask, Note};
use crate::space::NotOut;
use crate::spaces::{Figures, Names, Spaces as Relay};
use crate::store::ErrorKind;
use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use kvtide_http::access::{Access, Refused, Wants};
use kvtide_http::audit::Audit;
use kvtide_http::bodies::{Bodies, BodyBounds};
use kvtide_http::counters::HttpCounters;
use kvtide_http::guard::{guarded, refuse, shown};
use kvtide_http::listener::{BOUNDS, Bounded, Bounds, Peer, Places, Source};
use serde::Serialize;
use std::fmt::{Display, Write};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Limits on bodies. The largest has the hashes of half a million blocks; two of them at a time. A machine of the same network sends one
/// in less than a second.
const BODIES: BodyBounds = BodyBounds { each: 20 << 20, total: 40 << 20, time: Duration::from_secs(5) };
/// Maximum time of a recall.
const RECALL_MAX: Duration = Duration::from_secs(3600);
/// Maximum time that a request may wait for its blocks.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Limits on connections: those of the daemon, but a recall may wait.
const CONNECTIONS: Bounds = Bounds { answer: BOUNDS.answer.saturating_add(WAIT_MAX), ..BOUNDS };
/// Answer to `/v1/recall` and `/v1/note` while no token is configured.
const NO_TOKEN: &str = "/v1/recall and /v1/note need the operator's token: set [http] token_file in the relay's configuration, and send its token";

/// Bind the listener. Return it with its address.
pub fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let failed = |source| Error::Http { address, source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    if !address.ip().is_loopback() {
        tracing::warn!(
            "HTTP on {address} is reachable from other machines: metrics, with the names of models and domains, need no token"
        );
    }
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// Read the operator's token, if its file is configured.
pub fn access(config: &config::Http) -> Result<Access, Error> {
    let token = config.token_file.as_deref().map(config::read_token).transpose()?;
    Ok(Access::new(token.as_ref(), false, NO_TOKEN))
}

/// What the handlers need.
#[derive(Clone)]
struct Api {
    relay: Arc<Relay>,
    access: Access,
    bodies: Bodies,
    counters: HttpCounters,
}

/// Serve until the runtime ends.
pub async fn serve(listener: TcpListener, relay: Arc<Relay>, access: Access) {
    let counters = HttpCounters::default();
    let api = Api { relay, access, bodies: Bodies::new(BODIES), counters: counters.clone() };
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/metrics", get(metrics))
        .route("/v1/recall", post(recall))
        .route("/v1/note", post(note))
        .with_state(api);
    let router = guarded(router, counters.clone());
    let served = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => {
            let listener = Bounded::new(Source::Tcp(listener), &Places::new(CONNECTIONS, counters));
            axum::serve(listener, router.into_make_service_with_connect_info::<Peer>()).await
        }
        Err(error) => Err(error),
    };
    if let Err(error) = served {
        tracing::error!("HTTP is not served any more: {error}");
    }
}

impl Api {
    /// Serve a request that acts: it needs the operator's token, is checked before its body is read, and is logged.
    async fn act<T: Display, F: Future<Output = Result<Response, Refused>>>(
        &self,
        peer: &Peer,
        request: Request,
        parse: impl FnOnce(&[u8]) -> Result<T, String>,
        act: impl FnOnce(T) -> F,
    ) -> Response {
        let (client, path) = (peer.client(), shown(request.uri()));
        let mut audit = None;
        let result = async {
            self.access.check(client, request.headers(), Wants::Act).inspect_err(|_| self.counters.refused())?;
            let received = self.bodies.receive(request.into_body()).await?;
            let asked = parse(&received.bytes).map_err(|why| (StatusCode::BAD_REQUEST, why))?;
            audit = Some(Audit::begin(client, format_args!("{path} of {asked}")));
            act(asked).await
        }
        .await;
        match (result, audit) {
            (Ok(answer), audit) => {
                audit.into_iter().for_each(|audit| audit.end(answer.status()));
                answer
            }
            (Err((status, why)), Some(audit)) => {
                audit.end(format_args!("refused: {status}: {why}"));
                refuse((status, why))
            }
            (Err((status, why)), None) => {
                tracing::warn!("{client}: {path} refused: {status}: {why}");
                refuse((status, why))
            }
        }
    }
}

/// Result of a recall.
#[derive(Serialize)]
struct Answer {
    /// It is over; otherwise it goes on.
    done: bool,
    /// Blocks of the prefix that the daemon has cached now.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<usize>,
}

async fn recall(State(api): State<Api>, ConnectInfo(peer): ConnectInfo<Peer>, request: Request) -> Response {
    api.act(&peer, request, Ask::parse, |ask| bring_in(&api.relay, ask)).await
}

async fn bring_in(relay: &Relay, ask: Ask) -> Result<Response, Refused> {
    let (done, brought) = oneshot::channel();
    // A request that does not wait wants the blocks nevertheless.
    let until = Instant::now() + RECALL_MAX;
    let wait = ask.wait().min(WAIT_MAX);
    let hashes = ask.hashes.0;
    if !relay.recall(
        ask.domain.as_deref(),
        ask.fingerprint.0,
        Recall { hashes, until, of_engine: false, fresh: false, expected: None, done },
    ) {
        let why = "no engine of this daemon has a space with this fingerprint open to relays, or spaces of several domains have it and \
                   the request names no domain";
        return Err((StatusCode::NOT_FOUND, why.into()));
    }
    let answer = match tokio::time::timeout(wait, brought).await {
        Ok(Ok(outcome)) => Answer { done: true, blocks: Some(outcome.blocks) },
        Ok(Err(_)) => {
            return Err((StatusCode::SERVICE_UNAVAILABLE, "too many recalls wait, or the space has closed".into()));
        }
        Err(_) => Answer { done: false, blocks: None },
    };
    Ok(axum::Json(answer).into_response())
}

async fn note(State(api): State<Api>, ConnectInfo(peer): ConnectInfo<Peer>, request: Request) -> Response {
    api.act(&peer, request, Note::parse, |note| keep(&api.relay, note)).await
}

/// Keep the tokens of blocks.
async fn keep(relay: &Relay, note: Note) -> Result<Response, Refused> {
    let off = || {
        let why = match relay.shared.events.on().next() {
            None => "KV events are off; set [domains.events] in the relay's configuration",
            Some(_) => "name a domain that has [domains.events]: \"domain\" in the request",
        };
        (StatusCode::NOT_FOUND, why.to_owned())
    };
    let domain = relay.notes(note.domain.as_deref(), note.fingerprint.0).ok_or_else(off)?;
    let events = Arc::clone(relay.shared.events.of(domain).ok_or_else(off)?);
    // It writes a file.
    let kept = tokio::task::spawn_blocking(move || {
        let adapter = note.adapter().map(str::to_owned);
        events.note(&note.fingerprint.0, note.hashes.0, &note.tokens, adapter.as_deref())
    });
    match kept.await {
        Ok(Ok(())) => Ok(StatusCode::NO_CONTENT.into_response()),
        Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => {
            Err((StatusCode::BAD_REQUEST, format!("tokens: {error}")))
        }
        Ok(Err(error)) => {
            let why = format!("the tokens are not kept over a restart: cannot write their file: {error}");
            Err((StatusCode::INSUFFICIENT_STORAGE, why))
        }
        Err(error) => Err((StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
    }
}

async fn metrics(State(api): State<Api>) -> String {
    text(&api.relay, &api.counters)
}

/// Return the value of a label as Prometheus' text format has it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Return the metrics in Prometheus' text format.
fn text(relay: &Relay, http: &HttpCounters) -> String {
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, help: &str, series: Vec<(String, u64)>| {
        let _ = write!(out, "# HELP kvtide_relay_{name} {help}\n# TYPE kvtide_relay_{name} {kind}\n");
        for (labels, value) in series {
            let _ = writeln!(out, "kvtide_relay_{name}{labels} {value}");
        }
    };
    let one = |counter: &AtomicU64| vec![(String::new(), counter.load(Ordering::Relaxed))];
    let (own, store) = (&relay.shared.counters, relay.shared.endpoint.counters());
    let usage = relay.shared.endpoint.usage().state;
    family(
        "daemon_connected",
        "gauge",
        "1 while the daemon answers.",
        relay
            .connected()
            .into_iter()
            .map(|(domain, is)| (format!("{{domain=\"{}\"}}", escaped(domain)), is.into()))
            .collect(),
    );
    family(
        "store_in_use",
        "gauge",
        "1 while the store answers; 0 before its first answer, and while it is not used because it failed.",
        vec![(String::new(), matches!(usage, Use::Used | Use::Full(_)).into())],
    );
    family(
        "store_full",
        "gauge",
        "1 while the store has no room for more runs.",
        vec![(String::new(), matches!(usage, Use::Full(_)).into())],
    );
    for (name, help, counter) in [
        ("blocks_out_total", "Blocks copied to the store.", &own.blocks_out),
        ("blocks_there_total", "Blocks that the store had when they were to be copied.", &own.blocks_there),
        ("blocks_again_total", "Blocks that wait for the store again, as it failed.", &own.blocks_again),
        ("blocks_recalled_total", "Blocks that recalls asked for.", &own.blocks_recalled),
        ("blocks_in_total", "Blocks brought in.", &own.blocks_in),
        ("feed_gaps_total", "Times that the daemon's cache was listed, the first time included.", &own.gaps),
        ("store_reads_total", "Reads of runs.", &store.gets),
        ("store_hits_total", "Reads that found the run.", &store.hits),
        ("store_hedges_total", "Reads that were sent a second time.", &store.hedges),
        ("store_bad_runs_total", "Runs that failed verification.", &store.bad_runs),
        ("store_writes_total", "Writes of runs.", &store.puts),
        ("store_read_bytes_total", "Bytes of runs that were read.", &store.bytes_read),
        ("store_written_bytes_total", "Bytes of runs that were written.", &store.bytes_written),
    ] {
        family(name, "counter", help, one(counter));
    }
    let not_out = NotOut::ALL.map(|(reason, name)| {
        (format!("{{reason=\"{name}\"}}"), own.blocks_not_out[reason as usize].load(Ordering::Relaxed))
    });
    family("blocks_not_out_total", "counter", "Blocks not copied to the store, by reason.", not_out.to_vec());
    let traces = relay.shared.traces.totals();
    for (name, help, spans) in [
        ("trace_spans_exported_total", "Spans that the collector took.", traces.exported),
        ("trace_spans_failed_total", "Spans that the collector did not take.", traces.failed),
        ("trace_spans_dropped_total", "Spans lost because the queue was full.", traces.dropped),
    ] {
        family(name, "counter", help, vec![(String::new(), spans)]);
    }
    let (bytes, requests) = relay.shared.spending.left();
    for (name, help, left) in [
        ("budget_left_bytes", "Bytes that may be copied to the store now.", bytes),
        ("budget_left_requests", "Requests that may be sent now to copy runs to the store.", requests),
    ] {
        if let Some(left) = left {
            family(name, "gauge", help, vec![(String::new(), left)]);
        }
    }
    let events = &relay.shared.events;
    if events.on().next().is_some() {
        let counters = &events.counters;
        for (name, help, counter) in [
            ("events_published_total", "KV events published.", &counters.events),
            ("events_replayed_batches_total", "Batches of KV events sent again.", &counters.replayed),
            (
                "events_overflows_total",
                "Times that all KV events were published again, as a queue was full.",
                &counters.overflows,
            ),
            ("events_lost_batches_total", "Batches that a slow subscriber did not get live.", &counters.lost),
            (
                "events_refused_total",
                "Connections for KV events refused or ended: not named, wrong token, too many, or not ZMTP.",
                &counters.refused,
            ),
            (
                "events_tokens_dropped_bytes_total",
                "Invalid bytes of the files of tokens.",
                &counters.tokens_dropped_bytes,
            ),
        ] {
            family(name, "counter", help, one(counter));
        }
        let (noted, waiting) = events.figures();
        for (name, help, value) in [
            ("events_blocks_with_tokens", "Blocks of which the tokens are known, cached or not.", noted),
            ("events_blocks_without_tokens", "Cached blocks not announced: they or an ancestor lack tokens.", waiting),
        ] {
            family(name, "gauge", help, vec![(String::new(), value as u64)]);
        }
    }
    let http = http.totals();
    for (name, help, value) in [
        (
            "http_refused_total",
            "Requests over HTTP refused for lack of the token, or because they name another host.",
            http.refused,
        ),
        (
            "http_dropped_connections_total",
            "HTTP connections closed to make room for others.",
            http.dropped_connections,
        ),
        ("http_panics_total", "HTTP requests whose handler panicked: a bug.", http.panics),
    ] {
        family(name, "counter", help, vec![(String::new(), value)]);
    }
    let errors = ErrorKind::ALL.map(|kind| (format!("{{kind=\"{}\"}}", kind.name()), store.errors(kind)));
    family("store_errors_total", "counter", "Failed requests to the store.", errors.to_vec());
    let spaces = relay.figures();
    family("spaces", "gauge", "Spaces that are served.", vec![(String::new(), spaces.len() as u64)]);
    let label = |(domain, name): &Names| format!("{{domain=\"{}\",space=\"{}\"}}", escaped(domain), escaped(name));
    for (family_name, help, figure) in [
        ("cached_blocks", "Blocks that the daemon has cached, as the feed tells.", 0),
        ("waiting_runs", "Runs that wait to be copied to the store.", 1),
        ("waiting_recalls", "Recalls that wait.", 2),
    ] {
        let of = |(name, figures): &(Names, Figures)| {
            let all = [figures.0, figures.1, figures.2];
            (label(name), all[figure] as u64)
        };
        family(family_name, "gauge", help, spaces.iter().map(of).collect());
    }
    out
}
