//! `kvtide config`: checks a configuration file, shows the effective settings, documents the keys.

use clap::{Args, Subcommand};
use kvtide_daemon::check::Report;
use kvtide_daemon::config::{self, Overrides, Source};
use kvtide_daemon::output;
use std::path::PathBuf;
use std::process::ExitCode;

/// Flags of `kvtide config`.
#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Validate a configuration file: errors, warnings, and what the settings mean
    #[command(after_help = "Exit status: 0: no errors; 1: errors, or with --strict warnings; 2: wrong usage.\n\n\
        Examples:\n  kvtide config check /etc/kvtide/kvtided.toml\n  kvtide config check --strict --json /etc/kvtide/kvtided.toml")]
    Check(CheckArgs),
    /// Print the effective settings, a key and its value on each line
    #[command(after_help = "Examples:\n  kvtide config show\n  kvtide config show /etc/kvtide/kvtided.toml")]
    Show(ShowArgs),
    /// Print a file with every key, its documentation and its default
    #[command(after_help = "Examples:\n  kvtide config keys\n  kvtide config keys tiers.nvme")]
    Keys(KeysArgs),
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// Configuration file in TOML [default: built-in settings]
    file: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Exit with status 1 on warnings too
    #[arg(long)]
    strict: bool,
    /// Check a file of another machine: skip what depends on this one, and take sizes from 1 TiB of memory and empty disks of 1 TiB
    #[arg(long)]
    any_machine: bool,
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// Configuration file in TOML [default: built-in settings]
    file: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct KeysArgs {
    /// Print only the keys that begin with this name
    name: Option<String>,
    /// Print one JSON object: the default of each key
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &ConfigArgs) -> ExitCode {
    match &args.command {
        Command::Check(args) => check(args),
        Command::Show(args) => show(args),
        Command::Keys(args) => keys(args),
    }
}

fn check(args: &CheckArgs) -> ExitCode {
    let source = match args.any_machine {
        true => Ok(Source::of_other_machine(args.file.clone())),
        false => Source::new(args.file.clone(), Overrides::default()),
    };
    let report = match source {
        Ok(source) => Report::of(&source),
        Err(error) => Report::refused("", &error),
    };
    let status = report.exit(args.strict);
    if args.json { output::print_json(&report, status) } else { report.print(status) }
}

fn show(args: &ShowArgs) -> ExitCode {
    let source = Source::new(args.file.clone(), Overrides::default());
    let settings = match source.and_then(|source| source.parse()) {
        Ok(config) => config.settings(),
        Err(error) => {
            output::say(format_args!("kvtide: {error}"));
            return ExitCode::from(output::FAILED);
        }
    };
    if args.json {
        let settings: serde_json::Map<String, serde_json::Value> =
            settings.into_iter().map(|setting| (setting.key, setting.value.into())).collect();
        return output::print_json(&serde_json::json!({ "settings": settings }), ExitCode::SUCCESS);
    }
    let lines = settings.into_iter().map(|setting| format!("{} = {}\n", setting.key, setting.value));
    output::print(&lines.collect::<String>(), ExitCode::SUCCESS)
}

fn keys(args: &KeysArgs) -> ExitCode {
    let name = args.name.as_deref().unwrap_or_default();
    let known = config::keys();
    let chosen: Vec<_> = known.iter().filter(|key| key.name.starts_with(name)).collect();
    if chosen.is_empty() {
        let near = config::most_like(name, known.iter().map(|key| key.name.as_str()));
        let near = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
        output::say(format_args!("kvtide: no key begins with {name:?}{near}"));
        return ExitCode::from(output::FAILED);
    }
    if args.json {
        let keys: serde_json::Map<String, serde_json::Value> = chosen
            .iter()
            .map(|key| {
                (key.name.clone(), serde_json::json!({ "default": key.default, "documentation": key.documentation }))
            })
            .collect();
        return output::print_json(&serde_json::json!({ "keys": keys }), ExitCode::SUCCESS);
    }
    if name.is_empty() {
        return output::print(&config::reference(), ExitCode::SUCCESS);
    }
    let text = chosen.iter().map(|key| {
        let lines = key.documentation.lines().map(|line| format!("# {line}\n"));
        format!("{}{} = {}\n\n", lines.collect::<String>(), key.name, key.default)
    });
    output::print(&text.collect::<String>(), ExitCode::SUCCESS)
}
