//! Cost of attention scores when everything fits. The demo's model decodes the same text twice in one private daemon: with `approx`
//! and all its reports, and with `exact`, which reports nothing. The two sessions alternate step by step.

use super::super::{BenchError, median};
use crate::demo::attention::{Page, pages_of};
use crate::demo::engine::Run;
use crate::demo::kv::{SessionSpec, Store, TieredError, digests};
use crate::demo::model::{CONFIG_JSON, Decoder, Scratch, WEIGHTS};
use crate::demo::prompt::prompt;
use crate::demo::sizes::{CHUNK, Sizes};
use crate::private_daemon::{Options, PrivateDaemon};
use kvtide_client::{Contract, DeviceChoice};
use std::path::Path;

const BUDGET: Contract = Contract::Approx { permille: 250 };
/// Host memory of the daemon, and the size of its slabs. Nothing is stored while everything fits.
const HOST_BYTES: u64 = 64 << 20;
const SLAB_BYTES: u64 = 8 << 20;

/// Medians over steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fits {
    /// Nanoseconds of a step without scores.
    pub(super) step_ns: f64,
    /// Additional nanoseconds of a step with scores.
    pub(super) more_ns: f64,
    /// Number of planes, and pages of a plane at the end.
    pub(super) planes: usize,
    pub(super) pages: usize,
}

fn odd(why: impl std::fmt::Display) -> BenchError {
    BenchError::Odd(format!("a step of the demo's model: {why}"))
}

/// Prefill `prefill` tokens and decode `decode` steps in two alternating sessions.
pub(super) fn measure(prefill: usize, decode: usize) -> Result<Fits, BenchError> {
    let decoder = Decoder::load(CONFIG_JSON, WEIGHTS).map_err(odd)?;
    let sizes = Sizes { planes: decoder.config().num_hidden_layers, prefill, decode, page_bytes: Page::BYTES };
    let options = Options { host_bytes: Some(HOST_BYTES), slab_bytes: Some(SLAB_BYTES), ..Options::default() };
    let mut daemon = PrivateDaemon::start(&options)?;
    let times = alternate(daemon.socket(), &decoder, sizes)?;
    daemon.stop()?;
    let (silent, more): (Vec<f64>, Vec<f64>) = times.into_iter().unzip();
    Ok(Fits { step_ns: median(&silent), more_ns: median(&more), planes: sizes.planes, pages: pages_of(sizes.tokens()) })
}

/// Return, for each step, the time without scores and the additional time with scores.
fn alternate(socket: &Path, decoder: &Decoder, sizes: Sizes) -> Result<Vec<(f64, f64)>, BenchError> {
    let mut scratch = Scratch::new(decoder.config(), CHUNK, sizes.tokens());
    let text = prompt(None, sizes.prefill).map_err(odd)?;
    let pages = pages_of(sizes.tokens());
    let silent = Store::attach(spec(socket, Contract::Exact, sizes), pages).map_err(odd)?;
    let telling = Store::contracted(spec(socket, BUDGET, sizes), BUDGET, pages).map_err(odd)?;
    let mut runs = [Run::new(decoder, silent), Run::new(decoder, telling)];
    for run in &mut runs {
        run.prefill(&mut scratch, &text, |_, _| {}).map_err(odd)?;
    }
    let (mut turn, mut tokens) = (0u32, [0; 2]);
    for _ in 0..sizes.decode {
        // The order of the two is pseudo-random.
        turn = turn.wrapping_mul(0x9e37_79b1).wrapping_add(0x85eb_ca6b);
        let first = (turn >> 31) as usize;
        for which in [first, 1 - first] {
            (tokens[which], ..) = runs[which].step(&mut scratch).map_err(|error: TieredError| odd(error))?;
        }
        if tokens[0] != tokens[1] {
            return Err(odd("`approx` did not read all pages although they fit"));
        }
    }
    if runs[1].store().stats().scores == 0 {
        return Err(odd("no scores were reported"));
    }
    let nanos = |run: &Run<'_, Store>| -> Vec<f64> { run.step_times().iter().map(|t| t.as_nanos() as f64).collect() };
    let (silent, telling) = (nanos(&runs[0]), nanos(&runs[1]));
    Ok(silent.iter().zip(telling).map(|(silent, telling)| (*silent, telling - silent)).collect())
}

/// Return a session that has room for all pages and for digests.
fn spec(socket: &Path, contract: Contract, sizes: Sizes) -> SessionSpec {
    let digests = digests(contract, sizes.pages(), false);
    let kept = digests.map_or(0, |digests| digests.frames(sizes.page_bytes as u32));
    let space = format!("bench-{contract}").replace([':', '.'], "-");
    SessionSpec {
        socket: socket.into(),
        fingerprint: std::array::from_fn(|i| space.as_bytes().get(i).copied().unwrap_or(0)),
        space,
        planes: sizes.planes,
        page_bytes: sizes.page_bytes as u32,
        frames: sizes.frames_resident() + kept,
        windows: 0,
        device: DeviceChoice::Cpu,
        digests,
        max_stall: std::time::Duration::ZERO,
        prefetch: true,
    }
}
