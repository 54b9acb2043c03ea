//! Cost of the feed: blocks are evicted by the thousand, in turn with a relay that reads every event and without one.

use super::super::report::{Report, Target};
use super::super::{BenchError, median};
use super::index::{self, ENTRIES};
use kvtide_tiering::api::{Action, Event, Request, SpaceConfig, Status};
use kvtide_tiering::{ActionBuf, Core};
use std::time::{Duration, Instant};

/// Pairs of measurements, of which the median counts.
const PAIRS: usize = 5;

/// Measure an event, its reading included.
pub(super) fn measure(config: &SpaceConfig, report: &mut Report) -> Result<(), BenchError> {
    let mut extra = Vec::new();
    for _ in 0..PAIRS {
        let (without, with) = (evict_all(config, false)?.0, evict_all(config, true)?.0);
        extra.push(with.as_nanos() as f64 - without.as_nanos() as f64);
    }
    let each = (median(&extra) / f64::from(ENTRIES)).max(0.0).round() as u64;
    report.count("event_ns", "an event of the feed, read by a relay", each, "ns", Some(Target::AtMost(200.0)));
    Ok(())
}

/// Evict all entries of a space; with `follow` a relay reads all events. Return the time that it takes, and the core.
pub(super) fn evict_all(config: &SpaceConfig, follow: bool) -> Result<(Duration, Core), BenchError> {
    let (mut core, mut buf) = (index::core(config.clone(), ENTRIES, true)?, ActionBuf::new(512, 4096));
    let frames = vec![0; core.classes().len()];
    core.handle(1, Event::Attach { session: 0, shard: 0, lanes: 1, frames: &frames }, &mut buf)?;
    let (mut now_us, mut next, mut events) = (1, 0, 0);
    let mut read = |core: &mut Core, buf: &mut ActionBuf| -> Result<u64, BenchError> {
        let mut read = 0;
        loop {
            now_us += 1;
            let request = Request::Follow { from: next };
            let event = Event::Request { session: 0, channel: 0, tag: 0, timeout_us: 1, request };
            buf.clear();
            core.handle(now_us, event, buf)?;
            let Some(Action::Complete { status: Status::Ok, value, .. }) = buf.actions().first().copied() else {
                // Nothing is left; the request ends before the next one.
                now_us += 2;
                core.handle(now_us, Event::Tick, buf)?;
                buf.clear();
                return Ok(read);
            };
            read += value.wrapping_sub(next);
            next = value;
        }
    };
    if follow {
        read(&mut core, &mut buf)?;
    }
    let began = Instant::now();
    while core.occupancy().published > 0 {
        core.handle(2, Event::Evict { hash: None }, &mut buf)?;
        while core.has_output() {
            buf.clear();
            core.poll(2, &mut buf);
        }
        if follow {
            events += read(&mut core, &mut buf)?;
        }
    }
    let elapsed = began.elapsed();
    if follow && events != u64::from(ENTRIES) {
        return Err(BenchError::Odd(format!("the relay read {events} of {ENTRIES} events")));
    }
    Ok((elapsed, core))
}
