//! No-op requests: cost of a message and its reply.

use super::{BenchError, Engine, TIMEOUT, percentile, trying};
use std::path::Path;
use std::time::{Duration, Instant};

const WARM_UP: usize = 5_000;
const SAMPLES: usize = 50_000;
const IDLE_SAMPLES: usize = 200;
/// Several times the time for which the daemon polls before it sleeps.
const IDLE: Duration = Duration::from_millis(10);

pub(super) struct Trips {
    pub(super) p50_ns: u64,
    pub(super) p99_ns: u64,
    pub(super) wake_p50_ns: u64,
}

pub(super) fn measure(socket: &Path) -> Result<Trips, BenchError> {
    let mut engine = Engine::attach(socket, "roundtrip", 1, 16, 4)?;
    let mut trip = || {
        let began = Instant::now();
        trying("send a no-op", engine.channel.nop(TIMEOUT))?;
        Ok::<u64, BenchError>(began.elapsed().as_nanos() as u64)
    };
    for _ in 0..WARM_UP {
        trip()?;
    }
    let mut awake = (0..SAMPLES).map(|_| trip()).collect::<Result<Vec<_>, _>>()?;
    let mut woken = Vec::with_capacity(IDLE_SAMPLES);
    for _ in 0..IDLE_SAMPLES {
        // PACE: lets the daemon fall asleep; a fixed number of times.
        std::thread::sleep(IDLE);
        woken.push(trip()?);
    }
    let (p50_ns, p99_ns) = (percentile(&mut awake, 50), percentile(&mut awake, 99));
    Ok(Trips { p50_ns, p99_ns, wake_p50_ns: percentile(&mut woken, 50) })
}
