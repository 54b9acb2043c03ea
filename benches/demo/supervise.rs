//! The demo's main process: starts the daemon and the engine, shows the engine's messages, and cleans up.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use std::{env, thread};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::args::Args;
use super::console::Console;
use super::contracts::Inexact;
use super::engine::{Cause, Measured, Message, Stage};
use super::error::DemoError;
use super::nvme::Figures;
use super::report::Results;
use super::setup::Setup;
use super::sizes::{HOST_SCAN_FRAMES, SCAN_FRAMES};
use crate::private_daemon::{Nvme, Options, PrivateDaemon};

/// Maximum time without a message of the engine. It sends one after every chunk and step, and its own waits end after 10 s.
pub(super) const SILENCE: Duration = Duration::from_secs(60);
/// Time limit for the daemon's end to be detected after the engine saw it.
const DAEMON_END: Duration = Duration::from_secs(5);

/// Events while an engine runs.
enum Event {
    /// A line of the engine.
    Line(String),
    /// End of the engine's output.
    End,
    /// End of the daemon.
    DaemonEnd,
    /// A signal to the demo.
    Signal(i32),
}

/// An engine process, killed and reaped on drop.
struct Engine(Child);

impl Engine {
    /// Let the engine continue after a checkpoint. A broken pipe is ignored: the exit status shows that the engine has died.
    fn go_on(&mut self) -> Result<(), DemoError> {
        match self.0.stdin.as_mut().map(|stdin| stdin.write_all(b"\n")) {
            Some(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => Err(process("answer the engine")(error)),
            _ => Ok(()),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Both fail only if the process has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Run everything. All processes and files are removed when it returns.
///
/// # Errors
/// [`DemoError`].
pub fn demo(args: &Args, setup: &Setup, console: &mut Console) -> Result<Results, DemoError> {
    let (sender, events) = channel();
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(process("watch for signals"))?;
    let stop = signals.handle();
    let on_signal = sender.clone();
    let watcher = thread::spawn(move || {
        for signal in signals.forever() {
            // Fails only after the demo has ended.
            let _ = on_signal.send(Event::Signal(signal));
        }
    });
    let result = supervise(args, setup, console, &sender, &events);
    stop.close();
    // Ends because of the line above, and cannot panic.
    let _ = watcher.join();
    result
}

fn supervise(
    args: &Args,
    setup: &Setup,
    console: &mut Console,
    sender: &Sender<Event>,
    events: &Receiver<Event>,
) -> Result<Results, DemoError> {
    let mut daemon = PrivateDaemon::start(&options(args, setup))?;
    watch(&daemon, sender)?;
    console.began(setup, &daemon);
    let rehearsal = start_engine(args, setup, &daemon, true, sender)?;
    let device = relay(rehearsal, setup, console, &mut daemon, events)?.device;
    let engine = start_engine(args, setup, &daemon, false, sender)?;
    console.started(daemon.pid(), engine.0.id());
    let Relayed { mut ended, checkpoints, .. } = relay(engine, setup, console, &mut daemon, events)?;
    let mut of = |wanted| {
        let at = ended.iter().position(|(stage, _)| *stage == wanted);
        at.map(|at| ended.remove(at).1).ok_or(DemoError::Incomplete)
    };
    let (plain, resident, tiered) = (of(Stage::Plain)?, of(Stage::Resident)?, of(Stage::Tiered)?);
    let (of_exact, of_inexact): (Vec<_>, Vec<_>) = checkpoints.iter().partition(|(stage, _)| *stage == Stage::Tiered);
    let nvme = match (&setup.nvme, of_exact.as_slice()) {
        (None, _) => None,
        (Some(_), [(_, [begin, _]), (_, [first, end])]) => {
            Some(Figures::between(begin, [first, end], Stage::Tiered.space())?)
        }
        (Some(_), _) => return Err(DemoError::Incomplete),
    };
    let inexact: Vec<Measured> = ended.into_iter().filter(|(stage, _)| *stage == Stage::Inexact).map(|e| e.1).collect();
    if inexact.len() != args.inexact().len() || of_inexact.len() != inexact.len() {
        return Err(DemoError::Incomplete);
    }
    let inexact = inexact.into_iter().zip(of_inexact);
    let inexact = inexact.map(|(measured, (_, [_, end]))| Inexact::new(measured, end)).collect::<Result<_, _>>()?;
    Ok(Results { setup: setup.clone(), device, plain, resident, tiered, nvme, inexact })
}

fn options(args: &Args, setup: &Setup) -> Options {
    let nvme = setup.nvme.map(|nvme| Nvme { dir: args.nvme_dir.clone(), bytes: nvme.bytes });
    let config = setup.nvme.map(|nvme| {
        format!("[tiers.nvme]\nslab = {}\n[edges.nvme_to_host]\nscan_frames = {HOST_SCAN_FRAMES}\n", nvme.slab_bytes)
    });
    Options {
        dir: args.dir.clone(),
        host_bytes: Some(setup.host_bytes()),
        slab_bytes: Some(setup.slab_bytes()),
        scan_frames: Some(SCAN_FRAMES),
        nvme,
        config,
        ..Options::default()
    }
}

/// Report the daemon's end at once, on a thread that ends with the daemon.
fn watch(daemon: &PrivateDaemon, events: &Sender<Event>) -> Result<(), DemoError> {
    let watching = process("watch the daemon");
    let pid = i32::try_from(daemon.pid()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| watching(io::ErrorKind::InvalidInput.into()))?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| watching(errno.into()))?;
    let events = events.clone();
    thread::spawn(move || {
        while poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None) == Err(Errno::INTR) {}
        // Fails only after the demo has ended.
        let _ = events.send(Event::DaemonEnd);
    });
    Ok(())
}

/// Results of an engine.
#[derive(Default)]
struct Relayed {
    /// Driver's name of the device, if tier 0 is on one.
    device: Option<String>,
    ended: Vec<(Stage, Measured)>,
    /// The daemon's status at each checkpoint, requested twice.
    checkpoints: Vec<(Stage, [Value; 2])>,
}

/// Show the messages of an engine until it ends. Return its results.
fn relay(
    mut engine: Engine,
    setup: &Setup,
    console: &mut Console,
    daemon: &mut PrivateDaemon,
    events: &Receiver<Event>,
) -> Result<Relayed, DemoError> {
    let mut relayed = Relayed::default();
    let mut at = (Stage::Rehearsal, 0);
    loop {
        let line = match events.recv_timeout(SILENCE) {
            Ok(Event::Line(line)) => line,
            Ok(Event::Signal(signal)) => return Err(DemoError::Signal(signal)),
            Ok(Event::DaemonEnd) => return Err(daemon_died(daemon, at)),
            Ok(Event::End) | Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => return Err(DemoError::Silent),
        };
        match serde_json::from_str(&line) {
            Err(source) => return Err(DemoError::Nonsense { line, source }),
            Ok(Message::Progress { stage, tokens, token }) => {
                at = (stage, tokens);
                console.progress(setup, stage, tokens, token);
            }
            Ok(Message::Checkpoint { stage, .. }) => {
                relayed.checkpoints.push((stage, [daemon.status()?, daemon.status()?]));
                engine.go_on()?;
            }
            Ok(Message::Device { name }) => {
                console.device(&name);
                relayed.device = Some(name);
            }
            Ok(Message::Ended { stage, measured }) => {
                console.ended(setup, stage, &measured);
                relayed.ended.push((stage, measured));
            }
            Ok(Message::Failed { stage, tokens, error, cause }) => {
                return Err(failed(setup, daemon, (stage, tokens), error, cause));
            }
        }
    }
    match engine.0.wait().map_err(process("reap the engine"))? {
        status if status.success() => Ok(relayed),
        status => Err(DemoError::EngineDied(status)),
    }
}

fn process(what: &'static str) -> impl Fn(io::Error) -> DemoError {
    move |source| DemoError::Process { what, source }
}

fn start_engine(
    args: &Args,
    setup: &Setup,
    daemon: &PrivateDaemon,
    rehearse: bool,
    events: &Sender<Event>,
) -> Result<Engine, DemoError> {
    let binary = env::current_exe().map_err(process("find this program's own binary"))?;
    let mut command = Command::new(binary);
    command.arg("demo-engine").arg("--socket").arg(daemon.socket());
    command.args(["--prefill", &setup.sizes.prefill.to_string(), "--decode", &setup.sizes.decode.to_string()]);
    command.args(["--tier0-frames", &setup.tier0_frames.to_string(), "--parent", &std::process::id().to_string()]);
    for contract in args.inexact() {
        command.args(["--contract", &contract.to_string()]);
    }
    command.args(["--device", &args.device.text, "--host-windows", &setup.host_windows.to_string()]);
    command.args(rehearse.then_some("--rehearse"));
    if let Some(text) = &args.text {
        command.arg("--text").arg(text);
    }
    // A process group of its own: Ctrl-C reaches only the demo, which then ends the engine.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
    let mut engine = Engine(command.spawn().map_err(process("start the engine"))?);
    let no_pipe = || process("read from the engine")(io::ErrorKind::NotFound.into());
    let stdout = engine.0.stdout.take().ok_or_else(no_pipe)?;
    let events = events.clone();
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

fn failed(setup: &Setup, daemon: &mut PrivateDaemon, at: (Stage, usize), error: String, cause: Cause) -> DemoError {
    let (of, stage, tokens) = (setup.sizes.tokens(), at.0.name(), at.1);
    match cause {
        Cause::Refused => DemoError::Refused { stage, tokens, of, error, sizes: setup.advice() },
        Cause::Daemon => daemon_died(daemon, at),
        Cause::Other => DemoError::Failed { stage, tokens, error },
    }
}

/// Return the error for a daemon that ended or closed its socket.
fn daemon_died(daemon: &mut PrivateDaemon, (stage, tokens): (Stage, usize)) -> DemoError {
    let ended = daemon.wait(DAEMON_END).map_or_else(|error| error.to_string(), |status| status.to_string());
    let log = match daemon.log() {
        log if log.is_empty() => log,
        log => format!("\nend of its log:\n{log}"),
    };
    DemoError::DaemonDied { ended, stage: stage.name(), tokens, log }
}
