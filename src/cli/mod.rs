//! The command line: `kvtide daemon`, `kvtide demo`, `kvtide bench`, `kvtide replay`, `kvtide crash-test`, and `kvtided`, which is `kvtide daemon` by another name.
//!
//! It parses and hands over. What a command does lives in its own room; errors end up on stderr here, in one form.

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

/// More KV cache than the GPU has memory.
#[derive(Debug, Parser)]
#[command(name = "kvtide", version, about, arg_required_else_help = true)]
struct Kvtide {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the daemon in the foreground.
    Daemon(DaemonArgs),
    /// Explains a configuration file as the daemon understands it, and warns of what is probably not meant.
    CheckConfig(check_config::CheckArgs),
    /// Checks disks without a daemon: the index, and every page against its checksum
    Fsck(fsck::FsckArgs),
    /// Decodes a real model with most of its KV outside of tier 0, and compares every logit with the all-resident run.
    Demo(demo::Args),
    /// Says how a running daemon stands.
    Status(status::StatusArgs),
    /// Says what more host memory, more NVMe space or another policy would buy, by the ghost caches of a running daemon.
    Advise(advise::AdviseArgs),
    /// Shows a running daemon live, by tier, disk, space and session; q quits.
    Top(top::TopArgs),
    /// Measures what this project promises, each figure beside its target.
    Bench(bench::Args),
    /// Runs a trace through the core in simulated time: what a policy finds, keeps in place and moves.
    Replay(replay::Args),
    /// Kills a loaded daemon at random moments, and reads back everything that it had reported stored.
    CrashTest(crash_test::Args),
    /// Erases a tenant's key from disks that no daemon serves: what it stored encrypted cannot be read any more.
    Purge(purge::PurgeArgs),
    /// The demo's engine, a process of its own that the demo starts.
    #[command(name = "demo-engine", hide = true)]
    DemoEngine(demo::engine::EngineArgs),
}

/// The daemon that engines attach to.
#[derive(Debug, Parser)]
#[command(name = "kvtided", version, about)]
struct Kvtided {
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// The entry of the tool `kvtide`.
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

/// The entry of the daemon `kvtided`.
#[must_use]
pub fn kvtided() -> ExitCode {
    match parse::<Kvtided>() {
        Ok(daemon) => daemon::run(&daemon.daemon),
        Err(status) => status,
    }
}

/// The command line, or the exit status once help, the version or an error was printed.
fn parse<P: Parser>() -> Result<P, ExitCode> {
    P::try_parse().map_err(|error| {
        let status = ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(u8::MAX));
        let printed = error.print().and_then(|()| io::stdout().flush());
        // Usage errors go to stderr and keep their status, even if stderr cannot be written.
        if error.use_stderr() { status } else { output::ended(printed, status) }
    })
}

/// The commands of `kvtide`, for tests that try each of them.
#[must_use]
pub fn commands() -> clap::Command {
    Kvtide::command()
}
