//! The demo's own process: starts the daemon and the engine, relays what the engine says, and leaves nothing behind.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use std::{env, io, thread};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::args::Args;
use super::console::Console;
use super::engine::{Cause, Measured, Message, Stage};
use super::model::WeightsError;
use super::prompt::PromptError;
use super::report::Results;
use super::setup::Setup;
use super::sizes::SCAN_FRAMES;
use crate::cli::private_daemon::{Options, PrivateDaemon};

/// Longest silence of the engine: it speaks after every chunk and step, and its own waits are bounded by 10 s.
const SILENCE: Duration = Duration::from_secs(60);
/// How long the daemon's end may take to show after the engine saw it.
const DAEMON_END: Duration = Duration::from_secs(5);

/// Why the demo did not reach its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// The private daemon did not start.
    #[error(transparent)]
    Daemon(#[from] crate::error::Error),
    /// The text cannot be had.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The model does not load.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The results cannot be written as JSON.
    #[error("cannot write the results as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A process could not be started or watched.
    #[error("cannot {what}: {source}")]
    Process {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// More tokens than the model has positions.
    #[error("{wanted} tokens are more than the {most} positions that the model was made for")]
    Long {
        /// Tokens asked for.
        wanted: usize,
        /// Most that there may be.
        most: usize,
    },
    /// The daemon refused for want of room.
    #[error("{stage}: the daemon refused after {tokens} of {of} tokens: {error}\n{sizes}")]
    Refused {
        /// Which run.
        stage: &'static str,
        /// Tokens that it had.
        tokens: usize,
        /// Tokens that it was to have.
        of: usize,
        /// The client's error.
        error: String,
        /// The tiers' sizes, and what would do.
        sizes: String,
    },
    /// The daemon died.
    #[error("the daemon died ({ended}) during {stage}, after {tokens} tokens; the engine saw: {error}{log}")]
    DaemonDied {
        /// How it ended.
        ended: String,
        /// Which run.
        stage: &'static str,
        /// Tokens that it had.
        tokens: usize,
        /// The client's error.
        error: String,
        /// The end of its log.
        log: String,
    },
    /// Something else went wrong in the engine.
    #[error("{stage} failed after {tokens} tokens: {error}")]
    Failed {
        /// Which run.
        stage: &'static str,
        /// Tokens that it had.
        tokens: usize,
        /// What was tried, on what, and why it failed.
        error: String,
    },
    /// The engine ended without a last word.
    #[error("the engine died ({0}) before it was done")]
    EngineDied(ExitStatus),
    /// The engine said something else than a message.
    #[error("the engine said {line:?}, which is no message: {source}")]
    Nonsense {
        /// What it said.
        line: String,
        /// Why it is none.
        source: serde_json::Error,
    },
    /// The engine said nothing for too long.
    #[error("the engine was silent for {SILENCE:?}")]
    Silent,
    /// The demo was told to end.
    #[error("ended by signal {0}")]
    Signal(i32),
}

/// What happens while the engine runs.
enum Event {
    Line(String),
    End,
    Signal(i32),
}

/// The engine's process; killed and reaped at drop.
struct Engine(Child);

impl Drop for Engine {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs everything; processes and files are gone when it returns.
///
/// # Errors
/// [`DemoError`].
pub fn demo(args: &Args, setup: &Setup, console: &mut Console) -> Result<Results, DemoError> {
    let (sender, events) = channel();
    let process = |what| move |source| DemoError::Process { what, source };
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(process("watch for signals"))?;
    let stop = signals.handle();
    let on_signal = sender.clone();
    let watcher = thread::spawn(move || {
        for signal in signals.forever() {
            // Fails only after the demo has ended.
            let _ = on_signal.send(Event::Signal(signal));
        }
    });
    let result = supervise(args, setup, console, sender, &events);
    stop.close();
    // It ends by the line above and cannot panic.
    let _ = watcher.join();
    result
}

fn supervise(
    args: &Args,
    setup: &Setup,
    console: &mut Console,
    sender: Sender<Event>,
    events: &Receiver<Event>,
) -> Result<Results, DemoError> {
    let mut daemon = PrivateDaemon::start(&Options {
        dir: args.dir.clone(),
        host_bytes: Some(setup.host_bytes()),
        slab_bytes: Some(setup.slab_bytes()),
        scan_frames: Some(SCAN_FRAMES),
        ..Options::default()
    })?;
    let mut engine = start_engine(args, setup, &daemon, sender)?;
    console.began(setup, &daemon, engine.0.id());
    let mut ended: Vec<(Stage, Measured)> = Vec::new();
    loop {
        let line = match events.recv_timeout(SILENCE) {
            Ok(Event::Line(line)) => line,
            Ok(Event::Signal(signal)) => return Err(DemoError::Signal(signal)),
            Ok(Event::End) | Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => return Err(DemoError::Silent),
        };
        match serde_json::from_str(&line) {
            Err(source) => return Err(DemoError::Nonsense { line, source }),
            Ok(Message::Progress { stage, tokens, token }) => console.progress(setup, stage, tokens, token),
            Ok(Message::Ended { stage, measured }) => {
                console.ended(setup, stage, &measured);
                ended.push((stage, measured));
            }
            Ok(Message::Failed { stage, tokens, error, cause }) => {
                return Err(failed(setup, &mut daemon, stage, tokens, error, cause));
            }
        }
    }
    let status = engine.0.wait().map_err(|source| DemoError::Process { what: "reap the engine", source })?;
    let mut of = |wanted| ended.iter().position(|(stage, _)| *stage == wanted).map(|i| ended.swap_remove(i).1);
    match (of(Stage::Plain), of(Stage::Resident), of(Stage::Tiered)) {
        (Some(plain), Some(resident), Some(tiered)) if status.success() => {
            Ok(Results { setup: setup.clone(), plain, resident, tiered })
        }
        _ => Err(DemoError::EngineDied(status)),
    }
}

fn start_engine(
    args: &Args,
    setup: &Setup,
    daemon: &PrivateDaemon,
    events: Sender<Event>,
) -> Result<Engine, DemoError> {
    let process = |what| move |source| DemoError::Process { what, source };
    let binary = env::current_exe().map_err(process("find this program's own binary"))?;
    let mut command = Command::new(binary);
    command.arg("demo-engine").arg("--socket").arg(daemon.socket());
    command.args(["--prefill", &setup.sizes.prefill.to_string(), "--decode", &setup.sizes.decode.to_string()]);
    command.args(["--tier0-frames", &setup.tier0_frames.to_string(), "--parent", &std::process::id().to_string()]);
    if let Some(text) = &args.text {
        command.arg("--text").arg(text);
    }
    // A group of its own: Ctrl-C reaches the demo, which then ends the engine, and not both at once.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    let mut engine = Engine(command.spawn().map_err(process("start the engine"))?);
    let stdout =
        engine.0.stdout.take().ok_or_else(|| process("read from the engine")(io::ErrorKind::NotFound.into()))?;
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if events.send(Event::Line(line)).is_err() {
                return;
            }
        }
        // Fails only after the demo has ended.
        let _ = events.send(Event::End);
    });
    Ok(engine)
}

fn failed(
    setup: &Setup,
    daemon: &mut PrivateDaemon,
    stage: Stage,
    tokens: usize,
    error: String,
    cause: Cause,
) -> DemoError {
    let of = setup.sizes.tokens();
    match cause {
        Cause::Refused => DemoError::Refused { stage: stage.name(), tokens, of, error, sizes: setup.advice() },
        Cause::Daemon => match daemon.wait(DAEMON_END) {
            Ok(status) => {
                let log = match daemon.log() {
                    log if log.is_empty() => log,
                    log => format!("\nits log ends with:\n{log}"),
                };
                DemoError::DaemonDied { ended: status.to_string(), stage: stage.name(), tokens, error, log }
            }
            Err(_) => DemoError::Failed { stage: stage.name(), tokens, error },
        },
        Cause::Other => DemoError::Failed { stage: stage.name(), tokens, error },
    }
}
