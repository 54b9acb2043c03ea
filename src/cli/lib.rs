//! The command line of `kvtide`: parses arguments and calls the command's module. Errors are printed on stderr, in one format.
#![deny(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // they panic when the disk behind them is full; `output` does not

mod advise;
mod check_config;
mod fsck;
mod purge;
mod status;
mod top;
mod which;

use clap::{CommandFactory, Parser, Subcommand};
use kvtide_bench::{bench, crash_test, demo, replay};
use kvtide_daemon::command::{self, DaemonArgs};
use std::process::ExitCode;

/// Give LLM inference engines more KV cache than their GPUs have memory.
#[derive(Debug, Parser)]
#[command(name = "kvtide", version, about, arg_required_else_help = true)]
struct Kvtide {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon in the foreground.
    Daemon(DaemonArgs),
    /// Validate a configuration file and print the effective settings.
    CheckConfig(check_config::CheckArgs),
    /// Check disks offline: index and page checksums.
    Fsck(fsck::FsckArgs),
    /// Show in a minute what kvtide does, and verify identical output.
    Demo(demo::Args),
    /// Show daemon status.
    Status(status::StatusArgs),
    /// Estimate hit rates for other sizes and policies.
    Advise(advise::AdviseArgs),
    /// Show tiers, disks, spaces and sessions of a running daemon, refreshed continuously (q quits).
    Top(top::TopArgs),
    /// Run benchmarks.
    Bench(bench::Args),
    /// Simulate a trace: hits, evictions, bytes moved.
    Replay(replay::Args),
    /// Kill the daemon under load and verify all stored blocks.
    CrashTest(crash_test::Args),
    /// Crypto-erase a tenant's data.
    Purge(purge::PurgeArgs),
    /// Run an engine of the demo (started by `kvtide demo`).
    #[command(name = "demo-engine", hide = true)]
    DemoEngine(demo::engine::EngineArgs),
    /// Run the engine of the demo's chats (started by `kvtide demo`).
    #[command(name = "demo-chats", hide = true)]
    DemoChats(demo::ChatArgs),
}

/// Run the tool `kvtide`.
#[must_use]
pub fn kvtide() -> ExitCode {
    let command = match command::parse::<Kvtide>() {
        Ok(tool) => tool.command,
        Err(status) => return status,
    };
    match command {
        Command::Daemon(args) => command::run(&args),
        Command::CheckConfig(args) => check_config::run(&args),
        Command::Fsck(args) => fsck::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Advise(args) => advise::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::CrashTest(args) => crash_test::run(&args),
        Command::Purge(args) => purge::run(&args),
        Command::DemoEngine(args) => demo::engine::run(&args),
        Command::DemoChats(args) => demo::chats::engine::run(&args),
    }
}

/// Return the definition of all commands of `kvtide`, for tests.
#[must_use]
pub fn commands() -> clap::Command {
    Kvtide::command()
}
