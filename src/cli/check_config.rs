//! `kvtide check-config`: what a file means to the daemon, and what in it is probably not meant.

use crate::attach;
use crate::config::{Config, ConfigError, Finding, Judges, Overrides, Section, Severity, Source};
use crate::io::MasterKey;
use crate::output;
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit status with `--strict` if there are warnings.
const EXIT_WARNINGS: u8 = 1;
/// Exit status if the daemon would not start with it.
const EXIT_ERRORS: u8 = 2;

/// What to check.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Configuration file (TOML); without it the defaults are explained
    file: Option<PathBuf>,
    /// Prints one JSON object
    #[arg(long)]
    json: bool,
    /// Ends with status 1 if there are warnings (2, as always, if there are errors)
    #[arg(long)]
    strict: bool,
    /// Leaves out what depends on this machine: the file is for another one
    #[arg(long)]
    any_machine: bool,
}

/// Everything that is to be said of a file.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    file: String,
    verdict: &'static str,
    /// Why the daemon does not take the file at all; nothing else can be said of it then.
    error: Option<String>,
    findings: Vec<Finding>,
    explanation: Vec<Section>,
    /// Every key with its value in force, as it would stand in a file.
    settings: BTreeMap<String, String>,
}

pub(super) fn run(args: &CheckArgs) -> ExitCode {
    let report = match Source::new(args.file.clone(), Overrides::default()) {
        Ok(source) => Report::of(&source, args.any_machine),
        Err(error) => Report::refused("", &error),
    };
    let status = report.exit(args.strict);
    if args.json { output::print_json(&report, status) } else { report.print(status) }
}

impl Report {
    /// Of a file as it would be loaded, except that what the machine does not have is a finding.
    pub(super) fn of(source: &Source, any_machine: bool) -> Report {
        let config = match source.parse() {
            Ok(config) => config,
            Err(error) => return Report::refused(&source.name(), &error),
        };
        let judges = Judges {
            token: &|file| attach::read_token(file).err().map(|error| error.to_string()),
            key: &|source| MasterKey::load(&source.into()).err().map(|error| error.to_string()),
        };
        let mut findings = config.inversions();
        if !any_machine {
            findings.extend(config.findings_here(&source.machine, &judges));
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

    fn refused(file: &str, error: &ConfigError) -> Report {
        Report {
            file: file.to_owned(),
            verdict: "errors",
            error: Some(error.to_string()),
            findings: Vec::new(),
            explanation: Vec::new(),
            settings: BTreeMap::new(),
        }
    }

    /// Findings go to stderr, where errors of every command go. Returns the exit status.
    pub(super) fn print(&self, status: ExitCode) -> ExitCode {
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

    fn exit(&self, strict: bool) -> ExitCode {
        match self.verdict {
            "errors" => ExitCode::from(EXIT_ERRORS),
            "warnings" if strict => ExitCode::from(EXIT_WARNINGS),
            _ => ExitCode::SUCCESS,
        }
    }

    /// Whether the daemon would start.
    pub(super) fn starts(&self) -> bool {
        self.verdict != "errors"
    }
}
