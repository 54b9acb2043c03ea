//! HTTP server: what operators read, and the answers to invalid, silent and slow clients.

use crate::raw::{FRAMES, PAGE_BYTES, Raw, sub};
use crate::roles::park_four_blocks;
use crate::{BOUND, options, until};
use kvtide_bench::private_daemon::{Options, PrivateDaemon};
use kvtide_tiering::Reason;
use kvtide_wire::entry::{Op, Submission};
use kvtide_wire::status::Status;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit, setrlimit};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

/// Start a private daemon that serves HTTP on a free port; return it with its HTTP address.
pub fn served(config: &str) -> (PrivateDaemon, SocketAddr) {
    let mut daemon = PrivateDaemon::start(&Options { http: Some("127.0.0.1:0".into()), ..options(config) }).unwrap();
    let status = daemon.status().unwrap();
    let address = status["http"].as_str().unwrap().parse().unwrap();
    (daemon, address)
}

/// Send a raw request; return status code, headers in lower case and body.
pub fn exchange(address: SocketAddr, request: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, head.to_ascii_lowercase(), body.to_owned())
}

/// Send a GET; return status code, headers in lower case and body.
pub fn get(address: SocketAddr, path: &str) -> (u16, String, String) {
    exchange(address, &format!("GET {path} HTTP/1.1\r\nHost: kvtide\r\nConnection: close\r\n\r\n"))
}

/// Return the sum of a metric's samples that have all of `labels` in their line; `None` if there are none.
pub fn metric(page: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let lines = page.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
    let chosen: Vec<f64> = lines
        .filter(|line| labels.iter().all(|label| line.contains(label)))
        .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    (!chosen.is_empty()).then(|| chosen.iter().sum())
}

#[test]
fn a_daemon_tells_how_it_stands() {
    let (mut daemon, address) = served("");
    let mut raw = Raw::attach(daemon.socket());
    park_four_blocks(&mut raw, 0);
    assert_eq!(raw.status(sub(Op::Resume)), Status::Ok);
    let status = daemon.status().unwrap();
    let parked = status["spaces"][0]["core"]["tier0_to_host"]["bytes"][Reason::Park as usize].as_u64().unwrap();
    assert!(parked >= 4096, "{status:#}");
    assert_eq!(raw.status(Submission { count: 2, flags: 1, ..sub(Op::Acquire) }), Status::Ok);
    for path in ["/healthz", "/readyz"] {
        let (code, head, body) = get(address, path);
        assert_eq!((code, head.contains("content-type: application/json")), (200, true), "{head}\n{body}");
        let verdict: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((&verdict["reasons"], &verdict["stage"]), (&serde_json::json!([]), &"serving".into()), "{body}");
    }
    let (code, head, page) = get(address, "/metrics");
    assert_eq!(
        (code, head.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\nvary: accept\r\n")),
        (200, true),
        "{head}"
    );
    assert!(page.contains("# TYPE kvtide_session_attaches_total counter\n") && !page.contains("# EOF"), "{page}");
    assert_eq!(metric(&page, "kvtide_ready", &[]), Some(1.0));
    assert_eq!(metric(&page, "kvtide_sessions", &["state=\"live\"", "name=\"raw\"", "space=\"1\""]), Some(1.0));
    assert_eq!(metric(&page, "kvtide_session_attaches_total", &[]), Some(1.0));
    let labels = ["source=\"tier0\"", "destination=\"host\""];
    assert!(metric(&page, "kvtide_migration_bytes_total", &labels) >= Some(parked as f64));
    assert_eq!(metric(&page, "kvtide_requests_total", &[]), Some(6.0), "each request has a duration");
    let bytes = |state: &[&str]| metric(&page, "kvtide_tier_bytes", &[&["tier=\"tier0\""], state].concat());
    assert_eq!(bytes(&["state=\"pinned\""]), Some(f64::from(2 * PAGE_BYTES)));
    assert_eq!(bytes(&[]), Some(f64::from(FRAMES * PAGE_BYTES)), "every frame has exactly one state");
    let slab_bytes = status["spaces"][0]["slab_bytes"].as_f64();
    assert_eq!(metric(&page, "kvtide_tier_bytes", &["tier=\"host\""]), slab_bytes);
    assert_eq!(metric(&page, "kvtide_fault_seconds_bucket", &["le=\"+Inf\""]), Some(0.0));
    let open_metrics = "GET /metrics HTTP/1.1\r\nHost: k\r\nAccept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n\
                        Connection: close\r\n\r\n";
    let (code, head, page) = exchange(address, open_metrics);
    assert_eq!(
        (code, head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n")),
        (200, true),
        "{head}"
    );
    assert!(page.contains("# TYPE kvtide_session_attaches counter\n") && page.ends_with("# EOF\n"), "{page}");
    assert_eq!(metric(&page, "kvtide_session_attaches_total", &[]), Some(1.0));
    let (code, _, body) = get(address, "/v1/status");
    let status: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, status["schema"].as_u64(), status["pid"].as_u64()), (200, Some(1), Some(daemon.pid().into())));
    assert_eq!(crate::sessions(&status), (1, 0));
}

#[test]
fn a_daemon_that_ends_is_healthy_and_not_ready() {
    let (mut daemon, address) = served("[daemon]\ndrain_ms = 60000\n");
    let mut raw = Raw::attach(daemon.socket());
    park_four_blocks(&mut raw, 0);
    // The resume stays in flight: jobs load the pages, and this engine completes jobs only while it waits for a completion.
    raw.submit(0, &sub(Op::Resume));
    daemon.status().unwrap();
    daemon.signal(Signal::TERM).unwrap();
    until(|| format!("still ready: {}", daemon.log()), || get(address, "/readyz").0 != 200);
    let (code, _, body) = get(address, "/readyz");
    let verdict: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, &verdict["ready"], &verdict["reasons"][0]["reason"]), (503, &false.into(), &"draining".into()));
    let (code, _, body) = get(address, "/healthz");
    assert_eq!(code, 200, "{body}");
    assert_eq!(raw.completion(0).unwrap().status, Status::Ok.code());
    assert!(daemon.wait(BOUND).unwrap().success());
}

#[test]
fn what_is_not_served_says_so() {
    let (_daemon, address) = served("");
    let (code, _, body) = get(address, "/metric");
    assert_eq!((code, body.as_str()), (404, "/metric: not found; GET / lists the paths\n"));
    let (code, head, body) =
        exchange(address, "POST /metrics HTTP/1.1\r\nHost: k\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(
        (code, body.as_str()),
        (405, "method not allowed: use GET, or POST for the actions that GET / lists\n"),
        "{head}"
    );
    assert!(head.contains("allow: get"), "{head}");
    let (code, ..) = exchange(address, "NONSENSE\r\n\r\n");
    assert_eq!(code, 400);
    assert_eq!(get(address, "/").0, 200);
}

#[test]
fn a_taken_port_is_a_clear_error_and_no_daemon() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let dir = std::env::temp_dir().join(format!("kvtide-port-{}", std::process::id()));
    let output =
        Command::new(env!("CARGO_BIN_EXE_kvtided")).args(["--http", &address, "--dir"]).arg(&dir).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    for part in [address.as_str(), "os error 98", "another process listens on this address", "--http"] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
    assert!(!dir.join("kvtide.sock").exists(), "the daemon created its socket before it failed");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn no_http_is_served_unless_wanted() {
    let mut daemon = crate::daemon("");
    assert_eq!(daemon.status().unwrap()["http"], Value::Null);
}

/// Maximum time of a probe: longer than a loaded machine needs, and far shorter than the delay that silent clients caused with
/// the 30 s timeout of earlier versions.
const PROBE: Duration = Duration::from_secs(10);

/// Send a request with the timeouts of a health probe; fail unless the answer is 200.
fn probe(address: SocketAddr, path: &str, during: &str) {
    let mut stream = TcpStream::connect_timeout(&address, PROBE).unwrap();
    stream.set_read_timeout(Some(PROBE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: kvtide\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{path}, with {during}: {read:?}: {answer}");
}

/// Open `count` connections and send `bytes` on each.
fn open(address: SocketAddr, count: usize, bytes: &str) -> Vec<TcpStream> {
    let connect = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(bytes.as_bytes()).unwrap();
        stream
    };
    (0..count).map(connect).collect()
}

#[test]
fn peers_that_are_silent_or_slow_keep_no_probe_from_its_answer() {
    // The test process needs one descriptor for each connection.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let (_daemon, address) = served("");
    for count in [32, 2000] {
        let _silent = open(address, count, "");
        for path in ["/healthz", "/metrics"] {
            probe(address, path, &format!("{count} silent connections"));
        }
    }
    let mut slow = open(address, 200, "GET / HTTP/1.1\r\nX-Drip: ");
    for _ in 0..3 {
        // Writes to connections that the daemon has closed fail.
        slow.retain_mut(|stream| stream.write_all(b"a").is_ok());
        probe(address, "/healthz", "200 connections with slow headers");
    }
    // Request 100 answers on each connection and read none: more than the kernel buffers.
    let asked = "GET /metrics HTTP/1.1\r\nHost: kvtide\r\n\r\n".repeat(100);
    let _deaf = open(address, 150, &asked);
    probe(address, "/healthz", "150 connections that do not read their answers");
    let page = get(address, "/metrics").2;
    assert!(metric(&page, "kvtide_http_dropped_connections_total", &[]) > Some(1900.0), "{page}");
    assert_eq!(metric(&page, "kvtide_http_panics_total", &[]), Some(0.0));
}

#[test]
fn a_daemon_without_descriptors_goes_on_accepting_once_it_has_some() {
    let (daemon, address) = served("");
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).unwrap());
    let maximum = getrlimit(Resource::Nofile).maximum;
    // Half of the descriptors in use: none is free, and poll(2) still accepts as many as the control thread polls.
    let in_use = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count() as u64;
    prlimit(pid, Resource::Nofile, Rlimit { current: Some(in_use / 2), maximum }).unwrap();
    let mut waiting = TcpStream::connect(address).unwrap();
    waiting.write_all(b"GET /healthz HTTP/1.1\r\nHost: k\r\nConnection: close\r\n\r\n").unwrap();
    until(|| daemon.log(), || daemon.log().contains("cannot accept an HTTP connection"));
    prlimit(pid, Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    waiting.set_read_timeout(Some(BOUND)).unwrap();
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(get(address, "/metrics").0, 200);
}
