//! The command line of `kvtide`: parses arguments and calls the command's module. Errors are printed on stderr, in one format.
//!
//! Exit statuses: 0: done; 1: failed; 2: wrong usage, or a demo, benchmark, replay or crash test that cannot be run; 3: no daemon
//! answers. `kvtide daemon` and `fsck` have more.
#![deny(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // they panic when the disk behind them is full; `output` does not

mod advise;
mod cache;
mod config;
mod confirm;
mod doctor;
mod drain;
mod events;
mod fsck;
mod manual;
mod purge;
mod status;
mod table;
mod top;
mod waiting;
mod which;
mod why;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use kvtide_bench::{bench, crash_test, demo, replay};
use kvtide_daemon::command::{self, DaemonArgs};
use std::process::ExitCode;

/// Try, run, watch and repair kvtide, the daemon that gives LLM inference engines more KV cache than their GPUs have memory
#[derive(Debug, Parser)]
#[command(name = "kvtide", version, arg_required_else_help = true)]
struct Kvtide {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// See it work: decoding over pages, and chats that outlive the daemon, compared with an engine of its own
    #[command(after_help = "Examples:\n  kvtide demo\n  kvtide demo --report demo.html")]
    Demo(demo::Args),
    /// Run the daemon in the foreground
    #[command(
        version,
        after_help = "Examples:\n  kvtide daemon --config /etc/kvtide/kvtided.toml --check\n  \
        kvtide daemon --dir /tmp/kvtide --nvme-dir /var/tmp/kvtide --check"
    )]
    Daemon(DaemonArgs),
    /// Check, show and document the configuration
    Config(config::ConfigArgs),
    /// Check this host, and say what to change
    Doctor(doctor::DoctorArgs),
    /// Show what a daemon does: health, tiers, disks, spaces, engines
    Status(status::StatusArgs),
    /// Show health, hits and transfers of a daemon, refreshed continuously
    Top(top::TopArgs),
    /// List, search, pin and evict cached blocks
    Cache(cache::CacheArgs),
    /// Show where the blocks of a prompt are, or why they are not cached
    Why(why::WhyArgs),
    /// Estimate hit rates for other sizes and policies
    Advise(advise::AdviseArgs),
    /// Print the cached blocks and their changes as lines of JSON
    Events(events::EventsArgs),
    /// Stop new sessions, and wait for the attached ones to leave
    Drain(drain::DrainArgs),
    /// Let a daemon read its configuration again
    Reload(drain::ReloadArgs),
    /// Erase a tenant's data: its blocks in memory, and its key on the disks
    Purge(purge::PurgeArgs),
    /// Run benchmarks
    Bench(bench::Args),
    /// Simulate a trace: hits, evictions, bytes moved
    Replay(replay::Args),
    /// Kill the daemon under load and verify all stored blocks
    #[command(after_help = "Examples:\n  kvtide crash-test --dir /var/tmp/kvtide-crash --rounds 3\n  \
        kvtide crash-test --dir /var/tmp/kvtide-crash --rounds 3 --seed 1")]
    CrashTest(crash_test::Args),
    /// Check disks that no daemon uses, and repair them
    Fsck(fsck::FsckArgs),
    /// Print completions for a shell
    #[command(after_help = "Examples:\n  kvtide completions bash\n  kvtide completions zsh")]
    Completions(manual::CompletionsArgs),
    /// Write the manual pages
    #[command(after_help = "Examples:\n  kvtide man\n  kvtide man --dir /tmp/kvtide-man")]
    Man(manual::ManArgs),
    /// Run an engine of the demo (started by `kvtide demo`)
    #[command(name = "demo-engine", hide = true)]
    DemoEngine(demo::engine::EngineArgs),
    /// Run the engine of the demo's chats (started by `kvtide demo`)
    #[command(name = "demo-chats", hide = true)]
    DemoChats(demo::ChatArgs),
}

/// Commands by purpose, as the help lists them.
const PURPOSES: &[(&str, &[&str])] = &[
    ("Try", &["demo"]),
    ("Run", &["daemon", "config", "doctor"]),
    ("Look", &["status", "top", "cache", "why", "events", "advise"]),
    ("Act", &["drain", "reload", "purge"]),
    ("Measure", &["bench", "replay", "crash-test"]),
    ("Repair", &["fsck"]),
    ("Shell", &["completions", "man"]),
];

/// Run the tool `kvtide`.
#[must_use]
pub fn kvtide() -> ExitCode {
    let parsed = command::parsed(commands().try_get_matches().and_then(|found| Kvtide::from_arg_matches(&found)));
    let command = match parsed {
        Ok(tool) => tool.command,
        Err(status) => return status,
    };
    match command {
        Command::Daemon(args) => command::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Fsck(args) => fsck::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Cache(args) => cache::run(&args),
        Command::Why(args) => why::run(&args),
        Command::Advise(args) => advise::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Events(args) => events::run(&args),
        Command::Drain(args) => drain::run(&args),
        Command::Reload(args) => drain::reload(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::CrashTest(args) => crash_test::run(&args),
        Command::Purge(args) => purge::run(&args),
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::man(&args),
        Command::DemoEngine(args) => demo::engine::run(&args),
        Command::DemoChats(args) => demo::chats::engine::run(&args),
    }
}

/// Return the definition of all commands of `kvtide`: of its help, its completions, its manual pages and its tests.
#[must_use]
pub fn commands() -> clap::Command {
    let all = Kvtide::command();
    let width = all.get_subcommands().map(|command| command.get_name().len()).max().unwrap_or(0);
    let mut help = String::new();
    for (purpose, names) in PURPOSES {
        help += &format!("{purpose}:\n");
        for command in names.iter().filter_map(|name| all.find_subcommand(name)) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            help += &format!("  {:<width$}  {about}\n", command.get_name());
        }
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{help}\nOptions:\n{{options}}\n\n\
         Exit status: 0: done; 1: failed; 2: wrong usage, or a measurement that cannot be run; 3: no daemon answers.\n\
         `kvtide COMMAND --help` describes a command, with examples.\n"
    );
    all.help_template(template)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_purpose() {
        let all = Kvtide::command();
        let mut listed: Vec<&str> = PURPOSES.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let mut known: Vec<&str> =
            all.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name).collect();
        listed.sort_unstable();
        known.sort_unstable();
        assert_eq!(listed, known);
        let help = commands().render_help().to_string();
        assert!(help.contains("Look:\n  status") && help.contains("Repair:\n  fsck"), "{help}");
    }

    #[test]
    fn the_definitions_contradict_nothing() {
        commands().debug_assert();
    }
}
