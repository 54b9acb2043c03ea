//! Replay of flight recordings of daemons: an incident from production on the developer's machine.

use kvtide_tiering::{Error, Recording};
use std::collections::VecDeque;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Inputs in a report.
const SHOWN: usize = 40;
/// Time limit of invariant checks: a daemon's tables are large, and each check walks all of them.
const CHECKS_MAX: Duration = Duration::from_secs(20);

/// Reason why a recording cannot be replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlightError {
    /// The file cannot be read.
    #[error("read: {0}")]
    Read(#[from] std::io::Error),
    /// It is not a recording, or a damaged one.
    #[error("replay: {0}")]
    Recording(#[from] Error),
}

/// Result of a replay.
#[derive(Debug, Default)]
pub struct FlightReport {
    /// The last inputs, with the number of actions that each gave.
    last: VecDeque<String>,
    inputs: u64,
    /// The first broken invariant, and the input before it.
    broken: Option<String>,
    /// Inputs between two checks of invariants.
    stride: u64,
    same: bool,
}

impl FlightReport {
    /// Return whether the replay produced the recorded actions and broke no invariant.
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
        write!(f, "{} inputs replayed, invariants checked every {}: {same}", self.inputs, self.stride)
    }
}

/// Replay the recording at `path` and check the core's invariants on the way: after every input if that is fast enough, else at
/// intervals. If a check finds a broken invariant, check after each input of the last interval.
///
/// # Errors
/// The file cannot be read, or contains no recording.
pub fn replay(path: &Path) -> Result<FlightReport, FlightError> {
    let recording = Recording::load(&std::fs::read(path)?)?;
    let mut report = FlightReport::default();
    let core = recording.replay(|input, _, actions| {
        report.inputs += 1;
        if report.last.len() == SHOWN {
            report.last.pop_front();
        }
        report.last.push_back(format!("{input} -> {} actions", actions.actions().len()));
    })?;
    report.same = core.trace() == recording.end();
    let begin = Instant::now();
    // A violation is found again, with the input that caused it.
    let _ = core.check();
    let bearable = CHECKS_MAX.as_nanos() / begin.elapsed().as_nanos().max(1);
    report.stride = report.inputs.div_ceil(u64::try_from(bearable).unwrap_or(u64::MAX).max(1)).max(1);
    report.broken = match first_broken(&recording, (0, report.inputs), report.stride)? {
        Some((at, _)) if report.stride > 1 => first_broken(&recording, (at.saturating_sub(report.stride), at), 1)?,
        found => found,
    }
    .map(|(_, broken)| broken);
    Ok(report)
}

/// Return the first broken invariant, checked after every `stride`-th input after the first `from`, and after the `to`-th.
fn first_broken(recording: &Recording, (from, to): (u64, u64), stride: u64) -> Result<Option<(u64, String)>, Error> {
    let (mut at, mut found) = (0, None);
    recording.replay(|input, core, _| {
        at += 1;
        let look = at > from && at <= to && ((at - from).is_multiple_of(stride) || at == to);
        if look && found.is_none() {
            found = core.check().err().map(|broken| (at, format!("{broken}, after input {at}: {input}")));
        }
    })?;
    Ok(found)
}
