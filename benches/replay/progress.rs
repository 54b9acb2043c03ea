//! Progress of a replay on stderr: an updated line on a terminal, otherwise occasional new lines.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Interval between updates of a line, and between new lines.
const EVERY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// One task of a replay.
pub(super) struct Progress {
    what: String,
    total: u64,
    terminal: bool,
    told: Instant,
}

impl Progress {
    /// Begin a task of `total` parts.
    pub(super) fn new(what: impl Into<String>, total: u64) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        let progress = Progress { what: what.into(), total: total.max(1), terminal, told: Instant::now() };
        progress.tell(0);
        progress
    }

    /// Report the number of finished parts.
    pub(super) fn at(&mut self, done: u64) {
        let every = if self.terminal { EVERY.0 } else { EVERY.1 };
        if self.told.elapsed() >= every {
            self.told = Instant::now();
            self.tell(done);
        }
    }

    fn tell(&self, done: u64) {
        let mut stderr = std::io::stderr().lock();
        let percent = done * 100 / self.total;
        // Errors are ignored: a closed stderr must not stop a replay.
        let _ = match self.terminal {
            true => write!(stderr, "\r\x1b[Kkvtide replay: {}: {percent} %", self.what),
            false => writeln!(stderr, "kvtide replay: {}: {percent} %", self.what),
        };
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
