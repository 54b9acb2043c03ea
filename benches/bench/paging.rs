//! Page faults with working sets of twice the capacity of the tiers above. Pages from host memory are measured with a daemon of two
//! tiers. Pages from NVMe are measured with three tiers, where the host tier is small relative to tier 0, so that few pages come from
//! it.

use super::engine::PAGE_BYTES;
use super::report::Report;
use super::{BenchError, Output, faults, percentile, progress};
use crate::private_daemon::{Nvme, Options, PrivateDaemon};
use std::path::PathBuf;

/// Frames of every session's tier 0: 32 MiB.
const TIER0_FRAMES: u32 = 512;
/// Pages of a working set of twice tier 0.
const PAGES_HOST: u32 = 2 * TIER0_FRAMES;
/// Frames of the host tier for these pages: 96 MiB, more than any cache.
const HOST_FRAMES: u32 = 3 * TIER0_FRAMES;
/// Frames of the host tier above NVMe: little more than is needed for transfers.
const HOST_FRAMES_SMALL: u32 = 128;
/// Pages of a working set of twice tier 0 and that host tier: half of them are only on NVMe.
const PAGES_NVME: u32 = 2 * (TIER0_FRAMES + HOST_FRAMES_SMALL);
/// NVMe capacity: all pages, and partly filled slabs.
const NVME_BYTES: u64 = PAGES_NVME as u64 * PAGE_BYTES as u64 * 3 / 2;
/// Bytes of a slab in host memory and on NVMe.
const SLAB_BYTES: u64 = 2 << 20;

/// Flags of `kvtide bench paging`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// Parent of the NVMe tier's temporary directory (default: the system's temporary directory)
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    pub(super) output: Output,
}

/// Run the benchmark.
pub(super) fn measure(args: &Args) -> Result<Report, BenchError> {
    let nvme = Nvme { dir: args.dir.clone(), bytes: NVME_BYTES };
    let mut report = Report::default();
    for (key, from, host_frames, pages, nvme) in [
        ("host_to_tier0", "host memory", HOST_FRAMES, PAGES_HOST, None),
        ("nvme_to_host", "NVMe to tier 0", HOST_FRAMES_SMALL, PAGES_NVME, Some(nvme)),
    ] {
        progress(&format!("page faults from {from}"));
        let on_nvme = nvme.is_some();
        let mut daemon = PrivateDaemon::start(&Options {
            host_bytes: Some(u64::from(host_frames) * u64::from(PAGE_BYTES)),
            slab_bytes: Some(SLAB_BYTES),
            config: Some(format!("[limits]\nseqs_max = {PAGES_NVME}\n[tiers.nvme]\nslab = {SLAB_BYTES}\n")),
            nvme,
            ..Options::default()
        })?;
        let mut ns = faults::measure(&mut daemon, TIER0_FRAMES, pages, on_nvme)?;
        daemon.stop()?;
        for percent in [50, 99] {
            let us = percentile(&mut ns, percent) as f64 / 1000.0;
            let what = format!("page fault from {from}, 64 KiB, p{percent}");
            report.number(format!("fault_p{percent}_us.{key}"), what, us, "us", None);
        }
    }
    Ok(report)
}
