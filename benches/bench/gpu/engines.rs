//! Two engine processes with tier 0 on the device and one daemon. Each is the demo's engine: it decodes a model with most of its KV
//! outside tier 0 and compares every logit. They share the device, the daemon and the space.

use super::super::BenchError;
use super::super::report::Target;
use super::Place;
use super::figures::Figures;
use crate::demo::engine::{Message, Stage};
use crate::private_daemon::{Options as DaemonOptions, PrivateDaemon};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const ENGINES: usize = 2;
/// Prompt and decoded tokens of each engine.
const TOKENS: (u32, u32) = (1024, 64);
const TOKENS_TINY: (u32, u32) = (128, 4);
/// Frames of each tier 0: a small part of the pages of those tokens, and enough for the demo's scan.
const FRAMES: u32 = 64;
/// Host memory for both engines.
const HOST_BYTES: u64 = 256 << 20;

/// A child process that is killed on drop.
struct Engine(Child);

impl Drop for Engine {
    fn drop(&mut self) {
        // Both fail only if the process has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn measure(place: &Place, figures: &mut Figures) -> Result<(), BenchError> {
    let (prefill, decode) = if figures.tiny() { TOKENS_TINY } else { TOKENS };
    let options =
        DaemonOptions { host_bytes: Some(HOST_BYTES), slab_bytes: Some(HOST_BYTES / 16), ..DaemonOptions::default() };
    let mut daemon = PrivateDaemon::start(&options)?;
    let began = Instant::now();
    let mut running = vec![];
    for _ in 0..ENGINES {
        running.push(start(place, &daemon, prefill, decode)?);
    }
    // One thread reads from each engine, so that both run at the same time.
    let ended: Vec<Result<(u64, u64), BenchError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = running.iter_mut().map(|engine| scope.spawn(|| listen(engine))).collect();
        let panicked = || Err(BenchError::Odd("the reader thread of an engine panicked".into()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
    });
    let seconds = began.elapsed().as_secs_f64();
    let (mut compared, mut different) = (0, 0);
    for result in ended {
        let (of_one, wrong) = result?;
        compared += of_one;
        different += wrong;
    }
    daemon.stop()?;
    if compared == 0 {
        return Err(BenchError::Odd("the engines compared no logits".into()));
    }
    let what = format!("two engines: logits compared, {prefill} + {decode} tokens each");
    figures.plain("engines_logits", what, compared as f64, "");
    let what = "two engines: logits that differ from all-resident";
    figures.judged("engines_different", what, (different as f64, ""), Target::AtMost(0.0));
    figures.plain("engines_seconds", "two engines: total time", seconds, "s");
    Ok(())
}

fn start(place: &Place, daemon: &PrivateDaemon, prefill: u32, decode: u32) -> Result<Engine, BenchError> {
    let failed = |source| BenchError::System { tried: "start an engine".into(), source };
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.arg("demo-engine").arg("--socket").arg(daemon.socket()).args(["--device", &place.name]);
    command.args(["--prefill", &prefill.to_string(), "--decode", &decode.to_string()]);
    command.args(["--tier0-frames", &FRAMES.to_string(), "--parent", &std::process::id().to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    Ok(Engine(command.spawn().map_err(failed)?))
}

/// Read the messages of an engine to their end. Return the logits compared and the number that differed.
fn listen(engine: &mut Engine) -> Result<(u64, u64), BenchError> {
    let odd = |what: String| BenchError::Odd(format!("an engine {what}"));
    let (Some(stdout), Some(mut stdin)) = (engine.0.stdout.take(), engine.0.stdin.take()) else {
        return Err(odd("process has no pipes".into()));
    };
    let (mut compared, mut different) = (0, 0);
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        match serde_json::from_str(&line).map_err(|e| odd(format!("sent an invalid message {line:?}: {e}")))? {
            Message::Progress { .. } | Message::Device { .. } => {}
            // Write errors are ignored: if the engine has died, its exit status shows it.
            Message::Checkpoint { .. } => drop(stdin.write_all(b"\n")),
            Message::Ended { stage: Stage::Resident | Stage::Tiered, measured } => {
                compared += measured.comparison.compared;
                different += measured.comparison.different;
            }
            Message::Ended { .. } => {}
            Message::Failed { stage, tokens, error, .. } => {
                return Err(odd(format!("failed in {} at token {tokens}: {error}", stage.name())));
            }
        }
    }
    let status = engine.0.wait().map_err(|source| BenchError::System { tried: "wait for an engine".into(), source })?;
    if status.success() { Ok((compared, different)) } else { Err(odd(format!("exited with {status}"))) }
}
