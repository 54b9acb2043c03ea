//! The first part of the demo, in its main process: starts the daemon and the engine, and shows the engine's messages.

use std::sync::mpsc::{Receiver, Sender};

use serde_json::Value;

use super::args::Args;
use super::console::Console;
use super::contracts::Inexact;
use super::engine::{Cause, Measured, Message, Stage};
use super::error::DemoError;
use super::nvme::Figures;
use super::processes::{Engine, Event, last_words, message, watch};
use super::report::Results;
use super::setup::Setup;
use super::sizes::{HOST_SCAN_FRAMES, SCAN_FRAMES};
use crate::private_daemon::{Nvme, Options, PrivateDaemon};

/// Run paged decode. All its processes and files are removed when it returns.
///
/// # Errors
/// [`DemoError`].
pub(super) fn paged(
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
    if of_inexact.len() != inexact.len() {
        return Err(DemoError::Incomplete);
    }
    let statuses = of_inexact.into_iter().map(|(_, [_, end])| end.clone());
    let inexact = Inexact::paired(inexact.into_iter().zip(statuses))?;
    if inexact.len() != args.inexact().len() {
        return Err(DemoError::Incomplete);
    }
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
    while let Some(message) = message(events, daemon, |daemon| daemon_died(daemon, at))? {
        match message {
            Message::Progress { stage, tokens, token } => {
                at = (stage, tokens);
                console.progress(setup, stage, tokens, token);
            }
            Message::Checkpoint { stage, .. } => {
                relayed.checkpoints.push((stage, [daemon.status()?, daemon.status()?]));
                engine.go_on("")?;
            }
            Message::Device { name } => {
                console.device(&name);
                relayed.device = Some(name);
            }
            Message::Ended { stage, measured } => {
                console.ended(setup, stage, &measured);
                relayed.ended.push((stage, measured));
            }
            Message::Failed { stage, tokens, error, cause } => {
                return Err(failed(setup, daemon, (stage, tokens), error, cause));
            }
        }
    }
    engine.ended()?;
    Ok(relayed)
}

fn start_engine(
    args: &Args,
    setup: &Setup,
    daemon: &PrivateDaemon,
    rehearse: bool,
    events: &Sender<Event>,
) -> Result<Engine, DemoError> {
    let mut command = Engine::command("demo-engine")?;
    command.arg("--socket").arg(daemon.socket());
    command.args(["--prefill", &setup.sizes.prefill.to_string(), "--decode", &setup.sizes.decode.to_string()]);
    command.args(["--tier0-frames", &setup.tier0_frames.to_string(), "--parent", &std::process::id().to_string()]);
    for contract in args.inexact() {
        command.args(["--contract", &contract.to_string()]);
    }
    command.args(["--max-stall-us", &args.stall_us().to_string()]);
    command.args(args.device.is_host().then_some("--compare-prefetch"));
    command.args(["--device", &args.device.text, "--host-windows", &setup.host_windows.to_string()]);
    command.args(rehearse.then_some("--rehearse"));
    if let Some(text) = &args.text {
        command.arg("--text").arg(text);
    }
    Engine::spawn(command, events)
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
    let (ended, log) = last_words(daemon);
    DemoError::DaemonDied { ended, stage: stage.name(), tokens, log }
}
