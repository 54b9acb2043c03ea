//! Both sides of a session over real descriptors: each side reads the other's writes, and forbidden actions of the engine fail.
#![cfg(not(loom))]

use kvtide_wire::Error;
use kvtide_wire::entry::{Completion, Job, JobDone, NONE_U32, Op, Submission};
use kvtide_wire::geometry::Plane;
use kvtide_wire::half::F16;
use kvtide_wire::hello::{Hello, Limits, Protocol, Welcome};
use kvtide_wire::layout::{Shape, VERSION};
use kvtide_wire::lists::List;
use kvtide_wire::os::map::Access;
use kvtide_wire::os::memfd::Memfd;
use kvtide_wire::os::poll;
use kvtide_wire::os::session::{DaemonSide, EngineSide, attach};
use kvtide_wire::os::socket::{Listener, Received, Socket};
use kvtide_wire::score::{ScoreKind, Scores};
use kvtide_wire::status::Status;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

const SHAPE: Shape = Shape { channels: 2, depth: 4, jobs: 8, lanes: 2 };
const LIMITS: Limits =
    Limits { shape: SHAPE, blocks_max: 100, seqs_max: 10, seq_blocks_max: 20, request_timeout_us: 1_000_000 };
const SECOND: Duration = Duration::from_secs(1);

fn hello() -> Hello {
    Hello {
        protocol: Protocol::ours(0),
        name: "test".into(),
        fingerprint: [7; 32],
        identity: String::new(),
        page_tokens: 16,
        planes: vec![Plane::full(1000); 3],
        shards: 1,
        shard: 0,
        lanes: 2,
        channels: 2,
        depth: 4,
        seqs_max: 10,
        tier0_frames: vec![30],
        mapped_frames: 0,
        numa_node: None,
        relay: false,
        local: false,
        token: None,
    }
}

/// Return a path in a directory of its own.
fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("make a directory");
    let path = directory.path().join("socket");
    (directory, path)
}

/// Duplicate descriptors as if they had arrived over a socket.
fn pass(fds: &[std::os::fd::BorrowedFd<'_>]) -> Vec<OwnedFd> {
    let (a, b) = Socket::pair().expect("socket pair");
    a.send(b"x", fds).expect("send");
    let (_, fds) = b.receive_within(&mut [0; 8], 32, SECOND).expect("receive");
    fds
}

fn both() -> (DaemonSide, EngineSide) {
    let (daemon, fds) = DaemonSide::create(SHAPE, VERSION).expect("daemon's side");
    let engine = EngineSide::new(&LIMITS, VERSION, pass(&fds.as_fds())).expect("engine's side");
    (daemon, engine)
}

#[test]
fn attaches_over_a_socket_and_passes_messages_both_ways() {
    let (_dir, path) = place();
    let listener = Listener::bind(&path, 0o600).expect("listen");
    let server = std::thread::spawn(move || {
        assert_ne!(poll::readable(&[listener.as_fd()], SECOND).expect("poll"), 0);
        let socket = listener.accept().expect("accept").expect("an engine");
        let (len, fds) = {
            let mut buffer = vec![0; 16384];
            let (len, fds) = socket.receive_within(&mut buffer, 0, SECOND).expect("hello");
            assert_eq!(Hello::decode(&buffer[..len]).expect("decode"), hello());
            (len, fds)
        };
        assert!(len > 0 && fds.is_empty());
        assert_eq!(socket.peer().expect("peer").pid, std::process::id());
        assert_eq!(poll::readable(&[socket.peer_pidfd().expect("pidfd").as_fd()], Duration::ZERO).expect("poll"), 0);
        let (side, fds) = DaemonSide::create(SHAPE, VERSION).expect("daemon's side");
        let welcome = Welcome::accept(5, Protocol::ours(0), LIMITS).expect("welcome");
        socket.send(&welcome.encode(), &fds.as_fds()).expect("send");
        (side, socket)
    });
    let (socket, welcome, limits, mut engine) = attach(&path, &hello(), SECOND).expect("attach");
    let (mut daemon, server_socket) = server.join().expect("server");
    assert_eq!((welcome.session, limits), (5, LIMITS));

    let channel = &mut engine.channels[1];
    let list_len = channel.requests.write_hashes(3, &[1, u128::MAX - 1], &[]).expect("list");
    let request = Submission { op: Op::AttachPrefix as u16, tag: 3, list_len, count: 2, ..Submission::default() };
    channel.submissions.push(&request).expect("push");
    let server_channel = &mut daemon.channels[1];
    assert_eq!(server_channel.submissions.pop().expect("index"), Some(request));
    let mut list = List::default();
    server_channel.requests.copy_out(3, list_len, &mut list).expect("list");
    assert_eq!(list.hashes().expect("whole").collect::<Vec<_>>(), [1, u128::MAX - 1]);
    assert!(server_channel.requests.copy_out(3, 513, &mut list).is_err() && list.words().is_empty());
    assert!(server_channel.requests.copy_out(4, 1, &mut list).is_err());

    let list_len = server_channel.answers.write(3, &[9, 8]).expect("list");
    let answer = Completion { list_len, ..Completion::new(Op::AttachPrefix as u16, 3, Status::Ok) };
    server_channel.completions.push(&answer).expect("push");
    assert_eq!(channel.completions.pop().expect("index"), Some(answer));
    channel.answers.copy_out(3, list_len, &mut list).expect("list");
    assert_eq!(list.words(), [9, 8]);

    let job = Job { id: 77, victim_block: NONE_U32, ..Job::default() };
    daemon.jobs.push(&job).expect("push");
    assert_eq!(engine.job_rings.jobs.pop().expect("index"), Some(job));
    let done = JobDone { id: 77, bytes: 1000, ..JobDone::default() };
    engine.job_rings.done.push(&done).expect("push");
    assert_eq!(daemon.done.pop().expect("index"), Some(done));

    engine.lanes[1].position(42);
    engine.lanes[1].steps(7, 6);
    assert_eq!(daemon.lanes.read(1), Some((42, 7, 6)));
    assert_eq!((daemon.lanes.read(0), daemon.lanes.read(2)), (Some((0, 0, 0)), None));
    let scores = Scores::new(ScoreKind::Ahead, 1, 2, 3, &[], F16::NEG_INFINITY).expect("short");
    engine.lanes[1].scores.write(&scores);
    assert_eq!((daemon.scores[0].read(), daemon.scores[1].read()), (None, Some(scores)));

    drop(server_socket);
    assert!(matches!(socket.receive(&mut [0; 16], 0), Ok(Received::Closed)));
}

#[test]
fn bells_ring_only_for_sleepers_and_are_remembered() {
    let (daemon, engine) = both();
    assert!(!engine.job_rings.waker.wake(), "nobody sleeps");
    assert_eq!(poll::readable(&[daemon.bell.as_fd()], Duration::ZERO).expect("poll"), 0);
    daemon.sleeper.announce();
    for _ in 0..10_000 {
        assert!(engine.channels[0].waker.wake(), "never blocks, however full the bell");
    }
    assert_eq!(poll::readable(&[daemon.bell.as_fd()], SECOND).expect("poll"), 1);
    daemon.sleeper.awake();
    assert!(daemon.bell.quiet());
    assert_eq!(poll::readable(&[daemon.bell.as_fd()], Duration::ZERO).expect("poll"), 0);
    assert!(!engine.job_rings.waker.wake());

    engine.channels[1].sleeper.announce();
    assert!(daemon.channels[1].waker.wake() && !daemon.channels[0].waker.wake() && !daemon.copy_loop.wake());
    assert_eq!(poll::readable(&[engine.channels[1].bell.as_fd()], SECOND).expect("poll"), 1);
    engine.job_rings.sleeper.announce();
    assert!(daemon.copy_loop.wake());
    assert_eq!(poll::readable(&[engine.job_rings.bell.as_fd()], SECOND).expect("poll"), 1);
    drop(engine);
    assert!(daemon.bell.quiet(), "an eventfd knows nothing of ringers");
}

#[test]
fn the_engine_can_neither_write_region_d_nor_resize_either() {
    let (_daemon, fds) = DaemonSide::create(SHAPE, VERSION).expect("daemon's side");
    let fds = pass(&fds.as_fds());
    let bytes = rustix::fs::fstat(&fds[1]).expect("fstat").st_size as u64;
    let region = Memfd::received(fds[1].try_clone().expect("dup"), "region D", bytes).expect("sealed");
    let error = region.map(Access::ReadWrite).expect_err("FUTURE_WRITE");
    assert!(error.to_string().contains("mmap") && error.to_string().contains("errno 1"), "{error}");
    assert!(region.map(Access::ReadOnly).expect("reads").as_mut_ptr().is_none());
    for fd in &fds[..2] {
        for bytes in [0, bytes * 100] {
            assert_eq!(rustix::fs::ftruncate(fd, bytes), Err(rustix::io::Errno::PERM));
        }
        let error = rustix::fs::fcntl_add_seals(fd, rustix::fs::SealFlags::WRITE);
        assert_eq!(error, Err(rustix::io::Errno::PERM));
    }
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    assert_eq!(rustix::fs::fallocate(&fds[1], punch, 0, 4096), Err(rustix::io::Errno::PERM));
}

#[test]
fn memory_that_could_shrink_or_is_too_short_is_refused() {
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("unsealed", flags).expect("memfd");
    rustix::fs::ftruncate(&fd, 8192).expect("ftruncate");
    let error = Memfd::received(fd.try_clone().expect("dup"), "a slab", 4096).expect_err("no seals");
    assert!(error.to_string().contains("F_SEAL_SHRINK"), "{error}");
    let error = Memfd::received(fd, "a slab", 8193).expect_err("short");
    assert_eq!(error.to_string(), "size of shared memory is 8192, allowed are 8193 to 18446744073709551615");
}

#[test]
fn reserved_memory_becomes_shared_at_the_size_that_is_wanted_and_no_other() {
    use kvtide_wire::os::memfd::Reserved;
    let blocks = |fd: &Memfd| rustix::fs::fstat(fd).expect("fstat").st_blocks;
    let memfd = Reserved::take("reserved", 64 << 10, None).expect("memory").shared(20 << 10).expect("cut");
    assert_eq!((memfd.bytes(), blocks(&memfd)), (20 << 10, 40), "the bytes cut off are still allocated");
    assert_eq!(rustix::fs::ftruncate(&memfd, 4096), Err(rustix::io::Errno::PERM), "sealed");
    let error = Reserved::take("reserved", 4096, None).expect("memory").shared(8192).expect_err("longer than it is");
    assert_eq!(error.to_string(), "bytes of reserved memory is 8192, allowed are 0 to 4096");
}

#[test]
fn regions_that_disagree_with_the_welcome_are_refused() {
    let (_daemon, fds) = DaemonSide::create(SHAPE, VERSION).expect("daemon's side");
    let other = Limits { shape: Shape { lanes: 1, ..SHAPE }, ..LIMITS };
    let error = EngineSide::new(&other, VERSION, pass(&fds.as_fds())).expect_err("another shape");
    assert!(error.to_string().starts_with("region E: header is"), "{error}");
    let mut few = pass(&fds.as_fds());
    few.pop();
    let error = EngineSide::new(&LIMITS, VERSION, few).expect_err("a descriptor is missing");
    assert_eq!(error.to_string(), "welcome: descriptors is 5, expected 6");
}

#[test]
fn a_message_or_descriptors_that_do_not_fit_are_an_error() {
    let (a, b) = Socket::pair().expect("socket pair");
    a.send(&[0; 100], &[]).expect("send");
    let error = b.receive(&mut [0; 99], 0).expect_err("cut off");
    assert!(error.to_string().contains("more than 99 bytes"), "{error}");
    for room in [0, 1] {
        a.send(b"x", &[a.as_fd(), b.as_fd()]).expect("send");
        let error = b.receive(&mut [0; 99], room).expect_err("cut off");
        assert!(error.to_string().contains(&format!("more than {room} descriptors")), "{error}");
    }
    let (_, fds) = {
        a.send(b"x", &[a.as_fd()]).expect("send");
        b.receive_within(&mut [0; 9], 1, SECOND).expect("receive")
    };
    assert!(rustix::io::fcntl_getfd(&fds[0]).expect("getfd").contains(rustix::io::FdFlags::CLOEXEC));
    let error = b.receive_within(&mut [0; 9], 1, Duration::from_millis(1)).expect_err("nothing there");
    assert_eq!(error.to_string(), "wait for a message of the peer: nothing within 1 ms");
    drop((a, fds));
    assert!(matches!(b.send(b"x", &[]), Err(Error::Closed { .. })));
}

#[test]
fn a_path_in_use_is_told_from_a_stale_one() {
    let (_dir, path) = place();
    let first = Listener::bind(&path, 0o600).expect("listen");
    let error = Listener::bind(&path, 0o600).expect_err("in use").to_string();
    assert!(error.contains("another daemon already listens") && error.contains("errno 98"), "{error}");
    drop(Socket::connect(&path).expect("the first one still serves"));
    drop(first);
    let error = Socket::connect(&path).expect_err("nobody").to_string();
    assert!(error.contains("No such file or directory (errno 2)"), "{error}");
    let stale = std::os::unix::net::UnixListener::bind(&path).expect("another listener");
    drop(stale); // leaves the path behind, as a killed daemon does
    drop(Listener::bind(&path, 0o600).expect("replaces a stale socket"));
    std::fs::write(&path, "a file").expect("write");
    let error = Listener::bind(&path, 0o600).expect_err("a file is there").to_string();
    assert!(error.contains("errno 17") && path.exists(), "{error}");
    let long = PathBuf::from(format!("/{}", "x".repeat(200)));
    assert!(Socket::connect(&long).expect_err("too long").to_string().contains("107 bytes"));
}

/// An attach waits for room, not for a daemon; waiting an hour would be noticed.
#[test]
fn an_attach_does_not_wait_where_nobody_listens() {
    let ((_dir, path), hour) = (place(), 3600 * SECOND);
    let error = attach(&path, &hello(), hour).map(|_| ()).expect_err("no socket").to_string();
    assert!(error.contains("(errno 2)"), "{error}");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("another listener")); // leaves the path behind, as a killed daemon does
    let error = attach(&path, &hello(), hour).map(|_| ()).expect_err("a stale socket").to_string();
    assert!(error.contains("(errno"), "{error}");
}

#[test]
fn an_attach_tries_again_after_a_close_and_a_refusal_for_now() {
    let (_dir, path) = place();
    let listener = Listener::bind(&path, 0o600).expect("listen");
    let server = std::thread::spawn(move || {
        let next = || {
            assert_ne!(poll::readable(&[listener.as_fd()], SECOND).expect("poll"), 0);
            listener.accept().expect("accept").expect("an engine")
        };
        drop(next());
        next().send(&Welcome::refusal(Status::Again, "no place").encode(), &[]).expect("send");
        next().send(&Welcome::refusal(Status::Permission, "uid 5 may not attach").encode(), &[]).expect("send");
    });
    let error = attach(&path, &hello(), 30 * SECOND).map(|_| ()).expect_err("refused for good");
    assert!(matches!(&error, Error::Refused { status: Status::Permission, .. }), "{error}");
    server.join().expect("three connections");
}

#[test]
fn a_refusal_reaches_the_engine_in_words() {
    let (_dir, path) = place();
    let listener = Listener::bind(&path, 0o600).expect("listen");
    let server = std::thread::spawn(move || {
        assert_ne!(poll::readable(&[listener.as_fd()], SECOND).expect("poll"), 0);
        let socket = listener.accept().expect("accept").expect("an engine");
        socket.send(&Welcome::refusal(Status::Permission, "uid 5 may not attach").encode(), &[]).expect("send");
        socket
    });
    let error = attach(&path, &hello(), SECOND).expect_err("refused");
    assert_eq!(error.status(), Status::Permission);
    assert_eq!(error.to_string(), "the daemon refused the session: uid 5 may not attach (this peer may not attach)");
    drop(server.join());
}
