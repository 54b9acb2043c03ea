//! Progress of a command that waits or repeats: after two seconds it says on stderr what it waits for and for how long.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Time after which a command says what it does.
const QUIET: Duration = Duration::from_secs(2);
/// Interval of new lines where the last one cannot be overwritten.
const LINES: Duration = Duration::from_secs(10);

/// Progress of one command.
#[derive(Debug)]
pub(super) struct Waiting {
    began: Instant,
    told: Option<Instant>,
    terminal: bool,
}

impl Waiting {
    /// Begin.
    pub fn new() -> Waiting {
        Waiting { began: Instant::now(), told: None, terminal: std::io::stderr().is_terminal() }
    }

    /// Say what the command does, if it is time to. `what`: with the reason; `left`: an estimate.
    pub fn tell(&mut self, what: &str, left: Option<Duration>) {
        let every = if self.terminal { Duration::from_millis(500) } else { LINES };
        if self.began.elapsed() < QUIET || self.told.is_some_and(|told| told.elapsed() < every) {
            return;
        }
        self.told = Some(Instant::now());
        let left = left.map_or(String::new(), |left| format!(", at most {} s more", left.as_secs()));
        let line = format!("kvtide: {what} ({} s so far{left})", self.began.elapsed().as_secs());
        let mut err = std::io::stderr().lock();
        // A closed stderr does not stop a command.
        let _ = match self.terminal {
            true => write!(err, "\r\x1b[K{line}").and_then(|()| err.flush()),
            false => writeln!(err, "{line}"),
        };
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.terminal && self.told.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
