//! `kvtide-relay`: copies a daemon's blocks to a store and back.

use clap::Parser;
use kvtide_http::log::Limits;
use kvtide_relay::command::{Arguments, write_manual};
use kvtide_relay::config::Config;
use kvtide_relay::error::Error;
use kvtide_relay::relay::Relay;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::env::VarError;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Environment variable with the log directives.
const LOG: &str = "KVTIDE_LOG";
/// Time between two lines with the number of suppressed lines.
const TELL: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(dir) = &arguments.man {
        return written(write_manual(dir));
    }
    // A store in a directory holds prompts. The other files and the sockets set their modes themselves.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let filter = match log_filter() {
        Ok(filter) => filter,
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "kvtide-relay: {why}");
            return ExitCode::FAILURE;
        }
    };
    let limits = Limits::default();
    let lines =
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    tracing_subscriber::registry().with(filter).with(limits.clone()).with(lines).init();
    // The number of suppressed lines is logged at intervals: after a flood no further line would trigger it.
    let told = std::thread::Builder::new().name("kvtide-log".into()).spawn(move || {
        loop {
            // PACE: between two counts.
            std::thread::sleep(TELL);
            limits.tell();
        }
    });
    if let Err(error) = told {
        tracing::error!("cannot start the thread that counts repeated lines: {error}");
        return ExitCode::FAILURE;
    }
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Return the exit status of a command without a log.
fn written(result: Result<(), Error>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    let _ = writeln!(std::io::stderr(), "kvtide-relay: {error}");
    ExitCode::FAILURE
}

/// Return the log filter of the environment.
fn log_filter() -> Result<EnvFilter, String> {
    let directives = match std::env::var(LOG) {
        Ok(directives) => directives,
        Err(VarError::NotPresent) => "info".to_owned(),
        Err(VarError::NotUnicode(value)) => value.to_string_lossy().into_owned(),
    };
    let wrong = |expected| format!("the environment variable {LOG} is {directives:?}: expected {expected}");
    kvtide_http::log::filter(&directives).map_err(wrong)
}

fn run(arguments: &Arguments) -> Result<(), Error> {
    let config = Config::read(&arguments.config)?;
    if arguments.check {
        return Relay::check(&config, &arguments.config).map(|()| tracing::info!("{}: ok", arguments.config.display()));
    }
    let mut signals =
        Signals::new([SIGTERM, SIGINT]).map_err(|source| Error::System { action: "handle signals", source })?;
    let relay = Relay::start(config, &arguments.config)?;
    tracing::info!("serving metrics on http://{}", relay.listen());
    let signal = signals.forever().next();
    tracing::info!("signal {}: ending", signal.unwrap_or(0));
    drop(relay);
    Ok(())
}
