//! CPU use of an idle daemon.

use super::{BenchError, Engine};
use crate::private_daemon::PrivateDaemon;
use std::time::{Duration, Instant};

const TIME: Duration = Duration::from_secs(10);
/// Time for the work after the attach to finish.
const SETTLE: Duration = Duration::from_millis(200);

/// Return the CPU use of the daemon over ten seconds with one session attached, in percent of a core.
pub(super) fn measure(daemon: &PrivateDaemon) -> Result<f64, BenchError> {
    let _engine = Engine::attach(daemon.socket(), "idle", 1, 16, 4)?;
    // PACE: the measurement is of an idle period.
    std::thread::sleep(SETTLE);
    let (before, began) = (cpu(daemon.pid())?, Instant::now());
    // PACE: as above.
    std::thread::sleep(TIME);
    let used = cpu(daemon.pid())?.saturating_sub(before);
    Ok(used.as_secs_f64() / began.elapsed().as_secs_f64() * 100.0)
}

/// Return the CPU time of a process, user and system: fields 14 and 15 of `/proc/PID/stat`, in clock ticks.
fn cpu(pid: u32) -> Result<Duration, BenchError> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path)
        .map_err(|source| BenchError::System { tried: format!("read {path}"), source })?;
    ticks(&text)
        .map(|ticks| Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
        .ok_or_else(|| BenchError::Odd(format!("no CPU times in {path}: {text}")))
}

/// The name, field 2, may contain spaces and parentheses; count the fields after the last parenthesis.
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::ticks;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 17 0 0 20 0";
        assert_eq!(ticks(stat), Some(267));
        assert_eq!(ticks("7 (a"), None);
    }
}
