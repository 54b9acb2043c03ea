//! Flight recordings of daemons, replayed: an incident from production on the developer's machine.

use kvtide_tiering::{Error, Recording};
use std::collections::VecDeque;
use std::fmt;
use std::path::Path;

/// Inputs that a report shows.
const SHOWN: usize = 40;

/// Why a recording cannot be replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlightError {
    /// The file cannot be read.
    #[error("read: {0}")]
    Read(#[from] std::io::Error),
    /// It is no recording, or a damaged one.
    #[error("replay: {0}")]
    Recording(#[from] Error),
}

/// What a replay found.
#[derive(Debug, Default)]
pub struct FlightReport {
    /// The last inputs, with the number of actions that each gave.
    last: VecDeque<String>,
    inputs: u64,
    /// The first broken invariant, and the input after which it was.
    broken: Option<String>,
    same: bool,
}

impl FlightReport {
    /// Whether the replay gave the recorded actions and broke no invariant.
    #[must_use]
    pub fn sound(&self) -> bool {
        self.same && self.broken.is_none()
    }
}

impl fmt::Display for FlightReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.last.iter().try_for_each(|input| writeln!(f, "{input}"))?;
        if let Some(broken) = &self.broken {
            writeln!(f, "invariant: {broken}")?;
        }
        let same = if self.same { "the same actions" } else { "OTHER ACTIONS than were recorded (another version?)" };
        write!(f, "{} inputs replayed: {same}", self.inputs)
    }
}

/// Replays the recording at `path`, checking the core's invariants after every input.
///
/// # Errors
/// The file cannot be read, or holds no recording.
pub fn replay(path: &Path) -> Result<FlightReport, FlightError> {
    let recording = Recording::load(&std::fs::read(path)?)?;
    let mut report = FlightReport::default();
    let core = recording.replay(|input, core, actions| {
        report.inputs += 1;
        if report.last.len() == SHOWN {
            report.last.pop_front();
        }
        report.last.push_back(format!("{input} -> {} actions", actions.actions().len()));
        if report.broken.is_none() {
            report.broken =
                core.check().err().map(|broken| format!("{broken}, after input {}: {input}", report.inputs));
        }
    })?;
    report.same = core.trace() == recording.end();
    Ok(report)
}
