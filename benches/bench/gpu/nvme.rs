//! From NVMe to the device: a sequence of twice the pages of tier 0 and host memory, read step by step, relative to the NVMe tier
//! alone.

use super::super::BenchError;
use super::super::report::Target;
use super::Place;
use super::figures::Figures;
use super::session::{Model, Session};
use crate::private_daemon::{Nvme, Options as DaemonOptions, PrivateDaemon};
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};

/// Rate of the whole path divided by that of the tier alone.
const TARGET: Target = Target::AtLeast(0.9);

/// Blocks of a slab of either tier. Small, so that each tier has several slabs.
const SLAB_BLOCKS: u64 = 4;

/// Blocks of tier 0, blocks of host memory, reading time.
struct Size {
    tier0: u64,
    host: u64,
    time: Duration,
}

const FULL: Size = Size { tier0: 64, host: 32, time: Duration::from_secs(4) };
const TINY: Size = Size { tier0: 16, host: 12, time: Duration::from_millis(50) };

pub(super) fn measure(place: &Place, figures: &mut Figures) -> Result<(), BenchError> {
    let model = Model::of(figures.tiny());
    let size = if figures.tiny() { TINY } else { FULL };
    // The tier is measured before and after, so that changes of the disk's speed affect both rates.
    let before = tier_alone(place, &model, &size)?;
    let rate = whole_path(place, &model, &size)?;
    let alone = (before + tier_alone(place, &model, &size)?) / 2.0;
    figures.plain("nvme_alone_gb_s", "NVMe tier alone, random page reads", alone / 1e9, "GB/s");
    figures.plain("nvme_path_gb_s", "NVMe → host → HBM, whole path", rate / 1e9, "GB/s");
    figures.judged("nvme_path", "NVMe → HBM, whole path ÷ the NVMe tier alone", (rate / alone, "x"), TARGET);
    Ok(())
}

/// Return the read rate of `kvtide bench nvme` in the same directory, with requests of one page, in bytes a second.
fn tier_alone(place: &Place, model: &Model, size: &Size) -> Result<f64, BenchError> {
    let peer = |why: String| BenchError::Peer { tried: "measure the NVMe tier alone".into(), why };
    let binary = std::env::current_exe().map_err(|e| peer(e.to_string()))?;
    let seconds = size.time.as_secs_f64().clamp(0.5, 2.0);
    let mut bench = Command::new(binary);
    bench.args(["bench", "nvme", "--json", "--dir"]).arg(place.dir());
    bench.args(["--page", &model.page_bytes.to_string(), "--seconds", &seconds.to_string()]);
    bench.args(["--size", &(model.bytes(size.tier0) * 2).max(64 << 20).to_string()]);
    let output = bench.output().map_err(|e| peer(e.to_string()))?;
    let said: Value = serde_json::from_slice(&output.stdout)
        .map_err(|e| peer(format!("{e}: {}", String::from_utf8_lossy(&output.stderr))))?;
    said["read_bytes_per_s"].as_f64().ok_or_else(|| peer(format!("no rate in its output: {said}")))
}

/// Return the rate of reads from NVMe, in bytes a second, while a sequence larger than tier 0 and host memory is read repeatedly.
fn whole_path(place: &Place, model: &Model, size: &Size) -> Result<f64, BenchError> {
    let blocks = 2 * (size.tier0 + size.host);
    let slab = model.bytes(SLAB_BLOCKS).next_multiple_of(1 << 20);
    let mut daemon = PrivateDaemon::start(&DaemonOptions {
        host_bytes: Some(model.bytes(size.host).next_multiple_of(slab)),
        slab_bytes: Some(slab),
        config: Some(format!("[tiers.nvme]\nslab = {slab}\n")),
        nvme: Some(Nvme { dir: Some(place.dir().to_path_buf()), bytes: (model.bytes(blocks) * 3 / 2).max(64 << 20) }),
        ..DaemonOptions::default()
    })?;
    let mut session = Session::attach(daemon.socket(), "nvme", *model, size.tier0, place.engine()?)?;
    let tokens = blocks * u64::from(model.page_tokens);
    let seq = session.prefilled(tokens)?;
    session.step(seq, tokens)?;
    let (before, began) = (read_so_far(&mut daemon)?, Instant::now());
    while began.elapsed() < size.time {
        session.step(seq, tokens)?;
    }
    let rate = (read_so_far(&mut daemon)? - before) as f64 / began.elapsed().as_secs_f64();
    daemon.stop()?;
    if rate == 0.0 {
        return Err(BenchError::Odd("no bytes came from NVMe".into()));
    }
    Ok(rate)
}

/// Return the bytes read from NVMe, over all spaces.
fn read_so_far(daemon: &mut PrivateDaemon) -> Result<u64, BenchError> {
    let status = daemon.status()?;
    let spaces = status["spaces"].as_array().into_iter().flatten();
    let lists = spaces.filter_map(|space| space["core"].pointer("/nvme_to_host/bytes")?.as_array());
    Ok(lists.flatten().filter_map(Value::as_u64).sum())
}
