//! Load of a long prefix from host memory: two prefixes share a tier 0 that holds one and are read in turn, so that each step loads
//! a whole prefix.

use super::super::engine::Model;
use super::super::{BenchError, median};
use super::Place;
use super::figures::Figures;
use crate::private_daemon::{Options as DaemonOptions, PrivateDaemon};
use std::time::Instant;

/// Tokens of each prefix, as in the target.
const TOKENS: u64 = 10_000;
const TOKENS_TINY: u64 = 640;
/// Tier-0 blocks beyond one prefix, for the block of the next step and one in reserve.
const SPARE_BLOCKS: u64 = 4;
/// Number of steps. The warm-up steps write pages back and map and register host memory, and are not counted.
const WARM: usize = 4;
const STEPS: usize = 8;
/// Slabs of the host tier.
const SLABS: u64 = 16;

pub(super) fn measure(place: &Place, figures: &mut Figures) -> Result<(), BenchError> {
    let model = Model::of(figures.tiny());
    let tokens = if figures.tiny() { TOKENS_TINY } else { TOKENS };
    let blocks = model.blocks(tokens);
    let host_bytes = (model.bytes(blocks) * 3).next_multiple_of(SLABS << 20);
    let mut daemon = PrivateDaemon::start(&DaemonOptions {
        host_bytes: Some(host_bytes),
        slab_bytes: Some(host_bytes / SLABS),
        ..DaemonOptions::default()
    })?;
    let (mut engine, _stream) = place.attach(daemon.socket(), "prefix", model, blocks + SPARE_BLOCKS)?;
    let prefixes = [engine.prefilled(tokens)?, engine.prefilled(tokens)?];
    let (mut times, mut moved) = (vec![], 0);
    for step in 0..WARM + STEPS {
        let before = engine.client.stats().bytes_host_to_tier0;
        let began = Instant::now();
        engine.step(prefixes[step % 2], tokens)?;
        if step >= WARM {
            times.push(began.elapsed().as_secs_f64());
            moved += engine.client.stats().bytes_host_to_tier0 - before;
        }
    }
    daemon.stop()?;
    let whole = model.bytes(blocks) * STEPS as u64;
    if moved < whole / 2 {
        return Err(BenchError::Odd(format!("only {moved} of {whole} bytes came from host memory")));
    }
    let what = format!("load of a prefix of {tokens} tokens ({} MiB), host → HBM", model.bytes(blocks) >> 20);
    // A few pages of each prefix stay in the spare blocks of tier 0. The time is extrapolated to all pages.
    let load = median(&times) * whole as f64 / moved as f64;
    figures.plain("prefix_load_ms", what, load * 1e3, "ms");
    figures.plain("prefix_load_gb_s", "rate of that load", model.bytes(blocks) as f64 / load / 1e9, "GB/s");
    Ok(())
}
