//! The log stays small for any input, and reports the number of omitted lines.

use crate::raw::Raw;
use crate::{BOUND, daemon, until};
use kvtide_wire::os::socket::Socket;
use std::fs;

/// Number of invalid connections.
const FLOOD: usize = 2000;
/// Maximum size of the log.
const LOG_BYTES_MAX: usize = 64 << 10;

/// Return the number of lines about rejected connections in a log, and the number of omitted lines that it reports.
fn refused(log: &str) -> (usize, usize) {
    let lines = log.lines().filter(|line| line.contains("malformed handshake message"));
    lines.fold((0, 0), |(lines, left_out), line| match line.split_once(" more lines like this") {
        Some((before, _)) => (lines, left_out + before.rsplit(' ').next().unwrap().parse::<usize>().unwrap()),
        None => (lines + 1, left_out),
    })
}

#[test]
fn a_flood_of_refused_connections_is_a_bounded_log_whose_count_adds_up() {
    let mut daemon = daemon("");
    for _ in 0..FLOOD {
        let socket = Socket::connect(daemon.socket()).unwrap();
        socket.send(b"nonsense", &[]).unwrap();
        socket.receive_within(&mut [0; 16384], 0, BOUND).unwrap();
    }
    assert_eq!(daemon.status().unwrap()["session_totals"]["refused"], FLOOD);
    let read = || fs::read_to_string(daemon.dir().join("daemon.log")).unwrap();
    // No further connection follows, so the count must be reported without one.
    let counted = || {
        let (lines, left_out) = refused(&read());
        lines + left_out
    };
    until(|| format!("{:?} of {FLOOD}", refused(&read())), || counted() >= FLOOD);
    let log = read();
    assert_eq!(counted(), FLOOD, "{log}");
    assert!(log.len() < LOG_BYTES_MAX, "{} bytes of log for {:?}", log.len(), refused(&log));
    let _raw = Raw::attach(daemon.socket());
    // The space's thread writes this line after its answer.
    until(|| format!("other lines were suppressed: {}", daemon.log()), || read().contains("attached to space"));
}

#[test]
fn the_end_tells_what_was_left_out_so_far() {
    let mut daemon = daemon("");
    for _ in 0..FLOOD / 4 {
        let socket = Socket::connect(daemon.socket()).unwrap();
        socket.send(b"nonsense", &[]).unwrap();
        socket.receive_within(&mut [0; 16384], 0, BOUND).unwrap();
    }
    assert!(daemon.stop().unwrap().success());
    let (lines, left_out) = refused(&fs::read_to_string(daemon.dir().join("daemon.log")).unwrap());
    assert_eq!(lines + left_out, FLOOD / 4);
    assert!(left_out > 0, "{lines} lines");
}
