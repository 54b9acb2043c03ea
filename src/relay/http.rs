//! HTTP of the relay: metrics, health, recalls, and tokens of blocks.

use crate::breaker::BreakerState;
use crate::error::Error;
use crate::queue::Recall;
use crate::space::NotOut;
use crate::spaces::{Figures, Names, Spaces as Relay};
use crate::store::ErrorKind;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Maximum bytes of a request: the hashes of half a million blocks.
const BODY_MAX: usize = 20 << 20;
/// Maximum time of a recall.
const RECALL_MAX: Duration = Duration::from_secs(3600);
/// Maximum time that a request may wait for its blocks.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Bind the listener. Return it with its address.
pub fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let failed = |source| Error::Http { address, source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    if !address.ip().is_loopback() {
        tracing::warn!(
            "HTTP on {address} is reachable from other machines without authentication: they can have blocks brought in"
        );
    }
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// Serve until the runtime ends.
pub async fn serve(listener: TcpListener, relay: Arc<Relay>) {
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/metrics", get(metrics))
        .route("/v1/recall", post(recall).layer(DefaultBodyLimit::max(BODY_MAX)))
        .route("/v1/note", post(note).layer(DefaultBodyLimit::max(BODY_MAX)))
        .with_state(relay);
    let served = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => axum::serve(listener, router).await,
        Err(error) => Err(error),
    };
    if let Err(error) = served {
        tracing::error!("HTTP is not served any more: {error}");
    }
}

/// A request to bring a prefix in.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ask {
    /// Fingerprint of the space: 64 hexadecimal digits.
    fingerprint: String,
    /// Hashes of the blocks of a prefix, from the first on: 32 hexadecimal digits each.
    hashes: Vec<String>,
    /// Domain of the space; needed if spaces of several domains have the fingerprint.
    #[serde(default)]
    domain: Option<String>,
    /// Milliseconds to wait for them.
    #[serde(default)]
    wait_ms: u64,
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

async fn recall(State(relay): State<Arc<Relay>>, Json(ask): Json<Ask>) -> Result<Json<Answer>, (StatusCode, String)> {
    let wrong = |why: &str| (StatusCode::BAD_REQUEST, format!("{why}\n"));
    let fingerprint = bytes(&ask.fingerprint).ok_or_else(|| wrong("fingerprint: expected 64 hexadecimal digits"))?;
    let hashes = hashes_of(&ask.hashes).ok_or_else(|| wrong(HASHES_EXPECTED))?;
    let (done, brought) = oneshot::channel();
    // A request that does not wait wants the blocks nevertheless.
    let until = Instant::now() + RECALL_MAX;
    if !relay.recall(
        ask.domain.as_deref(),
        fingerprint,
        Recall { hashes, until, of_engine: false, fresh: false, expected: None, done },
    ) {
        let why = "no engine of this daemon has a space with this fingerprint open to relays, or spaces of several domains have it and \
                   the request names no domain\n";
        return Err((StatusCode::NOT_FOUND, why.into()));
    }
    let wait = Duration::from_millis(ask.wait_ms).min(WAIT_MAX);
    match tokio::time::timeout(wait, brought).await {
        Ok(Ok(blocks)) => Ok(Json(Answer { done: true, blocks: Some(blocks) })),
        Ok(Err(_)) => Err((StatusCode::SERVICE_UNAVAILABLE, "too many recalls wait, or the space has closed\n".into())),
        Err(_) => Ok(Json(Answer { done: false, blocks: None })),
    }
}

/// Tokens of blocks, for KV events.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    /// Fingerprint of the space: 64 hexadecimal digits.
    fingerprint: String,
    /// Hashes of blocks: 32 hexadecimal digits each.
    hashes: Vec<String>,
    /// Tokens of all of them: one page each.
    tokens: Vec<u32>,
    /// Parent of the first block; only checked to be a hash, because the feed has the parents.
    #[serde(default)]
    parent: Option<String>,
    /// Name of the adapter with which they were computed.
    #[serde(default)]
    adapter: Option<String>,
}

async fn note(State(relay): State<Arc<Relay>>, Json(note): Json<Note>) -> Result<StatusCode, (StatusCode, String)> {
    let wrong = |why: &str| (StatusCode::BAD_REQUEST, format!("{why}\n"));
    let off = || (StatusCode::NOT_FOUND, "KV events are off; set [events] in the relay's configuration\n".to_owned());
    let events = relay.shared.events.clone().ok_or_else(off)?;
    let fingerprint = bytes(&note.fingerprint).ok_or_else(|| wrong("fingerprint: expected 64 hexadecimal digits"))?;
    let hashes = hashes_of(&note.hashes).ok_or_else(|| wrong(HASHES_EXPECTED))?;
    if note.parent.as_ref().is_some_and(|parent| hash_of(parent).is_none()) {
        return Err(wrong("parent: expected 32 hexadecimal digits"));
    }
    let adapter = note.adapter.filter(|name| !name.is_empty());
    // It writes a file.
    let kept = tokio::task::spawn_blocking(move || events.note(&fingerprint, hashes, &note.tokens, adapter.as_deref()));
    match kept.await {
        Ok(Ok(())) => Ok(StatusCode::NO_CONTENT),
        Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => Err(wrong(&format!("tokens: {error}"))),
        Ok(Err(error)) => {
            let why = format!("the tokens are not kept over a restart: cannot write their file: {error}\n");
            Err((StatusCode::INSUFFICIENT_STORAGE, why))
        }
        Err(error) => Err((StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"))),
    }
}

const HASHES_EXPECTED: &str = "hashes: expected at least one, of 32 hexadecimal digits, none of them 0";

fn hash_of(text: &str) -> Option<u128> {
    (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

fn hashes_of(texts: &[String]) -> Option<Vec<u128>> {
    let hashes: Option<Vec<u128>> = texts.iter().map(|text| hash_of(text)).collect();
    hashes.filter(|hashes| !hashes.is_empty() && !hashes.contains(&0))
}

/// Return the bytes of hexadecimal digits.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits: Option<Vec<u8>> = text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
    let pairs: Vec<u8> = digits?.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    pairs.try_into().ok().filter(|_| text.len() == 2 * N)
}

async fn metrics(State(relay): State<Arc<Relay>>) -> String {
    text(&relay)
}

/// Return the value of a label as Prometheus' text format has it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Return the metrics in Prometheus' text format.
fn text(relay: &Relay) -> String {
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, help: &str, series: Vec<(String, u64)>| {
        let _ = write!(out, "# HELP kvtide_relay_{name} {help}\n# TYPE kvtide_relay_{name} {kind}\n");
        for (labels, value) in series {
            let _ = writeln!(out, "kvtide_relay_{name}{labels} {value}");
        }
    };
    let one = |counter: &AtomicU64| vec![(String::new(), counter.load(Ordering::Relaxed))];
    let (own, store) = (&relay.shared.counters, relay.shared.endpoint.counters());
    let open = u64::from(relay.shared.endpoint.state() == BreakerState::Open);
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
        "0 while the store is not used because it failed.",
        vec![(String::new(), 1 - open)],
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
    let (bytes, requests) = relay.shared.spending.left();
    for (name, help, left) in [
        ("budget_left_bytes", "Bytes that may be copied to the store now.", bytes),
        ("budget_left_requests", "Requests that may be sent now to copy runs to the store.", requests),
    ] {
        if let Some(left) = left {
            family(name, "gauge", help, vec![(String::new(), left)]);
        }
    }
    if let Some(events) = &relay.shared.events {
        let counters = &events.counters;
        for (name, help, counter) in [
            ("events_published_total", "KV events published.", &counters.events),
            ("events_replayed_batches_total", "Batches of KV events sent again.", &counters.replayed),
            (
                "events_overflows_total",
                "Times that all KV events were published again, as a queue was full.",
                &counters.overflows,
            ),
            (
                "events_tokens_dropped_bytes_total",
                "Invalid bytes of the file of tokens.",
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

#[cfg(test)]
mod tests {
    #[test]
    fn only_whole_fingerprints_are_taken() {
        let digits = "0f".repeat(32);
        assert_eq!(super::bytes::<32>(&digits), Some([15; 32]));
        for wrong in ["", &digits[1..], &digits[2..], &format!("{digits}0"), &digits.replace('f', "g")] {
            assert_eq!(super::bytes::<32>(wrong), None, "{wrong}");
        }
    }
}
