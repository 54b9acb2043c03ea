//! Messages from the engine to its parent: one JSON object per line on stdout.

use serde::{Deserialize, Serialize};

use super::compare::{Comparison, Drift};
use crate::demo::kv::Omitted;

/// Run of the engine that a message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Reserve, commit and drop all pages of the tiered run, with undefined content.
    Rehearsal,
    /// Run over a plain array, without kvtide: the reference.
    Plain,
    /// Run over kvtide with everything in tier 0. Its decode steps alternate with those of the plain array.
    Resident,
    /// Run over kvtide with a small tier 0.
    Tiered,
    /// Run over kvtide with a small tier 0, decoding with a contract other than exact.
    Inexact,
}

impl Stage {
    /// Return the name for display.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Stage::Rehearsal => "capacity check",
            Stage::Plain => "plain array",
            Stage::Resident => "kvtide, all resident",
            Stage::Tiered => "kvtide, small tier 0",
            Stage::Inexact => "kvtide, other contract",
        }
    }

    /// Return the name of its space in the daemon's status. For [`Stage::Inexact`] this is a prefix, see [`space_of`].
    #[must_use]
    pub fn space(self) -> &'static str {
        match self {
            Stage::Rehearsal => "demo-rehearsal",
            Stage::Plain => "demo-plain",
            Stage::Resident => "demo-resident",
            Stage::Tiered => "demo-tiered",
            Stage::Inexact => "demo",
        }
    }
}

/// Return the name of the space of a run with `contract`.
#[must_use]
pub fn space_of(contract: &str, prefetch: bool) -> String {
    let without = if prefetch { "" } else { "-no-prefetch" };
    format!("{}-{}{without}", Stage::Inexact.space(), contract.replace(':', "-"))
}

/// Points at which the engine waits for its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Checkpoint {
    /// Before the stage attaches.
    Begin,
    /// After the stage's last step, still attached.
    End,
}

/// Cause of a stage's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The daemon has not enough memory.
    Refused,
    /// The daemon has ended.
    Daemon,
    /// Another error.
    Other,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Message {
    /// Progress of a stage.
    Progress {
        /// Stage.
        stage: Stage,
        /// Tokens prefilled or decoded so far.
        tokens: usize,
        /// The decoded token (a byte; 256 = begin of text). Only the tiered stage sends it, for each token in order.
        token: Option<u16>,
    },
    /// The engine waits for a line on its stdin, so that the parent can read the daemon's counters before they start or after they
    /// stop growing.
    Checkpoint {
        /// Stage.
        stage: Stage,
        /// Begin or end.
        at: Checkpoint,
    },
    /// Device of the sessions.
    Device {
        /// Name from the driver.
        name: String,
    },
    /// End of a stage.
    Ended {
        /// Stage.
        stage: Stage,
        /// Its measurements.
        measured: Measured,
    },
    /// Failure of the engine.
    Failed {
        /// Stage.
        stage: Stage,
        /// Tokens processed.
        tokens: usize,
        /// The action, its object, and the reason.
        error: String,
        /// Cause.
        cause: Cause,
    },
}

/// Measurements of a stage. Counters are differences of the client's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Time of the prefill.
    pub prefill_s: f64,
    /// Total time of the decode steps.
    pub decode_s: f64,
    /// Lower quartile of the time of a decode step.
    pub step_s: f64,
    /// The same for the plain array, if its steps alternated with these.
    pub plain_step_s: Option<f64>,
    /// Comparison of the logits with the reference; empty for the reference itself.
    pub comparison: Comparison,
    /// For the reference on a device: maximum distance of its logits from those of the plain array.
    pub distance: Option<f32>,
    /// For a run with a contract other than exact: the contract and the pages that it skipped.
    pub reading: Option<Reading>,
    /// The client's counters over the prefill.
    pub prefill: Counters,
    /// The client's counters over the decode steps.
    pub decode: Counters,
}

/// Result of a run with a contract other than exact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// The contract.
    pub contract: String,
    /// Look-aheads and attention were reported, so that the daemon could prefetch.
    pub prefetch: bool,
    /// Skipped pages and their attention.
    pub omitted: Omitted,
    /// Effect on the logits, with the reference's tokens as input.
    pub drift: Drift,
}

/// Differences of the client's totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Pages found in tier 0 at the first boundary of their plane.
    pub pages_tier0: u64,
    /// Pages not found there: they were in a lower tier.
    pub pages_below: u64,
    /// Bytes copied from host to tier 0.
    pub bytes_host_to_tier0: u64,
    /// Bytes copied from tier 0 to host.
    pub bytes_tier0_to_host: u64,
    /// Nanoseconds of waiting for pages, or for room for new tokens.
    pub stall_ns: u64,
    /// Messages that had to be sent before a step could begin.
    pub messages_before_steps: u64,
    /// Pages mapped by a mapped frame for reading in host memory.
    pub pages_in_place: u64,
}

impl Counters {
    fn each(self, other: Counters, of: impl Fn(u64, u64) -> u64) -> Counters {
        Counters {
            pages_tier0: of(self.pages_tier0, other.pages_tier0),
            pages_below: of(self.pages_below, other.pages_below),
            bytes_host_to_tier0: of(self.bytes_host_to_tier0, other.bytes_host_to_tier0),
            bytes_tier0_to_host: of(self.bytes_tier0_to_host, other.bytes_tier0_to_host),
            stall_ns: of(self.stall_ns, other.stall_ns),
            messages_before_steps: of(self.messages_before_steps, other.messages_before_steps),
            pages_in_place: of(self.pages_in_place, other.pages_in_place),
        }
    }
}

impl std::ops::Sub for Counters {
    type Output = Counters;

    fn sub(self, before: Counters) -> Counters {
        self.each(before, |now, before| now - before)
    }
}

impl std::ops::Add for Counters {
    type Output = Counters;

    fn add(self, other: Counters) -> Counters {
        self.each(other, |a, b| a + b)
    }
}
