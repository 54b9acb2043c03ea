//! The copy thread: runs the copy loop whenever there is work and no engine thread runs it.

use super::{
    copy_loop::Round,
    session::{FOR_LANES, IDLE, Session},
    thread_waker,
};
use kvtide_wire::os::{
    bell::Sleepable,
    spin::{Spin, Turns},
};
use std::{
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// Time to spin for more work after the last progress, before sleeping: about the cost of a sleep and a wake-up.
const SPIN: Spin = Spin::new(Duration::from_micros(30));
/// Time to spin while jobs wait for lanes. A lane reaches a boundary every few hundred microseconds.
const SPIN_FOR_LANES: Spin = Spin::new(Duration::from_micros(100));
/// Longest sleep. Every wake-up is announced, so this limits the damage of a bug; normal waits end earlier.
const SLEEP_MAX: Duration = Duration::from_secs(5);
/// Sleep while a ring to the daemon is full: no doorbell reports free room.
const SLEEP_FULL: Duration = Duration::from_millis(1);
/// Sleep while a device copies: nothing reports the end of a copy, and it is only tens of microseconds away.
const SLEEP_COPYING: Duration = Duration::from_micros(50);

/// Run the copy thread until the session is stopped or the daemon is gone.
pub(crate) fn run(session: &Arc<Session>, bell: &Sleepable) {
    let mut quiet_since: Option<Instant> = None;
    let (mut spin, mut spin_for_lanes) = (SPIN, SPIN_FOR_LANES);
    let mut turns = Turns::begin();
    while !session.stop.load(Ordering::Acquire) && session.alive() {
        if session.is_helped() && !has_background_tasks(session) {
            // Two threads that take turns at the copy loop are slower than one: each waits for the other's copy and finds its own
            // cache cold.
            sleep_while_helped(session, bell);
            quiet_since = None;
            turns = Turns::begin();
            continue;
        }
        let round = session.try_round();
        if round.progress | run_background_tasks(session).progress {
            turns.pass();
            quiet_since = None;
            continue;
        }
        let since = *quiet_since.get_or_insert_with(Instant::now);
        let spin = if round.waiting { &mut spin_for_lanes } else { &mut spin };
        if spin.pause(since.elapsed()) {
            continue;
        }
        sleep(session, bell);
        quiet_since = None;
        turns = Turns::begin();
    }
}

/// Run the background tasks of lanes.
#[cfg(feature = "cuda")]
fn run_background_tasks(session: &Session) -> Round {
    let turn = session.background_tasks.run(session);
    Round { progress: turn.progress, pending: turn.left, ..Round::default() }
}

/// Run the background tasks of lanes. Only lanes on streams have any.
#[cfg(not(feature = "cuda"))]
fn run_background_tasks(_: &Session) -> Round {
    Round::default()
}

/// Report whether background tasks are pending. Only this thread runs them.
#[cfg(feature = "cuda")]
fn has_background_tasks(session: &Session) -> bool {
    !session.background_tasks.is_empty()
}

/// Report whether background tasks are pending. Only lanes on streams have any.
#[cfg(not(feature = "cuda"))]
fn has_background_tasks(_: &Session) -> bool {
    false
}

/// Sleep while an engine thread runs the copy loop. The last engine thread to leave the copy loop wakes this thread if work is left. This
/// sleep is not announced to the daemon, which need not ring the doorbell.
fn sleep_while_helped(session: &Session, bell: &Sleepable) {
    session.copier.announce(IDLE);
    let stopped = session.stop.load(Ordering::Acquire) || !session.alive();
    if session.is_helped() && !stopped && !has_background_tasks(session) {
        thread_waker::sleep(&[bell.as_fd(), session.copier.as_fd(), session.socket()], session.socket(), SLEEP_MAX);
    }
    session.awake();
    bell.quiet();
    session.read_socket(&mut session.copy_loop());
}

/// Announce the sleep, check once more for work, then sleep.
fn sleep(session: &Session, bell: &Sleepable) {
    session.announce_sleep(FOR_LANES);
    let round = {
        let mut copy_loop = session.copy_loop();
        session.round(&mut copy_loop)
    };
    if !round.waiting {
        // No job waits for lanes, so lanes need not wake this thread. The announcement to the daemon stands: it rings for a new
        // job.
        session.copier.announce(IDLE);
    }
    let task = run_background_tasks(session);
    let stopped = session.stop.load(Ordering::Acquire) || !session.alive();
    if !round.progress && !task.progress && !stopped {
        let timeout = match (round.copying, round.pending || task.pending) {
            (true, _) => SLEEP_COPYING,
            (false, true) => SLEEP_FULL,
            (false, false) => SLEEP_MAX,
        };
        thread_waker::sleep(&[bell.as_fd(), session.copier.as_fd(), session.socket()], session.socket(), timeout);
    }
    session.awake();
    bell.quiet();
    session.read_socket(&mut session.copy_loop());
}
