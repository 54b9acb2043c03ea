//! Files deleted, renamed or replaced under a running daemon: it reports that, and reports no block as durable that a restart
//! would lose.

use crate::http::{get, metric, served};
use crate::nvme::{Dir, Engine, NVME_BYTES, nvme_options};
use crate::raw::{Raw, hello};
use crate::{BOUND, daemon};
use kvtide_bench::private_daemon::{Options, PrivateDaemon};
use kvtide_wire::entry::Level;
use serde_json::Value;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

fn healthz(address: SocketAddr) -> Value {
    serde_json::from_str(&get(address, "/healthz").2).unwrap()
}

/// Wait until `wanted` holds for the texts of the degraded reasons, and return them.
fn until_degraded(address: SocketAddr, wanted: impl Fn(&[String]) -> bool) -> Vec<String> {
    let deadline = Instant::now() + BOUND;
    loop {
        let health = healthz(address);
        let degraded = health["degraded"].as_array().unwrap();
        let texts: Vec<_> = degraded.iter().map(|reason| reason["text"].as_str().unwrap().to_owned()).collect();
        if wanted(&texts) {
            return texts;
        }
        assert!(Instant::now() < deadline, "timed out waiting for a change: {health:#}");
        std::thread::yield_now();
    }
}

/// Run a daemon with one disk, change the disk's directory with `by`, and expect a degraded reason with the text `wanted`.
fn undone(by: impl Fn(&Path), wanted: &str) {
    let dir = Dir::new();
    let options = nvme_options(&dir, NVME_BYTES, "", "");
    let mut daemon = PrivateDaemon::start(&Options { http: Some("127.0.0.1:0".into()), ..options }).unwrap();
    let address = daemon.status().unwrap()["http"].as_str().unwrap().parse().unwrap();
    let mut engine = Engine::attach(daemon.socket(), 1);
    let seq = engine.write(4).unwrap();
    assert_eq!(engine.channel.publish(seq, 0, 0, &[1, 2], Level::Durable, BOUND).unwrap(), Level::Durable);
    by(dir.store().parent().unwrap());
    // At once, before the next periodic check: a flush of a deleted file makes no block durable.
    let published = engine.channel.publish(seq, 2, 2, &[3, 4], Level::Durable, BOUND).map_err(|error| error.status());
    assert_ne!(published, Ok(Level::Durable), "{wanted}\n{}", daemon.log());
    let texts = until_degraded(address, |texts| !texts.is_empty());
    let named = |text: &str| text.contains(wanted) && text.contains("kvtide.store") && text.contains("restart");
    assert!(texts.len() == 1 && named(&texts[0]), "{wanted}: {texts:?}");
    assert_eq!(metric(&get(address, "/metrics").2, "kvtide_disk_out_of_service", &[]), Some(1.0));
    let status = Command::new(env!("CARGO_BIN_EXE_kvtide")).args(["status", "--http", &address.to_string()]).output();
    let status = String::from_utf8(status.unwrap().stdout).unwrap();
    assert!(status.contains(&format!("DEGRADED   {}", texts[0])), "{status}");
    let log = fs::read_to_string(daemon.dir().join("daemon.log")).unwrap();
    assert_eq!(
        log.lines().filter(|line| line.contains("): out of service: ") && line.contains(wanted)).count(),
        1,
        "{log}"
    );
}

#[test]
fn a_store_that_is_deleted_is_out_of_service() {
    undone(|disk| fs::remove_dir_all(disk).unwrap(), "was deleted");
    undone(|disk| fs::remove_file(disk.join("kvtide.store")).unwrap(), "was deleted");
}

#[test]
fn a_store_that_is_renamed_is_out_of_service() {
    undone(|disk| fs::rename(disk, disk.with_extension("old")).unwrap(), "is not at its path any more");
    undone(|disk| fs::rename(disk.join("kvtide.store"), disk.join("old")).unwrap(), "is not at its path any more");
}

#[test]
fn a_store_in_whose_place_another_file_stands_is_out_of_service() {
    let replace = |disk: &Path| {
        let (store, old) = (disk.join("kvtide.store"), disk.join("old"));
        fs::rename(&store, &old).unwrap();
        fs::copy(&old, &store).unwrap();
    };
    undone(replace, "another file is at its path");
}

#[test]
fn a_store_that_was_away_stays_out_of_service_when_it_is_back() {
    let dir = Dir::new();
    let options = nvme_options(&dir, NVME_BYTES, "", "");
    let mut daemon = PrivateDaemon::start(&Options { http: Some("127.0.0.1:0".into()), ..options }).unwrap();
    let address = daemon.status().unwrap()["http"].as_str().unwrap().parse().unwrap();
    let disk = dir.store().parent().unwrap().to_owned();
    let away = disk.with_extension("away");
    fs::rename(&disk, &away).unwrap();
    // Without writes, the periodic check finds it.
    until_degraded(address, |texts| !texts.is_empty());
    fs::rename(&away, &disk).unwrap();
    let mut engine = Engine::attach(daemon.socket(), 1);
    let seq = engine.write(4).unwrap();
    let published = engine.channel.publish(seq, 0, 0, &[1, 2], Level::Durable, BOUND).map_err(|error| error.status());
    assert_ne!(published, Ok(Level::Durable), "{}", daemon.log());
    assert_eq!(until_degraded(address, |_| true).len(), 1);
    assert!(daemon.stop().unwrap().success());
    drop(engine);
    let mut daemon = PrivateDaemon::start(&nvme_options(&dir, NVME_BYTES, "", "")).unwrap();
    assert_eq!(daemon.status().unwrap()["degraded"], serde_json::json!([]), "the disk serves again after a restart");
}

#[test]
fn a_socket_that_is_deleted_is_made_again() {
    let daemon = daemon("");
    fs::remove_file(daemon.socket()).unwrap();
    let deadline = Instant::now() + BOUND;
    // The path is there before the daemon listens.
    while let Err(error) = Raw::attach_as(daemon.socket(), &hello()) {
        assert!(Instant::now() < deadline, "{error}: {}", daemon.log());
        std::thread::yield_now();
    }
    let log = daemon.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("the socket /")).collect();
    let [line] = lines[..] else { panic!("one line about the socket, not: {lines:?}") };
    assert!(line.contains("WARN") && line.contains("was deleted or replaced; bound again"), "{line}");
}

#[test]
fn a_socket_that_another_process_replaced_is_said_and_left_to_it() {
    let (mut daemon, address) = served("");
    let path = daemon.socket().to_owned();
    fs::rename(&path, path.with_extension("old")).unwrap();
    let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let texts = until_degraded(address, |texts| !texts.is_empty());
    assert!(texts[0].contains("engines cannot attach") && texts[0].contains("kvtide.sock"), "{texts:?}");
    drop(other);
    until_degraded(address, |texts| texts.is_empty());
    Raw::attach(&path);
    // Another one's socket is not removed at the end either.
    fs::remove_file(&path).unwrap();
    let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let inode = fs::metadata(&path).unwrap();
    assert!(daemon.stop().unwrap().success());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode(), inode.permissions().mode(), "it is still there");
}
