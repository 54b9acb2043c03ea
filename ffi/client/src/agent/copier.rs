//! The copy thread: pumps whenever there is something to pump and no engine thread does it.

use super::{
    nudge,
    pump::Round,
    session::{FOR_LANES, IDLE, Session},
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

/// How long it looks for more after its last progress, before it sleeps: about what a sleep and a wake-up cost.
const SPIN: Spin = Spin::new(Duration::from_micros(30));
/// The same while jobs wait for lanes, which come by every few hundred microseconds.
const SPIN_FOR_LANES: Spin = Spin::new(Duration::from_micros(100));
/// Longest sleep. Every wake-up is announced, so this bounds the damage of a bug, not any wait.
const SLEEP_MAX: Duration = Duration::from_secs(5);
/// Sleep while a ring towards the daemon is full: there is no bell for room.
const SLEEP_FULL: Duration = Duration::from_millis(1);
/// Sleep while a device copies: nothing tells of the end, which is some tens of microseconds away.
const SLEEP_COPYING: Duration = Duration::from_micros(50);

/// The thread's body: ends when the session is stopped or the daemon is gone.
pub(crate) fn run(session: &Arc<Session>, bell: &Sleepable) {
    let mut quiet_since: Option<Instant> = None;
    let (mut spin, mut spin_for_lanes) = (SPIN, SPIN_FOR_LANES);
    let mut turns = Turns::begin();
    while !session.stop.load(Ordering::Acquire) && session.alive() {
        if session.is_helped() && !has_errands(session) {
            // Two that take turns at the pump are slower than one: each waits for the other's copy, and finds its own core's cache cold.
            sleep_while_helped(session, bell);
            quiet_since = None;
            turns = Turns::begin();
            continue;
        }
        let round = session.try_round();
        if round.progress | errands(session).progress {
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

/// Looks after what it does for lanes.
#[cfg(feature = "cuda")]
fn errands(session: &Session) -> Round {
    let turn = session.errands.run(session);
    Round { progress: turn.progress, pending: turn.left, ..Round::default() }
}

/// Looks after what it does for lanes: that is for lanes on streams.
#[cfg(not(feature = "cuda"))]
fn errands(_: &Session) -> Round {
    Round::default()
}

/// Whether lanes wait for something that it alone does.
#[cfg(feature = "cuda")]
fn has_errands(session: &Session) -> bool {
    !session.errands.is_empty()
}

/// Whether lanes wait for something that it alone does: that is for lanes on streams.
#[cfg(not(feature = "cuda"))]
fn has_errands(_: &Session) -> bool {
    false
}

/// Sleeps while an engine's thread pumps. Who leaves the pump last wakes it if there is something left; the daemon is told nothing: there
/// is no need to ring.
fn sleep_while_helped(session: &Session, bell: &Sleepable) {
    session.copier.announce(IDLE);
    let stopped = session.stop.load(Ordering::Acquire) || !session.alive();
    if session.is_helped() && !stopped && !has_errands(session) {
        nudge::sleep(&[bell.as_fd(), session.copier.as_fd(), session.socket()], session.socket(), SLEEP_MAX);
    }
    session.awake();
    bell.quiet();
    session.read_socket(&mut session.pump());
}

/// Announces, looks once more, sleeps.
fn sleep(session: &Session, bell: &Sleepable) {
    session.announce_sleep(FOR_LANES);
    let round = {
        let mut pump = session.pump();
        session.round(&mut pump)
    };
    if !round.waiting {
        // Nothing to be woken by lanes for. A job that arrives now is rung for: the announcement to the daemon stands.
        session.copier.announce(IDLE);
    }
    let errand = errands(session);
    let stopped = session.stop.load(Ordering::Acquire) || !session.alive();
    if !round.progress && !errand.progress && !stopped {
        let timeout = match (round.copying, round.pending || errand.pending) {
            (true, _) => SLEEP_COPYING,
            (false, true) => SLEEP_FULL,
            (false, false) => SLEEP_MAX,
        };
        nudge::sleep(&[bell.as_fd(), session.copier.as_fd(), session.socket()], session.socket(), timeout);
    }
    session.awake();
    bell.quiet();
    session.read_socket(&mut session.pump());
}
