//! A device that does not answer: the daemon detects it, reports it, and continues.

use crate::BOUND;
use crate::http::{get, metric};
use crate::nvme::{Dir, Engine, NVME_BYTES, nvme_options};
use crate::threads::Stopped;
use kvtide_bench::private_daemon::{Options, PrivateDaemon};
use rustix::process::Signal;
use std::net::SocketAddr;
use std::time::Instant;

/// Poll `/healthz` until it answers with this status code; return the answer.
fn until_health(address: SocketAddr, wanted: u16, daemon: &PrivateDaemon) -> serde_json::Value {
    let deadline = Instant::now() + BOUND;
    loop {
        let (code, _, body) = get(address, "/healthz");
        if code == wanted {
            return serde_json::from_str(&body).unwrap();
        }
        assert!(Instant::now() < deadline, "timed out waiting for {wanted}: {code} {body}\n{}", daemon.log());
    }
}

#[test]
fn a_device_that_hangs_is_unhealthy_and_its_pages_come_back_with_it() {
    let dir = Dir::new();
    let tier = "io = \"threads\"\ndepth = 2\ntimeout_ms = 200";
    let options = Options { http: Some("127.0.0.1:0".into()), ..nvme_options(&dir, NVME_BYTES, tier, "") };
    let mut daemon = PrivateDaemon::start(&options).unwrap();
    let status = crate::until_status(&mut daemon, "HTTP is served", |status| status["http"].is_string());
    let address = status["http"].as_str().unwrap().parse().unwrap();
    assert_eq!(get(address, "/readyz").0, 200);

    // Stopped I/O threads behave like a device with reads and writes that do not end.
    let workers = ["kvtide-io-w0", "kvtide-io-w1"].map(|name| Stopped::new(daemon.pid(), name));
    let socket = daemon.socket().to_owned();
    let writer = std::thread::spawn(move || {
        let mut engine = Engine::attach(&socket, 1);
        let seqs = engine.write_all();
        (engine, seqs)
    });
    let verdict = until_health(address, 503, &daemon);
    assert_eq!((&verdict["reasons"][0]["reason"], &verdict["reasons"][0]["disk"]), (&"disk_stalled".into(), &0.into()));
    assert_eq!(get(address, "/readyz").0, 503);
    let page = get(address, "/metrics").2;
    assert_eq!(metric(&page, "kvtide_disk_stalled", &[]), Some(1.0));
    assert!(metric(&page, "kvtide_disk_stalled_requests", &[]) >= Some(1.0), "{page}");
    assert!(metric(&page, "kvtide_disk_oldest_request_seconds", &[]) > Some(0.1), "{page}");

    workers.into_iter().for_each(Stopped::go_on);
    until_health(address, 200, &daemon);
    let (mut engine, seqs) = writer.join().unwrap();
    assert_eq!(engine.read_all(&seqs), Ok(()), "{}", daemon.log());
    let page = get(address, "/metrics").2;
    assert_eq!(metric(&page, "kvtide_lost_pages_total", &[]), Some(0.0), "{page}");
}

/// Start a daemon with one disk; return it with its HTTP address.
fn with_disk(dir: &Dir) -> (PrivateDaemon, SocketAddr) {
    let options = Options { http: Some("127.0.0.1:0".into()), ..nvme_options(dir, NVME_BYTES, "", "") };
    let mut daemon = PrivateDaemon::start(&options).unwrap();
    let status = crate::until_status(&mut daemon, "HTTP is served", |status| status["http"].is_string());
    let address = status["http"].as_str().unwrap().parse().unwrap();
    (daemon, address)
}

#[test]
fn a_disk_whose_thread_hangs_keeps_its_last_figures_and_their_age_is_shown() {
    let dir = Dir::new();
    let (daemon, address) = with_disk(&dir);
    let age =
        |page: &str, thread: &str| metric(page, "kvtide_snapshot_age_seconds", &[&format!("thread=\"{thread}\"")]);
    let before = get(address, "/metrics").2;
    assert_eq!(age(&before, "disk-0"), Some(0.0), "{before}");

    let stopped = Stopped::new(daemon.pid(), "kvtide-disk-0");
    let socket = daemon.socket().to_owned();
    // Its transfers fill the queue of the stopped thread.
    let writer = std::thread::spawn(move || {
        let mut engine = Engine::attach(&socket, 1);
        let seqs = engine.write_all();
        (engine, seqs)
    });
    let deadline = Instant::now() + BOUND;
    loop {
        let page = get(address, "/metrics").2;
        for figure in ["kvtide_disk_capacity_bytes", "kvtide_disk_regions", "kvtide_disk_log_limit_bytes"] {
            assert!(metric(&page, figure, &[]).is_some(), "{figure}: {page}");
            assert_eq!(metric(&page, figure, &[]), metric(&before, figure, &[]), "{figure}");
        }
        if age(&page, "disk-0") > Some(0.0) {
            break;
        }
        assert!(Instant::now() < deadline, "the age of its figures is not shown: {page}");
    }
    let verdict = until_health(address, 503, &daemon);
    assert_eq!(
        (&verdict["reasons"][0]["reason"], &verdict["reasons"][0]["thread"]),
        (&"thread_silent".into(), &"disk-0".into())
    );
    let page = get(address, "/metrics").2;
    assert_eq!(age(&page, "host"), Some(0.0), "{page}");

    stopped.go_on();
    until_health(address, 200, &daemon);
    let (mut engine, seqs) = writer.join().unwrap();
    assert_eq!(engine.read_all(&seqs), Ok(()), "{}", daemon.log());
}

#[test]
fn a_disk_that_hangs_does_not_stop_the_control_thread_when_a_status_is_wanted() {
    let dir = Dir::new();
    let (daemon, address) = with_disk(&dir);
    let stopped = Stopped::new(daemon.pid(), "kvtide-disk-0");
    let (deadline, mut noticed) = (Instant::now() + BOUND, 0);
    // Request more status dumps after the detection: if the control thread waited for each, it would be reported as silent.
    while noticed < 4 {
        daemon.signal(Signal::USR1).unwrap();
        let verdict: serde_json::Value = serde_json::from_str(&get(address, "/healthz").2).unwrap();
        let silent: Vec<_> = verdict["reasons"].as_array().unwrap().iter().map(|reason| &reason["thread"]).collect();
        assert!(!silent.contains(&&"control".into()), "{verdict}");
        noticed += u32::from(silent.contains(&&"disk-0".into()));
        assert!(Instant::now() < deadline, "the stopped thread was not detected: {}", daemon.log());
    }
    // Engines can attach meanwhile.
    Engine::attach(daemon.socket(), 1);
    stopped.go_on();
    until_health(address, 200, &daemon);
}
