//! The command line: `kvtide` with its commands, and `kvtided`, which is the same as `kvtide daemon`.
//!
//! It parses arguments and calls the command's module. Errors are printed on stderr here, in one format.

mod advise;
mod check_config;
mod daemon;
mod fsck;
pub mod private_daemon;
mod purge;
mod status;
mod top;

use crate::{bench, crash_test, demo, output, replay};
use clap::{CommandFactory, Parser, Subcommand};
use std::io::{self, Write};
use std::process::ExitCode;

pub use daemon::DaemonArgs;
pub(crate) use status::client::get as http_get;

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
    /// Decode a model with its KV cache offloaded and verify identical output.
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
}

/// KV cache daemon that inference engines attach to.
#[derive(Debug, Parser)]
#[command(name = "kvtided", version, about)]
struct Kvtided {
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// Run the tool `kvtide`.
#[must_use]
pub fn kvtide() -> ExitCode {
    let command = match parse::<Kvtide>() {
        Ok(tool) => tool.command,
        Err(status) => return status,
    };
    match command {
        Command::Daemon(args) => daemon::run(&args),
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
    }
}

/// Run the daemon `kvtided`.
#[must_use]
pub fn kvtided() -> ExitCode {
    match parse::<Kvtided>() {
        Ok(daemon) => daemon::run(&daemon.daemon),
        Err(status) => status,
    }
}

/// Parse the command line. Return the exit status if help, the version or an error was printed.
fn parse<P: Parser>() -> Result<P, ExitCode> {
    P::try_parse().map_err(|error| {
        let status = ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(u8::MAX));
        let printed = error.print().and_then(|()| io::stdout().flush());
        // Usage errors go to stderr and keep their status, even if stderr cannot be written.
        if error.use_stderr() { status } else { output::ended(printed, status) }
    })
}

/// Return the definition of all commands of `kvtide`, for tests.
#[must_use]
pub fn commands() -> clap::Command {
    Kvtide::command()
}
