//! A device that does not answer: seen, said, and survived.

use crate::BOUND;
use crate::http::{get, metric};
use crate::nvme::{Dir, Engine, NVME_BYTES, nvme_options};
use crate::threads::Stopped;
use kvtide_daemon::cli::private_daemon::{Options, PrivateDaemon};
use std::net::SocketAddr;
use std::time::Instant;

/// Asks until `/healthz` answers with this code; the answer.
fn until_health(address: SocketAddr, wanted: u16, daemon: &PrivateDaemon) -> serde_json::Value {
    let deadline = Instant::now() + BOUND;
    loop {
        let (code, _, body) = get(address, "/healthz");
        if code == wanted {
            return serde_json::from_str(&body).unwrap();
        }
        assert!(Instant::now() < deadline, "never {wanted}: {code} {body}\n{}", daemon.log());
    }
}

#[test]
fn a_device_that_hangs_is_unhealthy_and_its_pages_come_back_with_it() {
    let dir = Dir::new();
    let tier = "io = \"threads\"\ndepth = 2\ntimeout_ms = 200";
    let options = Options { http: Some("127.0.0.1:0".into()), ..nvme_options(&dir, NVME_BYTES, tier, "") };
    let mut daemon = PrivateDaemon::start(&options).unwrap();
    let status = crate::until_status(&mut daemon, "served HTTP", |status| status["http"].is_string());
    let address = status["http"].as_str().unwrap().parse().unwrap();
    assert_eq!(get(address, "/readyz").0, 200);

    // A thread in the middle of a read or write that never ends is what a hanging device looks like.
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
