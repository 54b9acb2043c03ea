//! What is to be said of a configuration beyond "it is valid": what it means, and what in it is probably not meant.
//!
//! `kvtide check-config` calls it, and `kvtided --check`. It reads the machine and writes nothing, connects to nothing and binds
//! nothing. What the daemon refuses is in `resolve`, not in here: an error found here is one that its start would find later.

mod device;
mod disks;
mod explain;
mod here;
mod inversions;
mod nvme;

use super::{Config, KeySource, Machine};
use serde::Serialize;
use std::fmt;
use std::path::Path;

pub use explain::Section;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The daemon runs, but hardly as it was meant.
    Warning,
    /// The daemon does not start, or not with this.
    Error,
}

/// Something that an operator should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// The key that it is about.
    pub key: String,
    /// What is the matter, and what would be better.
    pub text: String,
    /// Whether it is about this machine, and another one might differ.
    pub this_machine: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{severity}: {}: {}", self.key, self.text)
    }
}

/// Findings so far.
#[derive(Debug, Default)]
struct Findings {
    all: Vec<Finding>,
    this_machine: bool,
}

impl Findings {
    fn put(&mut self, severity: Severity, key: impl Into<String>, text: impl Into<String>) {
        let (key, text) = (key.into(), text.into());
        self.all.push(Finding { severity, key, text, this_machine: self.this_machine });
    }

    fn warn(&mut self, key: impl Into<String>, text: impl Into<String>) {
        self.put(Severity::Warning, key, text);
    }

    fn error(&mut self, key: impl Into<String>, text: impl Into<String>) {
        self.put(Severity::Error, key, text);
    }
}

/// Who can tell whether a file that is named holds what it should, and says what is wrong if not: this room reads only
/// configurations.
#[allow(missing_debug_implementations)] // closures have nothing to show
pub struct Judges<'a> {
    /// Of a token file.
    pub token: &'a dyn Fn(&Path) -> Option<String>,
    /// Of the master key.
    pub key: &'a dyn Fn(&KeySource) -> Option<String>,
}

impl Config {
    /// What follows from the file alone.
    #[must_use]
    pub fn inversions(&self) -> Vec<Finding> {
        let mut findings = Findings::default();
        inversions::find(self, &mut findings);
        findings.all
    }

    /// What follows from the file on this machine, for the user who asks.
    #[must_use]
    pub fn findings_here(&self, machine: &Machine, judges: &Judges<'_>) -> Vec<Finding> {
        let mut findings = Findings { all: Vec::new(), this_machine: true };
        here::find(self, machine, judges, &mut findings);
        findings.all
    }

    /// What it means, in words and in bytes.
    #[must_use]
    pub fn explanation(&self) -> Vec<Section> {
        explain::explain(self)
    }
}

#[cfg(test)]
mod tests;
