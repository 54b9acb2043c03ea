//! `kvtide status` and `kvtide top` against a real daemon, and against none.

use crate::http::served;
use crate::raw::Raw;
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

fn kvtide(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvtide")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn status_tells_people_and_programs() {
    let (daemon, address) = served("");
    let _raw = Raw::attach(daemon.socket());
    let address = address.to_string();
    let told = kvtide(&["status", "--http", &address]);
    let said = text(&told.stdout);
    assert_eq!((told.status.code(), text(&told.stderr)), (Some(0), ""), "{said}");
    for part in [
        &format!("pid {}  serving", daemon.pid()),
        "1 attached, 0 lingering",
        "space 1    raw  (domain default)",
        "  session 1 ",
    ] {
        assert!(said.contains(part), "{part} is not in:\n{said}");
    }
    let told = kvtide(&["status", "--json", "--http", &address]);
    let json: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!((told.status.code(), &json["spaces"][0]["name"]), (Some(0), &"raw".into()));
}

#[test]
fn a_daemon_that_is_not_there_is_a_clear_error() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let told = kvtide(&["status", "--http", &address]);
    assert_eq!(told.status.code(), Some(1));
    let said = text(&told.stderr);
    for part in ["no daemon answers on", address.as_str(), "refused", "--http ADDR"] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    assert!(told.stdout.is_empty());
}

#[test]
fn top_without_a_terminal_says_what_to_use() {
    let told = kvtide(&["top"]);
    assert_eq!((told.status.code(), told.stdout.is_empty()), (Some(2), true));
    assert!(text(&told.stderr).contains("needs a terminal") && text(&told.stderr).contains("status --json"));
}
