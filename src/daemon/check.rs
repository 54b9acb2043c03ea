//! Check of a configuration file: effective settings and findings, for `kvtide config check` and `kvtided --check`.

use crate::config::{Config, ConfigError, Finding, Machine, Section, Severity, Source};
use crate::control::{Obstacle, obstacles};
use crate::output;
use serde::Serialize;
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Result of the check.
#[derive(Debug, Serialize)]
pub struct Report {
    file: String,
    verdict: &'static str,
    /// Error that makes the file invalid. The remaining fields are empty then.
    error: Option<String>,
    findings: Vec<Finding>,
    explanation: Vec<Section>,
    /// All keys with their effective values, in the syntax of the file.
    settings: BTreeMap<String, String>,
}

/// Return the finding about an obstacle to the start. One that the daemon's user may not meet is a warning, unless this process is the
/// daemon.
fn finding(Obstacle { key, error, is_own }: Obstacle, is_daemon: bool) -> Finding {
    let severity = if is_own && !is_daemon { Severity::Warning } else { Severity::Error };
    Finding { severity, key, text: error.to_string(), this_machine: true }
}

impl Report {
    /// Check a file like the daemon does at start. What does not fit this machine becomes a finding.
    pub fn of(source: &Source) -> Report {
        Report::by(source, false)
    }

    /// Check the configuration of this process, which is the daemon.
    pub fn of_daemon(source: &Source) -> Report {
        Report::by(source, true)
    }

    fn by(source: &Source, is_daemon: bool) -> Report {
        let config = match source.parse() {
            Ok(config) => config,
            Err(error) => return Report::refused(&source.name(), &error),
        };
        let mut findings = config.inversions();
        if source.machine != Machine::assumed() {
            findings
                .extend(obstacles(&config, &source.machine).into_iter().map(|obstacle| finding(obstacle, is_daemon)));
            findings.extend(config.findings_here(&source.machine));
        }
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        Report::about(source.name(), &config, findings)
    }

    fn about(file: String, config: &Config, findings: Vec<Finding>) -> Report {
        let verdict = match findings.iter().map(|finding| finding.severity).max() {
            None => "fine",
            Some(Severity::Warning) => "warnings",
            Some(Severity::Error) => "errors",
        };
        let settings = config.settings().into_iter().map(|setting| (setting.key, setting.value)).collect();
        Report { file, verdict, error: None, findings, explanation: config.explanation(), settings }
    }

    /// Return the report about a file that cannot be read or parsed.
    pub fn refused(file: &str, error: &ConfigError) -> Report {
        Report {
            file: file.to_owned(),
            verdict: "errors",
            error: Some(error.to_string()),
            findings: Vec::new(),
            explanation: Vec::new(),
            settings: BTreeMap::new(),
        }
    }

    /// Print the summary on stdout and the findings on stderr. Return the exit status.
    pub fn print(&self, status: ExitCode) -> ExitCode {
        let mut text = String::new();
        for Section { title, lines } in &self.explanation {
            text += &format!("{title}\n");
            lines.iter().for_each(|line| text += &format!("    {line}\n"));
        }
        let explained = output::write(&text);
        if let Some(error) = &self.error {
            output::say(format_args!("error: {error}"));
        }
        for finding in &self.findings {
            output::say(finding);
        }
        let judged = explained.and_then(|()| output::write(&format!("{}: {}\n", self.file, self.verdict)));
        output::ended(judged, status)
    }

    /// Return the exit status of `kvtide config check`.
    #[must_use]
    pub fn exit(&self, strict: bool) -> ExitCode {
        match self.verdict {
            "errors" => ExitCode::from(output::FAILED),
            "warnings" if strict => ExitCode::from(output::FAILED),
            _ => ExitCode::SUCCESS,
        }
    }

    /// Return the number of findings.
    #[must_use]
    pub fn findings(&self) -> usize {
        self.findings.len()
    }

    /// Return true if the daemon would start.
    pub fn starts(&self) -> bool {
        self.verdict != "errors"
    }
}
