//! Peers that may attach, and the errors for all others.

use crate::raw::{Raw, hello};
use crate::{BOUND, daemon, options, sessions, until_status};
use kvtide_bench::private_daemon::PrivateDaemon;
use kvtide_wire::error::Error;
use kvtide_wire::hello::{FromDaemon, Hello, Protocol, Welcome};
use kvtide_wire::layout::VERSION;
use kvtide_wire::os::session::attach;
use kvtide_wire::os::socket::{FDS_MAX, Socket};
use kvtide_wire::status::Status;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// `nobody`.
const UNPRIVILEGED: u32 = 65534;

/// Send bytes as a handshake message and return the daemon's answer.
fn answer(path: &Path, bytes: &[u8]) -> Welcome {
    let socket = Socket::connect(path).unwrap();
    socket.send(bytes, &[]).unwrap();
    let mut buffer = vec![0; 16384];
    let (len, _) = socket.receive_within(&mut buffer, FDS_MAX, BOUND).unwrap();
    let FromDaemon::Welcome(welcome) = FromDaemon::decode(&buffer[..len]).unwrap() else { panic!("not a welcome") };
    welcome
}

pub fn refusal(path: &Path, hello: &Hello) -> (Status, String) {
    match attach(path, hello, BOUND) {
        Err(Error::Refused { status, text }) => (status, text),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_socket_in_use_is_refused_and_its_daemon_goes_on() {
    let first = daemon("");
    let second = Command::new(env!("CARGO_BIN_EXE_kvtided"))
        .arg("--dir")
        .arg(first.dir().join("second"))
        .arg("--socket")
        .arg(first.socket())
        .args(["--http", ""])
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    let error = String::from_utf8(second.stderr).unwrap();
    assert!(error.contains("another daemon serves it") && error.contains("kvtide.sock"), "{error}");
    Raw::attach(first.socket());
}

#[test]
fn a_killed_daemons_socket_is_taken_over() {
    let mut first = daemon("");
    first.signal(rustix::process::Signal::KILL).unwrap();
    first.wait(BOUND).unwrap();
    assert!(first.socket().exists());
    let config = format!("[daemon]\nsocket = \"{}\"\n", first.socket().display());
    let second = daemon(&config);
    Raw::attach(first.socket());
    drop(second);
}

#[test]
fn a_user_without_a_domain_is_refused_by_name() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED a_user_without_a_domain_is_refused_by_name: needs root, to become another user");
        return;
    }
    let mut daemon = PrivateDaemon::start(&options("[daemon]\nsocket_mode = \"0666\"\n")).unwrap();
    std::fs::set_permissions(daemon.dir(), Permissions::from_mode(0o755)).unwrap();
    let path = daemon.socket().to_owned();
    // The system call changes only this thread; the library function changes all threads.
    let refused = std::thread::spawn(move || {
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(UNPRIVILEGED)).unwrap();
        refusal(&path, &hello())
    });
    let (status, text) = refused.join().unwrap();
    assert_eq!(status, Status::Permission);
    assert!(text.contains("uid 65534") && text.contains("[[domains]]"), "{text}");
    Raw::attach(daemon.socket());
    assert_eq!(daemon.status().unwrap()["session_totals"]["refused"], 1, "a permanent rejection is not retried");
}

#[test]
fn a_user_whom_the_sockets_mode_keeps_out_gets_the_systems_error() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED a_user_whom_the_sockets_mode_keeps_out_gets_the_systems_error: needs root");
        return;
    }
    let daemon = daemon("[daemon]\nsocket_mode = \"0600\"\n");
    std::fs::set_permissions(daemon.dir(), Permissions::from_mode(0o755)).unwrap();
    let path = daemon.socket().to_owned();
    let refused = std::thread::spawn(move || {
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(UNPRIVILEGED)).unwrap();
        attach(&path, &hello(), BOUND).map(|_| ()).unwrap_err()
    });
    let error = refused.join().unwrap();
    let denied = rustix::io::Errno::ACCESS.raw_os_error();
    assert!(matches!(error, Error::Os { errno, .. } if errno == denied), "{error}");
}

#[test]
fn a_client_of_another_release_is_served_if_a_version_is_in_common() {
    let daemon = daemon("");
    let mut bytes = hello().encode().unwrap();
    // Its newest version is ours and the next one; and it is from before versions were agreed on.
    for (newest, features) in [(VERSION as u16 + 1, !0 >> 16), (0, 0)] {
        bytes[16..24].copy_from_slice(&(u64::from(newest) << 48 | features).to_le_bytes());
        let welcome = answer(daemon.socket(), &bytes);
        assert_eq!((welcome.status, welcome.protocol), (Status::Ok, Protocol::ours(0)), "{}", welcome.text);
    }
    bytes[4..8].copy_from_slice(&(VERSION + 1).to_le_bytes());
    let welcome = answer(daemon.socket(), &bytes);
    assert_eq!(welcome.status, Status::Version);
    assert!(welcome.text.contains("install a newer kvtide on this side"), "{}", welcome.text);
}

#[test]
fn a_malformed_hello_is_told_which_field() {
    let daemon = daemon("");
    let welcome = answer(daemon.socket(), b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(welcome.status, Status::Protocol);
    assert!(welcome.text.contains("magic"), "{}", welcome.text);
    let bytes = hello().encode().unwrap();
    for cut in [1, 4, 15, 16, 40, bytes.len() - 1] {
        let welcome = answer(daemon.socket(), &bytes[..cut]);
        assert_ne!(welcome.status, Status::Ok, "cut at {cut}");
        assert!(!welcome.text.is_empty());
    }
    let welcome = answer(daemon.socket(), &vec![0xff; 60_000]);
    assert_eq!(welcome.status, Status::Protocol, "{}", welcome.text);
    Raw::attach(daemon.socket());
}

#[test]
fn more_than_the_limits_is_refused_with_the_limits_name() {
    let daemon = daemon("[limits]\nlanes_max = 2\nsessions_max = 2\nspaces_max = 1\nspace_sessions_max = 2\n");
    let (status, text) = refusal(daemon.socket(), &Hello { lanes: 3, ..hello() });
    assert_eq!(status, Status::Limit);
    assert!(text.contains("3 requested, at most 2 allowed (limits.lanes_max)"), "{text}");
    let _first = Raw::attach(daemon.socket());
    let (status, text) = refusal(daemon.socket(), &Hello { fingerprint: [9; 32], ..hello() });
    assert_eq!(status, Status::Limit);
    assert!(text.contains("limits.spaces_max"), "{text}");
    let _second = Raw::attach(daemon.socket());
    let (status, text) = refusal(daemon.socket(), &hello());
    assert_eq!(status, Status::Limit);
    assert!(text.contains("limits.sessions_max"), "{text}");
}

#[test]
fn a_space_that_the_core_does_not_take_is_refused_with_its_reason() {
    let config = "[limits]\nblocks_max = 268435456\nseqs_max = 1048576\nspace_sessions_max = 256\n";
    let mut daemon = daemon(config);
    // Block ids for the tier 0 of the maximum number of sessions.
    let large = Hello { tier0_frames: vec![1 << 20; hello().tier0_frames.len()], ..hello() };
    let (status, text) = refusal(daemon.socket(), &large);
    assert_eq!(status, Status::Limit);
    assert!(text.contains("cannot create the space") && text.contains("blocks_max"), "{text}");
    until_status(&mut daemon, "the space is removed", |status| status["spaces"].as_array().unwrap().is_empty());
}

#[test]
fn a_silent_peer_is_told_that_its_time_is_over() {
    let daemon = daemon("[daemon]\nhandshake_ms = 50\n");
    let silent: Vec<Socket> = (0..5).map(|_| Socket::connect(daemon.socket()).unwrap()).collect();
    Raw::attach(daemon.socket());
    for socket in silent {
        let mut buffer = vec![0; 16384];
        let (len, _) = socket.receive_within(&mut buffer, 0, BOUND).unwrap();
        let FromDaemon::Welcome(welcome) = FromDaemon::decode(&buffer[..len]).unwrap() else { panic!() };
        assert_eq!(welcome.status, Status::TimedOut);
        assert!(welcome.text.contains("no handshake message within 50ms"), "{}", welcome.text);
    }
}

#[test]
fn equal_geometry_and_fingerprint_share_a_space_and_nothing_else_does() {
    let mut daemon = daemon("");
    let _a = Raw::attach(daemon.socket());
    let _b = Raw::attach_as(daemon.socket(), &Hello { name: "another name".into(), ..hello() }).unwrap();
    let _c = Raw::attach_as(daemon.socket(), &Hello { fingerprint: [2; 32], ..hello() }).unwrap();
    let d = Raw::attach_as(daemon.socket(), &Hello { page_tokens: 32, ..hello() }).unwrap();
    let status = daemon.status().unwrap();
    assert_eq!(status["spaces"].as_array().unwrap().len(), 3);
    assert_eq!(sessions(&status), (4, 0));
    drop(d);
    let back = |status: &serde_json::Value| status["spaces"].as_array().unwrap().len() == 2;
    let status = until_status(&mut daemon, "the vacant space is removed", back);
    assert_eq!(status["session_totals"]["ended"], 1);
}
