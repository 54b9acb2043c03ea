//! The runs over one text, and the capacity check before them.

use sha2::{Digest, Sha256};
use std::time::Duration;

use super::{
    Cause, Checkpoint, Counters, Drift, EngineArgs, EngineError, Logits, Measured, Message, Reading, Report, Run,
    Stage, space_of,
};
use crate::demo::attention::{Page, pages_of};
use crate::demo::kv::{DEVICE_PAGE_BYTES, Kv, Plain, SessionSpec, Store, TieredError, digests};
use crate::demo::model::{CONFIG_JSON, Config, Decoder, Scratch, WEIGHTS};
use crate::demo::prompt::prompt;
use crate::demo::sizes::{CHUNK, Sizes};
use kvtide_client::{Contract, DigestOptions};
use kvtide_wire::status::Status;

/// State shared by the stages.
struct Engine<'a> {
    decoder: &'a Decoder,
    scratch: Scratch,
    sizes: Sizes,
    prompt: Vec<u16>,
    /// Logits of the plain array. On a device, those of the resident run replace them.
    reference: Logits,
    /// Tokens decoded by the plain array.
    decoded: Vec<u16>,
    args: &'a EngineArgs,
    report: &'a mut Report,
}

/// Why a stage ended early.
enum Stop {
    Report(EngineError),
    Store(TieredError),
}

impl From<EngineError> for Stop {
    fn from(error: EngineError) -> Stop {
        Stop::Report(error)
    }
}

impl From<TieredError> for Stop {
    fn from(error: TieredError) -> Stop {
        Stop::Store(error)
    }
}

/// Reserve and commit the pages of the tiered run without a model, so that a daemon with too little memory fails now instead of
/// after the other runs. Return false if it failed, which is then reported.
pub(super) fn rehearse(args: &EngineArgs, report: &mut Report) -> Result<bool, EngineError> {
    let planes = Config::parse(CONFIG_JSON)?.num_hidden_layers;
    let sizes = sizes(args, planes);
    let mut at = 0;
    let mut grow = || -> Result<Option<String>, TieredError> {
        let mut store = attach(args, Stage::Rehearsal, sizes, args.tier0_frames)?;
        for tokens in sizes.steps() {
            store.open(tokens)?;
            store.close()?;
            at = tokens;
        }
        Ok(store.device().map(str::to_owned))
    };
    let grown = grow();
    if let Ok(Some(name)) = &grown {
        report.send(&Message::Device { name: name.clone() })?;
    }
    match grown {
        Ok(_) => report.send(&Message::Ended { stage: Stage::Rehearsal, measured: Measured::default() })?,
        Err(error) => return report.failed(Stage::Rehearsal, at, &error).map(|()| false),
    }
    Ok(true)
}

/// Run all stages. Return false if one failed, which is then reported.
pub(super) fn run(args: &EngineArgs, report: &mut Report) -> Result<bool, EngineError> {
    let decoder = Decoder::load(CONFIG_JSON, WEIGHTS)?;
    let sizes = sizes(args, decoder.config().num_hidden_layers);
    let mut engine = Engine {
        scratch: Scratch::new(decoder.config(), CHUNK, sizes.tokens()),
        prompt: prompt(args.text.as_deref(), args.prefill)?,
        reference: Logits::new(sizes.tokens(), decoder.config().vocab_size),
        decoded: Vec::with_capacity(sizes.decode),
        decoder: &decoder,
        sizes,
        args,
        report,
    };
    let plain = engine.plain()?;
    let exact = engine.stage(Stage::Resident, |engine, at| engine.resident(plain, at))?
        && engine.stage(Stage::Tiered, Engine::tiered)?;
    for contract in args.contracts.iter().filter(|_| exact) {
        for prefetch in if args.compare_prefetch { &[false, true][..] } else { &[true] } {
            if !engine.stage(Stage::Inexact, |engine, at| engine.inexact(*contract, *prefetch, at))? {
                return Ok(false);
            }
        }
    }
    Ok(exact)
}

impl<'a> Engine<'a> {
    /// Run over the plain array; its logits are the reference. Return the run rewound to the end of the prefill.
    fn plain(&mut self) -> Result<Run<'a, Plain>, EngineError> {
        let store = Plain::new(self.sizes.planes, self.sizes.tokens()).map_err(EngineError::Plain)?;
        let mut run = Run::new(self.decoder, store);
        let mut sent = Ok(());
        let (reference, report) = (&mut self.reference, &mut *self.report);
        let Ok(prefill) = run.prefill(&mut self.scratch, &self.prompt, |start, logits| {
            reference.keep(start, logits);
            let tokens = (start + CHUNK).min(self.sizes.prefill);
            sent = std::mem::replace(&mut sent, Ok(())).and_then(|()| report.progress(Stage::Plain, tokens, None));
        });
        sent?;
        let first = run.next();
        for _ in 0..self.sizes.decode {
            let Ok((token, position, logits)) = run.step(&mut self.scratch);
            self.reference.keep(position, logits);
            self.decoded.push(token);
        }
        let measured = Measured { prefill_s: prefill.as_secs_f64(), ..steps(run.step_times()) };
        self.report.progress(Stage::Plain, run.position(), None)?;
        self.report.send(&Message::Ended { stage: Stage::Plain, measured })?;
        run.rewind(self.sizes.prefill, first);
        Ok(run)
    }

    /// Compare logits of the resident run with the reference, or make them the reference on a device.
    fn see_resident(&mut self, start: usize, logits: &[f32], measured: &mut Measured) {
        see_resident(self.args, &mut self.reference, start, logits, measured);
    }

    /// Run with everything resident. Its decode steps alternate with those of the plain array in a pseudo-random order, so that
    /// other load on the machine affects both equally.
    fn resident(&mut self, mut plain: Run<'a, Plain>, at: &mut usize) -> Result<(), Stop> {
        let (mut run, mut measured) = self.prefill(Stage::Resident, self.sizes.frames_resident(), at)?;
        let before = counters(run.store());
        for i in 0..self.sizes.decode {
            if plain_first(i) {
                let Ok(_) = plain.step(&mut self.scratch);
            }
            let (_, position, logits) = run.step(&mut self.scratch)?;
            self.see_resident(position, logits, &mut measured);
            *at = position + 1;
            if !plain_first(i) {
                let Ok(_) = plain.step(&mut self.scratch);
            }
        }
        measured.decode = counters(run.store()) - before;
        let measured =
            Measured { plain_step_s: Some(steps(plain.step_times()).step_s), ..with_steps(measured, run.step_times()) };
        self.report.progress(Stage::Resident, *at, None)?;
        self.report.send(&Message::Ended { stage: Stage::Resident, measured })?;
        Ok(())
    }

    /// Run with a small tier 0.
    fn tiered(&mut self, at: &mut usize) -> Result<(), Stop> {
        self.report.checkpoint(Stage::Tiered, Checkpoint::Begin)?;
        let (mut run, mut measured) = self.prefill(Stage::Tiered, self.args.tier0_frames, at)?;
        let before = counters(run.store());
        for _ in 0..self.sizes.decode {
            let (token, position, logits) = run.step(&mut self.scratch)?;
            self.reference.compare(position, logits, &mut measured.comparison);
            *at = position + 1;
            self.report.progress(Stage::Tiered, *at, Some(token))?;
        }
        measured.decode = counters(run.store()) - before;
        let measured = with_steps(measured, run.step_times());
        self.report.checkpoint(Stage::Tiered, Checkpoint::End)?;
        self.report.send(&Message::Ended { stage: Stage::Tiered, measured })?;
        Ok(())
    }

    /// Run with a small tier 0, decoding the reference's tokens with a contract other than exact.
    fn inexact(&mut self, contract: Contract, prefetch: bool, at: &mut usize) -> Result<(), Stop> {
        let store = attach_inexact(self.args, contract, prefetch, self.sizes)?;
        let (mut run, mut measured) = self.prefill_over(store, Stage::Inexact, at)?;
        let before = counters(run.store());
        let mut drift = Drift::default();
        for token in self.decoded.clone() {
            run.feed(token);
            let (_, position, logits) = run.step(&mut self.scratch)?;
            self.reference.drift(position, logits, &mut drift);
            *at = position + 1;
            self.report.progress(Stage::Inexact, *at, None)?;
        }
        measured.decode = counters(run.store()) - before;
        let omitted = run.store().omitted();
        measured.reading = Some(Reading { contract: contract.to_string(), prefetch, omitted, drift });
        let measured = with_steps(measured, run.step_times());
        self.report.checkpoint(Stage::Inexact, Checkpoint::End)?;
        self.report.send(&Message::Ended { stage: Stage::Inexact, measured })?;
        Ok(())
    }

    /// Attach and prefill.
    fn prefill(&mut self, stage: Stage, frames: u32, at: &mut usize) -> Result<(Run<'a, Store>, Measured), Stop> {
        let store = attach(self.args, stage, self.sizes, frames)?;
        self.prefill_over(store, stage, at)
    }

    /// Prefill with the contract exact.
    fn prefill_over(&mut self, store: Store, stage: Stage, at: &mut usize) -> Result<(Run<'a, Store>, Measured), Stop> {
        let mut run = Run::new(self.decoder, store);
        let mut measured = Measured::default();
        let mut sent = Ok(());
        let (args, reference, report) = (self.args, &mut self.reference, &mut *self.report);
        let time = run.prefill(&mut self.scratch, &self.prompt, |start, logits| {
            match stage {
                Stage::Resident => see_resident(args, reference, start, logits, &mut measured),
                _ => reference.compare(start, logits, &mut measured.comparison),
            }
            *at = (start + CHUNK).min(self.sizes.prefill);
            sent = std::mem::replace(&mut sent, Ok(())).and_then(|()| report.progress(stage, *at, None));
        })?;
        sent?;
        measured.prefill_s = time.as_secs_f64();
        measured.prefill = counters(run.store());
        Ok((run, measured))
    }

    /// Run a stage and report its failure.
    fn stage(
        &mut self,
        stage: Stage,
        run: impl FnOnce(&mut Self, &mut usize) -> Result<(), Stop>,
    ) -> Result<bool, EngineError> {
        let mut tokens = 0;
        match run(self, &mut tokens) {
            Ok(()) => Ok(true),
            Err(Stop::Report(error)) => Err(error),
            Err(Stop::Store(error)) => {
                self.report.failed(stage, tokens, &error)?;
                Ok(false)
            }
        }
    }
}

impl Report {
    fn progress(&mut self, stage: Stage, tokens: usize, token: Option<u16>) -> Result<(), EngineError> {
        self.send(&Message::Progress { stage, tokens, token })
    }

    fn failed(&mut self, stage: Stage, tokens: usize, error: &TieredError) -> Result<(), EngineError> {
        let cause = match error.status() {
            Some(Status::NoSpace | Status::TooBig | Status::Limit) => Cause::Refused,
            Some(Status::Daemon) => Cause::Daemon,
            _ => Cause::Other,
        };
        self.send(&Message::Failed { stage, tokens, error: error.to_string(), cause })
    }
}

/// Return the KV sizes of these runs.
fn sizes(args: &EngineArgs, planes: usize) -> Sizes {
    let page_bytes = if args.device.is_host() { Page::BYTES } else { DEVICE_PAGE_BYTES };
    Sizes { planes, prefill: args.prefill, decode: args.decode, page_bytes }
}

/// Attach a session of the stage in a new space, so that the daemon's counters start at zero. `frames`: of tier 0.
fn attach(args: &EngineArgs, stage: Stage, sizes: Sizes, frames: u32) -> Result<Store, TieredError> {
    // The capacity check uses the digests of the run with the least room.
    let digests = match stage {
        Stage::Rehearsal => {
            let all =
                args.contracts.iter().filter_map(|contract| digests(*contract, sizes.pages(), !args.device.is_host()));
            all.max_by_key(DigestOptions::bytes)
        }
        _ => None,
    };
    // With everything resident, no page is read in host memory.
    let windows = if stage == Stage::Resident { 0 } else { args.host_windows };
    let name = stage.space().to_owned();
    Store::attach(SessionSpec { digests, windows, ..spec(args, name, sizes, frames) }, pages_of(sizes.tokens()))
}

/// Attach a session that decodes with `contract` and the small tier 0.
fn attach_inexact(args: &EngineArgs, contract: Contract, prefetch: bool, sizes: Sizes) -> Result<Store, TieredError> {
    let name = space_of(&contract.to_string(), prefetch);
    let digests = digests(contract, sizes.pages(), !args.device.is_host());
    let max_stall = Duration::from_micros(args.max_stall_us.into());
    let spec = SessionSpec { digests, max_stall, prefetch, ..spec(args, name, sizes, args.tier0_frames) };
    Store::contracted(spec, contract, pages_of(sizes.tokens()))
}

fn spec(args: &EngineArgs, space: String, sizes: Sizes, frames: u32) -> SessionSpec {
    SessionSpec {
        socket: args.socket.clone(),
        fingerprint: fingerprint(&space),
        space,
        planes: sizes.planes,
        page_bytes: sizes.page_bytes as u32,
        frames,
        windows: 0,
        device: args.device.choice,
        digests: None,
        max_stall: Duration::ZERO,
        prefetch: true,
    }
}

/// On the host the plain array has the same bits. On a device, half precision and another order of operations give only similar
/// results, so the resident run becomes the reference.
fn see_resident(args: &EngineArgs, reference: &mut Logits, start: usize, logits: &[f32], measured: &mut Measured) {
    if args.device.is_host() {
        return reference.compare(start, logits, &mut measured.comparison);
    }
    let distance = reference.replace(start, logits);
    measured.distance = Some(measured.distance.map_or(distance, |before| before.max(distance)));
}

/// Return the identity of an engine's KV: the weights, how they are used, and here the space.
fn fingerprint(space: &str) -> [u8; 32] {
    Sha256::new().chain_update(CONFIG_JSON).chain_update(WEIGHTS).chain_update(space).finalize().into()
}

/// Return a pseudo-random bit that is the same in every demo: the step number through the finalizer of MurmurHash3.
fn plain_first(step: usize) -> bool {
    let mixed = (step as u32 ^ 0x9e37_79b9).wrapping_mul(0x85eb_ca6b);
    let mixed = (mixed ^ mixed >> 13).wrapping_mul(0xc2b2_ae35);
    (mixed ^ mixed >> 16) & 1 == 0
}

fn counters(store: &Store) -> Counters {
    let stats = store.stats();
    Counters {
        pages_tier0: stats.pages_resident,
        pages_below: stats.pages_missed,
        bytes_host_to_tier0: stats.bytes_host_to_tier0,
        bytes_tier0_to_host: stats.bytes_tier0_to_host,
        stall_ns: stats.stall_ns + store.waited_for_room().as_nanos() as u64,
        messages_before_steps: stats.messages_before_steps,
        pages_in_place: stats.jobs_in_place,
    }
}

fn with_steps(measured: Measured, times: &[Duration]) -> Measured {
    let Measured { decode_s, step_s, .. } = steps(times);
    Measured { decode_s, step_s, ..measured }
}

/// Return the total and the lower quartile of decode steps. With as many busy threads as cores, the engine does not run for half of
/// a median step; the quartile is of steps with little other load.
fn steps(times: &[Duration]) -> Measured {
    let mut sorted: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
    sorted.sort_by(f64::total_cmp);
    Measured {
        decode_s: sorted.iter().sum(),
        step_s: sorted.get(sorted.len() / 4).copied().unwrap_or(0.0),
        ..Measured::default()
    }
}
