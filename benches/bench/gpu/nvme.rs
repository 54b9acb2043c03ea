//! From NVMe to the device: a sequence of twice the pages of tier 0 and host memory, read step by step, relative to the NVMe tier
//! alone.

use super::super::BenchError;
use super::super::engine::{Model, counted};
use super::super::nvme::Alone;
use super::super::report::Target;
use super::Place;
use super::figures::Figures;
use crate::private_daemon::{Nvme, Options as DaemonOptions, PrivateDaemon};
use std::time::{Duration, Instant};

/// Rate of the whole path divided by that of the tier alone.
const TARGET: Target = Target::AtLeast(0.9);

/// The daemon's counter of bytes read from NVMe.
const READ: &str = "/nvme_to_host/bytes";

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
    let file_bytes = (model.bytes(size.tier0) * 2).max(64 << 20);
    let mut tier = Alone::open(place.dir(), model.page_bytes, file_bytes)?;
    let half = (size.time / 2).max(Duration::from_millis(100));
    let before = tier.read(half)?;
    let rate = whole_path(place, &model, &size)?;
    let alone = (before + tier.read(half)?) / 2.0;
    figures.plain("nvme_alone_gb_s", "NVMe tier alone, random page reads", alone / 1e9, "GB/s");
    figures.plain("nvme_path_gb_s", "NVMe → host → HBM, whole path", rate / 1e9, "GB/s");
    figures.judged("nvme_path", "NVMe → HBM, whole path ÷ the NVMe tier alone", (rate / alone, "x"), TARGET);
    Ok(())
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
    let (mut engine, _stream) = place.attach(daemon.socket(), "nvme", *model, size.tier0)?;
    let tokens = blocks * u64::from(model.page_tokens);
    let seq = engine.prefilled(tokens)?;
    engine.step(seq, tokens)?;
    let (before, began) = (counted(&mut daemon, None, READ)?, Instant::now());
    while began.elapsed() < size.time {
        engine.step(seq, tokens)?;
    }
    let rate = (counted(&mut daemon, None, READ)? - before) as f64 / began.elapsed().as_secs_f64();
    daemon.stop()?;
    if rate == 0.0 {
        return Err(BenchError::Odd("no bytes came from NVMe".into()));
    }
    Ok(rate)
}
