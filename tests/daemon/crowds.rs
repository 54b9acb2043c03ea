//! Many connections at the socket, silent or with invalid messages: engines can still attach.

use crate::raw::{Raw, hello};
use crate::tokens::{A, Files, with};
use crate::{BOUND, daemon, options, sessions, until, until_status};
use kvtide_bench::private_daemon::PrivateDaemon;
use kvtide_wire::error::Error;
use kvtide_wire::hello::{FromDaemon, MESSAGE_MAX, Welcome};
use kvtide_wire::os::session::attach;
use kvtide_wire::os::socket::{Received, Socket};
use kvtide_wire::status::Status;
use rustix::process::{Signal, Uid};
use std::fs::{self, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// A user that no domain names.
const STRANGER: u32 = 12_345;
/// A handshake timeout longer than all waits of these tests.
const PATIENT: &str = "[daemon]\nhandshake_ms = 60000\nsocket_mode = \"0666\"\n";

/// Run a closure as a user that no domain names. Return `None` without root.
fn as_stranger<T: Send + 'static>(name: &str, run: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED {name}: needs root, to become another user");
        return None;
    }
    let thread = std::thread::spawn(move || {
        // The system call changes only this thread; the library function changes all threads.
        rustix::thread::set_thread_uid(Uid::from_raw(STRANGER)).unwrap();
        run()
    });
    Some(thread.join().unwrap())
}

/// Start a daemon with a socket that is open to all users.
fn open_daemon(config: &str) -> PrivateDaemon {
    let daemon = PrivateDaemon::start(&options(config)).unwrap();
    fs::set_permissions(daemon.dir(), Permissions::from_mode(0o755)).unwrap();
    daemon
}

/// Open `count` silent connections, or fewer if the daemon's queue is full.
fn crowd(path: &Path, count: usize) -> Vec<Socket> {
    (0..count).map_while(|_| Socket::connect(path).ok()).collect()
}

/// Return the daemon's answer on a connection, if it has arrived.
fn heard(socket: &Socket) -> Option<Welcome> {
    let mut buffer = vec![0; MESSAGE_MAX];
    match socket.receive(&mut buffer, 0).unwrap() {
        Received::Empty => None,
        Received::Closed => panic!("closed without an answer"),
        Received::Message(len, _) => match FromDaemon::decode(&buffer[..len]).unwrap() {
            FromDaemon::Welcome(welcome) => Some(welcome),
            other => panic!("no welcome: {other:?}"),
        },
    }
}

/// Wait for the daemon's answer on a connection.
fn answer(socket: &Socket) -> Welcome {
    let mut buffer = vec![0; MESSAGE_MAX];
    let (len, _) = socket.receive_within(&mut buffer, 0, BOUND).unwrap();
    let FromDaemon::Welcome(welcome) = FromDaemon::decode(&buffer[..len]).unwrap() else { panic!("no welcome") };
    welcome
}

#[test]
fn a_user_in_no_domain_is_refused_before_it_says_anything() {
    let name = "a_user_in_no_domain_is_refused_before_it_says_anything";
    let daemon = open_daemon(PATIENT);
    let path = daemon.socket().to_owned();
    let Some(silent) = as_stranger(name, move || crowd(&path, 200)) else { return };
    Raw::attach(daemon.socket());
    for socket in &silent {
        let welcome = heard(socket).expect("it connected before the engine that attached");
        assert_eq!(welcome.status, Status::Permission, "{}", welcome.text);
    }
}

#[test]
fn where_tokens_are_accepted_strangers_have_few_places_and_keep_no_one_out() {
    let name = "where_tokens_are_accepted_strangers_have_few_places_and_keep_no_one_out";
    let files = Files::new();
    let patient = "[limits]\nhandshakes_max = 64\n[daemon]\nhandshake_ms = 60000\n";
    let mut daemon = open_daemon(&files.config().replace("[daemon]\n", patient));
    let path = daemon.socket().to_owned();
    let Some(silent) = as_stranger(name, move || crowd(&path, 100)) else { return };
    assert_eq!(silent.len(), 100, "the daemon accepts connections even when no handshake entries are free");
    Raw::attach(daemon.socket());
    let refused: Vec<Welcome> = silent.iter().filter_map(heard).collect();
    assert_eq!(silent.len() - refused.len(), 8, "an eighth of handshakes_max");
    let text = "uid 12345 has 8 connections in handshake, at most 8 are allowed (limits.handshakes_max)";
    assert!(
        refused.iter().all(|answer| answer.status == Status::Again && answer.text.contains(text)),
        "{:?}",
        refused[0]
    );
    // The user of the silent connections also attaches, with its token.
    let path = daemon.socket().to_owned();
    let attached = as_stranger(name, move || Raw::attach_as(&path, &with(A)).unwrap());
    until_status(&mut daemon, "only the user with the token is attached", |status| sessions(status).0 == 1);
    drop(attached);
}

#[test]
fn an_attach_succeeds_while_its_own_user_has_taken_all_places() {
    let daemon = daemon(&format!("{PATIENT}[limits]\nhandshakes_max = 4\n"));
    let silent = crowd(daemon.socket(), 50);
    Raw::attach(daemon.socket());
    let refused = silent.iter().filter_map(heard).filter(|answer| answer.status == Status::Again).count();
    assert!(refused >= 49, "{refused} of 50 were disconnected");
    Raw::attach(daemon.socket());
}

#[test]
fn a_silent_connection_ends_within_a_second_by_default() {
    let mut daemon = daemon("");
    let silent = crowd(daemon.socket(), 1);
    let welcome = answer(&silent[0]);
    assert_eq!(welcome.status, Status::TimedOut);
    assert!(welcome.text.contains("no handshake message within 1s"), "{}", welcome.text);
    assert_eq!(daemon.status().unwrap()["session_totals"]["refused"], 1);
}

/// Wait until a thread sleeps in the kernel or has ended.
fn until_asleep<T>(tid: i32, thread: &std::thread::JoinHandle<T>) {
    let asleep = || {
        let stat = fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))
    };
    until(|| "the thread neither sleeps nor ends", || thread.is_finished() || asleep());
}

#[test]
fn an_attach_waits_while_the_daemons_queue_is_full() {
    let daemon = daemon("");
    daemon.signal(Signal::STOP).unwrap();
    let silent = crowd(daemon.socket(), 2000);
    assert!(silent.len() < 2000, "the queue is not bounded");
    let full = attach(daemon.socket(), &hello(), Duration::ZERO).map(|_| ()).unwrap_err();
    assert!(matches!(full, Error::Refused { status: Status::Again, .. }), "{full}");
    assert!(full.to_string().contains("its queue of connections is still full after 0 ms"), "{full}");
    let path = daemon.socket().to_owned();
    let (say, hear) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        say.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        Raw::attach_as(&path, &hello()).map(|_| ())
    });
    until_asleep(hear.recv().unwrap(), &thread);
    daemon.signal(Signal::CONT).unwrap();
    thread.join().unwrap().unwrap();
}

#[test]
fn half_a_hello_and_descriptors_are_refused_and_cost_no_place() {
    let mut daemon = daemon(&format!("{PATIENT}[limits]\nhandshakes_max = 1\n"));
    let whole = hello().encode().unwrap();
    // One after the other: a connection that has sent nothing is replaced by a newer one.
    let connect = || Socket::connect(daemon.socket()).unwrap();
    let half = connect();
    half.send(&whole[..whole.len() / 2], &[]).unwrap();
    let cut = answer(&half);
    let passing = connect();
    passing.send(&whole, &[half.as_fd()]).unwrap();
    let passed = answer(&passing);
    assert_eq!((cut.status, passed.status), (Status::Protocol, Status::Protocol));
    // The last one sends an invalid message and never reads.
    let mute = connect();
    mute.send(b"nonsense", &[]).unwrap();
    assert!(passed.text.contains("more than 0 descriptors"), "{}", passed.text);
    Raw::attach(daemon.socket());
    assert_eq!(daemon.status().unwrap()["session_totals"]["refused"], 3);
}
