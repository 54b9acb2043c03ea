//! Report of a wrong action of the system under test.

use crate::mutant::Mutant;
use std::fmt;

/// Kind of failure; the table of mutants shows its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Caught {
    /// A reader saw content that differs from the model's.
    WrongContent,
    /// A lane's table differs from the mover's although they must agree.
    WrongTable,
    /// A copy began on memory that another copy still used.
    Overlap,
    /// A slot on NVMe was used against its rules: not granted, owned by another block, or read before it was written.
    Disk,
    /// An exact step ended without having offered every needed page exactly once.
    SkippedPage,
    /// A response that the model excludes.
    WrongAnswer,
    /// An error that no injected fault explains.
    UnjustifiedError,
    /// A request or a step did not end in bounded simulated time.
    Hang,
    /// An invariant of the core does not hold.
    Invariant,
    /// The core or the agent broke the protocol between them: a job, completion or grant that is out of order or out of bounds.
    Protocol,
    /// A resource was not returned: a frame, a slab, a session entry.
    Leak,
    /// The recorder's dump did not replay to the same actions.
    Replay,
    /// The system under test panicked.
    Panic,
}

impl Caught {
    /// Return the name in the table of mutants.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Caught::WrongContent => "wrong content",
            Caught::WrongTable => "wrong table",
            Caught::Overlap => "overlapping copies",
            Caught::Disk => "misused slot",
            Caught::SkippedPage => "skipped page",
            Caught::WrongAnswer => "wrong answer",
            Caught::UnjustifiedError => "unjustified error",
            Caught::Hang => "hang",
            Caught::Invariant => "invariant",
            Caught::Protocol => "protocol",
            Caught::Leak => "leak",
            Caught::Replay => "replay differs",
            Caught::Panic => "panic",
        }
    }
}

/// A failed episode: the failure, and the data to reproduce it.
#[derive(Clone, Debug, thiserror::Error)]
pub struct Failure {
    /// Seed of the episode.
    pub seed: u64,
    /// Deliberate fault that was on.
    pub mutant: Option<Mutant>,
    /// Kind.
    pub caught: Caught,
    /// Observed and expected values.
    pub detail: String,
    /// Simulated time.
    pub at_us: u64,
    /// Operations of the episode before the failure.
    pub ops: u64,
    /// The last events as text, if the episode ran verbosely.
    pub events: Vec<String>,
    /// The core's tables at the failure, if the episode ran verbosely.
    pub core: Option<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for event in &self.events {
            writeln!(f, "{event}")?;
        }
        writeln!(f, "{}: {} (at {} us, operation {})", self.caught.name(), self.detail, self.at_us, self.ops)?;
        write!(f, "replay: cargo run --release -p kvtide-sim -- --seed {}", self.seed)?;
        match self.mutant {
            Some(mutant) => write!(f, " --mutant {}", mutant.name()),
            None => Ok(()),
        }
    }
}
