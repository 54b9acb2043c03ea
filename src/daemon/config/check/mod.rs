//! Summary of a valid configuration, and findings: likely mistakes, and what this machine lacks.
//!
//! `kvtide config check` and `kvtided --check` call it. What stops the start is found by the functions of the start itself, not here. It reads files of the machine; it writes nothing and opens no connection or
//! socket. Invalid configurations are rejected before, in `resolve`.

mod device;
mod disks;
mod explain;
mod here;
mod inversions;
mod nvme;

use super::{Config, Machine};
use serde::Serialize;
use std::fmt;

pub use explain::Section;
pub use kvtide_wire::os::socket::why_open;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The daemon starts, but probably does not work as intended.
    Warning,
    /// The daemon does not start, or does not use this part.
    Error,
}

/// A warning or an error for the operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Severity.
    pub severity: Severity,
    /// Key in the configuration.
    pub key: String,
    /// The problem and its remedy.
    pub text: String,
    /// True if it depends on this machine.
    pub this_machine: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        // The error of the start may name the key itself.
        match self.text.contains(&self.key) {
            true => write!(f, "{severity}: {}", self.text),
            false => write!(f, "{severity}: {}: {}", self.key, self.text),
        }
    }
}

/// Collected findings.
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

impl Config {
    /// Return the findings that depend on the file only.
    #[must_use]
    pub fn inversions(&self) -> Vec<Finding> {
        let mut findings = Findings::default();
        inversions::find(self, &mut findings);
        findings.all
    }

    /// Return the findings that depend on this machine and on the user of this process, without those that the start itself has.
    #[must_use]
    pub fn findings_here(&self, machine: &Machine) -> Vec<Finding> {
        let mut findings = Findings { all: Vec::new(), this_machine: true };
        here::find(self, machine, &mut findings);
        findings.all
    }

    /// Return the effective settings as text.
    #[must_use]
    pub fn explanation(&self) -> Vec<Section> {
        explain::explain(self)
    }
}

#[cfg(test)]
mod tests;
