//! What the engine tells its parent: one JSON object a line, through its standard output.

use serde::{Deserialize, Serialize};

use super::compare::{Drift, Verdict};
use crate::demo::kv::Omitted;

/// Which run of the engine a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// All pages of the tiered run are reserved, committed and dropped, with nothing in them.
    Rehearsal,
    /// Over a plain array, without kvtide: what the others are compared with.
    Plain,
    /// Over kvtide, everything in tier 0, its decode steps alternated with the plain array's.
    Resident,
    /// Over kvtide with a small tier 0.
    Tiered,
    /// The same, decoding by another contract than exact.
    Inexact,
}

impl Stage {
    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Stage::Rehearsal => "rehearsal",
            Stage::Plain => "plain array",
            Stage::Resident => "kvtide, all resident",
            Stage::Tiered => "kvtide, small tier 0",
            Stage::Inexact => "kvtide, by another contract",
        }
    }

    /// Name of its space, as the daemon's status tells it; of [`Stage::Inexact`] what the name begins with, see [`space_of`].
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

/// Name of the space of a run by `contract`.
#[must_use]
pub fn space_of(contract: &str) -> String {
    format!("{}-{}", Stage::Inexact.space(), contract.replace(':', "-"))
}

/// Where the engine waits for its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Checkpoint {
    /// Before the stage attaches.
    Begin,
    /// After its last step, still attached.
    End,
}

/// Why a stage failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The daemon has no room for what was asked.
    Refused,
    /// The daemon is gone.
    Daemon,
    /// Something broke.
    Other,
}

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Message {
    /// A stage has this many tokens, of all that it will have.
    Progress {
        /// Stage.
        stage: Stage,
        /// Tokens prefilled or decoded.
        tokens: usize,
        /// Of them, those decoded, in order (bytes; 256 = begin of text): sent by the tiered stage alone, one by one.
        token: Option<u16>,
    },
    /// The engine goes on when it reads a line on its standard input: counters of the daemon are about to begin, or will not
    /// grow any more.
    Checkpoint {
        /// Stage.
        stage: Stage,
        /// Which of the two.
        at: Checkpoint,
    },
    /// The sessions' device.
    Device {
        /// What its driver calls it.
        name: String,
    },
    /// A stage has ended.
    Ended {
        /// Stage.
        stage: Stage,
        /// What it measured.
        measured: Measured,
    },
    /// The engine could not go on.
    Failed {
        /// Stage.
        stage: Stage,
        /// Tokens that it had.
        tokens: usize,
        /// What was tried, on what, and why it failed.
        error: String,
        /// What kind of failure it is.
        cause: Cause,
    },
}

/// What a stage measured. Counters are the client's own, as differences.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Time of the prefill.
    pub prefill_s: f64,
    /// Time of all decode steps together.
    pub decode_s: f64,
    /// Time of a decode step: the lower quartile.
    pub step_s: f64,
    /// The plain array's time of a decode step, where its steps were alternated with these.
    pub plain_step_s: Option<f64>,
    /// Logits against those of the reference; empty for the reference itself.
    pub verdict: Verdict,
    /// Of the reference on a device: how far its logits were from those of the plain array at most.
    pub distance: Option<f32>,
    /// Of a run by another contract than exact: which, and what it omitted.
    pub reading: Option<Reading>,
    /// The client's counters over the prefill.
    pub prefill: Counters,
    /// The client's counters over the decode steps.
    pub decode: Counters,
}

/// What a run by another contract than exact read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// The contract.
    pub contract: String,
    /// What it omitted.
    pub omitted: Omitted,
    /// What that did to the logits, fed the reference's tokens.
    pub drift: Drift,
}

/// Differences of the client's totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Pages found in tier 0 at the first boundary of their plane.
    pub pages_tier0: u64,
    /// Pages not found there: they were in a tier below.
    pub pages_below: u64,
    /// Bytes copied from host to tier 0.
    pub bytes_host_to_tier0: u64,
    /// Bytes copied from tier 0 to host.
    pub bytes_tier0_to_host: u64,
    /// Nanoseconds in which the engine waited for a page, or for room for new tokens.
    pub stall_ns: u64,
    /// Messages that had to be sent before a step could begin.
    pub messages_before_steps: u64,
    /// Pages that a window frame came to show where they are in host memory.
    pub pages_in_place: u64,
}

impl std::ops::Sub for Counters {
    type Output = Counters;

    fn sub(self, before: Counters) -> Counters {
        Counters {
            pages_tier0: self.pages_tier0 - before.pages_tier0,
            pages_below: self.pages_below - before.pages_below,
            bytes_host_to_tier0: self.bytes_host_to_tier0 - before.bytes_host_to_tier0,
            bytes_tier0_to_host: self.bytes_tier0_to_host - before.bytes_tier0_to_host,
            stall_ns: self.stall_ns - before.stall_ns,
            messages_before_steps: self.messages_before_steps - before.messages_before_steps,
            pages_in_place: self.pages_in_place - before.pages_in_place,
        }
    }
}

impl std::ops::Add for Counters {
    type Output = Counters;

    fn add(self, other: Counters) -> Counters {
        Counters {
            pages_tier0: self.pages_tier0 + other.pages_tier0,
            pages_below: self.pages_below + other.pages_below,
            bytes_host_to_tier0: self.bytes_host_to_tier0 + other.bytes_host_to_tier0,
            bytes_tier0_to_host: self.bytes_tier0_to_host + other.bytes_tier0_to_host,
            stall_ns: self.stall_ns + other.stall_ns,
            messages_before_steps: self.messages_before_steps + other.messages_before_steps,
            pages_in_place: self.pages_in_place + other.pages_in_place,
        }
    }
}
