//! Kills and orderly shutdowns of engines and of the daemon.

use crate::raw::{Raw, hello, sub};
use crate::roles::{Actor, ended, park_four_blocks, pidfd, storing};
use crate::{BOUND, daemon, options, sessions, until, until_status};
use kvtide_bench::private_daemon::{Options, PrivateDaemon};
use kvtide_wire::entry::{Op, Submission};
use kvtide_wire::hello::Detach;
use kvtide_wire::os::poll::readable;
use kvtide_wire::status::Status;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

fn granted(status: &Value) -> u64 {
    status["host"]["granted_bytes"].as_u64().unwrap()
}

#[test]
fn a_killed_engines_memory_comes_back_and_others_go_on() {
    let mut daemon = daemon("");
    let mut other =
        Raw::attach_as(daemon.socket(), &kvtide_wire::hello::Hello { fingerprint: [3; 32], ..hello() }).unwrap();
    park_four_blocks(&mut other, 0);
    let before = granted(&daemon.status().unwrap());
    let mut engine = Actor::start("engine", daemon.socket());
    assert_eq!(engine.hear(), "parked");
    assert!(granted(&daemon.status().unwrap()) > before, "the engine's pages take additional memory");
    engine.kill();
    let back = |status: &Value| sessions(status) == (1, 0) && granted(status) == before;
    until_status(&mut daemon, "the dead engine's session and memory are free", back);
    assert_eq!(other.status(sub(Op::Resume)), Status::Ok);
}

#[test]
fn the_lease_ends_with_the_process_though_a_helper_holds_the_socket() {
    let mut daemon = daemon("");
    let mut engine = Actor::start("engine-with-helper", daemon.socket());
    let helper: u32 = engine.hear().parse().unwrap();
    let helper_end = pidfd(helper);
    assert_eq!(sessions(&daemon.status().unwrap()), (1, 0));
    engine.kill();
    let back = |status: &Value| sessions(status) == (0, 0) && granted(status) == 0;
    until_status(&mut daemon, "the dead engine's session and memory are free", back);
    assert_eq!(readable(&[helper_end.as_fd()], Duration::ZERO).unwrap(), 0, "the helper must still live");
    assert!(
        daemon.log().contains("the process has exited"),
        "the exit was not detected by the pidfd: {}",
        daemon.log()
    );
    kill_process(Pid::from_raw(helper as i32).unwrap(), Signal::KILL).unwrap();
    ended(&helper_end);
}

#[test]
fn what_a_lost_engine_may_still_write_waits_for_its_exit() {
    let mut daemon = daemon("");
    let mut engine = Actor::start("leaves-while-storing", daemon.socket());
    assert_eq!(engine.hear(), "left");
    let quarantined = |status: &Value| status["spaces"][0]["occupancy"]["host_frames_quarantined"].as_u64();
    let waits_for_exit = |status: &Value| sessions(status) == (0, 1) && quarantined(status) > Some(0);
    until_status(&mut daemon, "memory that the engine may still write is in quarantine", waits_for_exit);
    let mut other = Raw::attach(daemon.socket());
    park_four_blocks(&mut other, 0);
    assert_eq!(sessions(&daemon.status().unwrap()), (1, 1));
    engine.kill();
    let free = |status: &Value| sessions(status) == (1, 0) && quarantined(status) == Some(0);
    until_status(&mut daemon, "the memory of the dead engine is free", free);
}

/// The first engine has taken all of the host memory.
#[test]
fn what_an_engine_has_let_go_of_another_gets_when_it_asks() {
    let memory = Options { host_bytes: Some(256 << 10), slab_bytes: Some(64 << 10), ..options("") };
    let mut daemon = PrivateDaemon::start(&memory).unwrap();
    let fill = |raw: &mut Raw| {
        let mut held = 0;
        while let Status::Ok = park(raw, held) {
            held += 1;
        }
        held
    };
    let other = |n| kvtide_wire::hello::Hello { fingerprint: [n; 32], ..hello() };
    let mut first = Raw::attach(daemon.socket());
    let held = fill(&mut first);
    let full = granted(&daemon.status().unwrap());
    assert!(held > 1 && full > 0, "{held} sequences, {full} bytes");
    let mut second = Raw::attach_as(daemon.socket(), &other(2)).unwrap();
    assert_eq!(park(&mut second, 0), Status::NoSpace, "all host memory is in use");
    for seq in 0..held {
        assert_eq!(first.status(Submission { seq, ..sub(Op::SeqDrop) }), Status::Ok);
    }
    assert_eq!(granted(&daemon.status().unwrap()), full, "memory is returned only on request");
    // An engine without an earlier rejection gets the memory at its first request, without a delay.
    let mut third = Raw::attach_as(daemon.socket(), &other(3)).unwrap();
    assert_eq!(fill(&mut third), held, "it gets all memory of the first engine");
    // A detached engine's memory is available to the next engine, even before the daemon's threads have processed the detach.
    for n in 4..40 {
        let next = Raw::attach_as(daemon.socket(), &other(n)).unwrap();
        // Closing the socket would not do: a process that another test forks holds it until it runs its program.
        third.socket.send(&Detach.encode(), &[]).unwrap();
        third = next;
        assert_eq!(fill(&mut third), held, "follower {n}: {}", daemon.log());
    }
    // An engine that was rejected gets memory once some is free.
    drop(third);
    until(|| format!("still rejected: {}", daemon.log()), || park(&mut second, 0) == Status::Ok);
}

/// Park four blocks of a sequence, or drop it on failure. Return the status.
fn park(raw: &mut Raw, seq: u32) -> Status {
    let steps = [
        Submission { seq, ..sub(Op::SeqCreate) },
        Submission { seq, count: 4, ..sub(Op::Reserve) },
        Submission { seq, value: 60, ..sub(Op::Commit) },
        Submission { seq, ..sub(Op::Park) },
    ];
    let failed = steps.into_iter().map(|step| raw.status(step)).find(|status| *status != Status::Ok);
    if failed.is_some() {
        assert_eq!(raw.status(Submission { seq, ..sub(Op::SeqDrop) }), Status::Ok);
    }
    failed.unwrap_or(Status::Ok)
}

/// Wait until all threads of a process have stopped.
fn stopped(pid: u32) {
    let stat = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stat")).unwrap();
    let state = |stat: String| stat.rsplit(") ").next().unwrap().starts_with('T');
    let tasks = || std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    until(|| "the process did not stop", || tasks().all(|task| state(stat(task.unwrap()))));
}

/// A process may go on running for days after its sessions end.
#[test]
fn what_an_engine_that_detaches_was_storing_is_free_while_it_lives() {
    let mut daemon = daemon("");
    for closes in [false, true] {
        let raw = storing(daemon.socket());
        // Closed while a message about host memory is unread: the daemon sees a connection reset before the detach message.
        if closes {
            daemon.signal(Signal::STOP).unwrap();
            stopped(daemon.pid());
        }
        raw.socket.send(&Detach.encode(), &[]).unwrap();
        let _open = (!closes).then_some(raw);
        daemon.signal(Signal::CONT).unwrap();
        let back = |status: &Value| sessions(status) == (0, 0) && granted(status) == 0;
        until_status(&mut daemon, "the session and its memory are free", back);
    }
    assert_eq!(daemon.log().matches("ended: detached").count(), 2, "{}", daemon.log());
}

#[test]
fn returned_memory_is_free_though_an_engine_keeps_it_mapped() {
    let mut daemon = daemon("");
    let mut raw = Raw::attach(daemon.socket());
    park_four_blocks(&mut raw, 0);
    let Raw { socket, side, memory, .. } = raw;
    let allocated = |fd: &std::os::fd::OwnedFd| rustix::fs::fstat(fd).unwrap().st_blocks;
    assert!(!memory.is_empty() && memory.iter().all(|fd| allocated(fd) > 0), "a slab is allocated completely");
    drop((socket, side));
    until_status(&mut daemon, "the memory is free", |status| granted(status) == 0);
    assert!(
        memory.iter().all(|fd| allocated(fd) == 0),
        "the pages are freed although the engine still has them mapped"
    );
}

#[test]
fn engines_killed_at_any_moment_leave_nothing() {
    let mut daemon = daemon("");
    let mut other = Raw::attach(daemon.socket());
    for moment in 0..12 {
        let mut engine = Actor::start("busy", daemon.socket());
        // The line reports the end of a round. The scheduler decides where in the next round the kill takes effect.
        while engine.hear() != moment.to_string() {}
        engine.kill();
        assert_eq!(other.status(sub(Op::Nop)), Status::Ok);
    }
    until_status(&mut daemon, "all dead engines' sessions are removed", |status| sessions(status) == (1, 0));
    park_four_blocks(&mut other, 0);
    drop(other);
    until_status(&mut daemon, "all sessions and memory are free", |status| {
        granted(status) == 0 && sessions(status) == (0, 0)
    });
}

#[test]
fn a_killed_daemon_is_seen_at_once_and_the_next_one_takes_its_engines() {
    let mut first = daemon("");
    let mut raw = Raw::attach(first.socket());
    assert_eq!(raw.status(sub(Op::Nop)), Status::Ok);
    first.signal(Signal::KILL).unwrap();
    first.wait(BOUND).unwrap();
    assert_eq!(raw.expelled(), None, "a killed daemon sends no message");
    let second = daemon(&format!("[daemon]\nsocket = \"{}\"\n", first.socket().display()));
    assert_eq!(Raw::attach(first.socket()).status(sub(Op::Nop)), Status::Ok);
    drop(second);
}

#[test]
fn sigterm_drains_and_removes_the_socket() {
    let mut daemon = daemon("");
    let mut raw = Raw::attach(daemon.socket());
    park_four_blocks(&mut raw, 0);
    // The resume stays in flight: jobs load the pages, and this engine ends jobs only while it waits for a completion.
    raw.submit(0, &sub(Op::Resume));
    let status = daemon.status().unwrap();
    assert_eq!(sessions(&status), (1, 0));
    daemon.signal(Signal::TERM).unwrap();
    let resumed = raw.completion(0).unwrap();
    assert_eq!((Op::from_code(resumed.op), resumed.status), (Some(Op::Resume), Status::Ok.code()));
    let disconnect = raw.expelled().unwrap();
    assert_eq!((disconnect.status, disconnect.text.as_str()), (Status::Daemon, "the daemon is shutting down"));
    assert!(daemon.wait(BOUND).unwrap().success());
    assert!(!daemon.socket().exists(), "{}", daemon.log());
    assert!(daemon.log().contains("shutdown complete"), "{}", daemon.log());
}

#[test]
fn a_drain_ends_though_an_engine_never_ends_its_jobs() {
    let mut daemon = daemon("[daemon]\ndrain_ms = 100\n");
    let mut raw = Raw::attach(daemon.socket());
    park_four_blocks(&mut raw, 0);
    raw.submit(0, &sub(Op::Resume));
    daemon.status().unwrap();
    daemon.signal(Signal::TERM).unwrap();
    let disconnect = raw.expelled().unwrap();
    assert_eq!(disconnect.status, Status::Daemon);
    assert!(daemon.wait(BOUND).unwrap().success());
    assert!(daemon.log().contains("did not end within the grace"), "{}", daemon.log());
}

#[test]
fn an_engine_that_never_stops_asking_does_not_put_the_end_off() {
    let mut daemon = daemon("[daemon]\ndrain_ms = 60000\nspin_us = 100000\n");
    let mut raw = Raw::attach(daemon.socket());
    daemon.signal(Signal::TERM).unwrap();
    let deadline = std::time::Instant::now() + BOUND;
    while raw.disconnect.is_none() {
        assert!(std::time::Instant::now() < deadline, "the daemon still answers: {}", daemon.log());
        raw.submit(0, &sub(Op::Nop));
        if raw.completion(0).is_none() {
            break;
        }
    }
    assert_eq!(raw.expelled().unwrap().status, Status::Daemon);
    assert!(daemon.wait(BOUND).unwrap().success());
}

#[test]
fn requests_during_a_drain_are_refused() {
    let mut daemon = daemon("[daemon]\ndrain_ms = 60000\n");
    let mut raw = Raw::attach(daemon.socket());
    park_four_blocks(&mut raw, 0);
    raw.submit(1, &sub(Op::Resume));
    daemon.status().unwrap();
    daemon.signal(Signal::TERM).unwrap();
    // The daemon removes the socket before it shuts down the spaces. From then on the kernel rejects connections.
    until(|| "the socket stays", || !daemon.socket().exists());
    let mut refused = Status::Ok;
    let ask = || {
        raw.submit(0, &Submission { tag: 1, ..sub(Op::Nop) });
        refused = raw.completion_without_jobs(0).map_or(Status::Daemon, |done| Status::from_code(done.status).unwrap());
        refused != Status::Ok
    };
    until(|| "requests are not refused", ask);
    assert_eq!(refused, Status::Daemon);
    assert_eq!(raw.completion(1).unwrap().status, Status::Ok.code());
    assert_eq!(raw.expelled().unwrap().status, Status::Daemon);
    assert!(daemon.wait(BOUND).unwrap().success());
}

#[test]
fn a_private_daemon_ends_with_its_killed_owner() {
    let mut owner = Actor::start("owner", Path::new("-"));
    let said = owner.hear();
    let [pid, dir, nvme_dir] = said.split(' ').collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert!(Path::new(nvme_dir).join("kvtide.store").exists());
    let daemon = pidfd(pid.parse().unwrap());
    owner.kill();
    ended(&daemon);
    assert!(!Path::new(dir).exists() && !Path::new(nvme_dir).exists(), "the daemon left files behind");
}
