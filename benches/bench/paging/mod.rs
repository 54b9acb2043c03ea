//! Page faults and transfer rates between tiers, with working sets of twice the capacity of the tiers above. Pages from host memory
//! are measured with a daemon of two tiers. Pages from NVMe are measured with three tiers, where the host tier is small relative to
//! tier 0, so that few pages come from it. Each figure has its own session and space.

mod faults;
mod limits;
mod rates;

use super::engine::PAGE_BYTES;
use super::report::{Report, Target};
use super::{BenchError, Output, idle, progress};
use crate::private_daemon::{Nvme, Options, PrivateDaemon};
use faults::Faults;
use rates::Rates;
use serde_json::Value;
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

/// Figures measured with one daemon.
struct Measured {
    faults: Faults,
    rates: Rates,
}

impl Measured {
    fn of(daemon: &mut PrivateDaemon, pages: u32, nvme: bool) -> Result<Measured, BenchError> {
        let from = if nvme { "NVMe" } else { "host memory" };
        progress(&format!("page faults from {from}"));
        let faults = faults::measure(daemon, pages, nvme)?;
        progress(&format!("rates to and from {from}"));
        Ok(Measured { faults, rates: rates::measure(daemon, pages)? })
    }
}

fn daemon(host_frames: u32, nvme: Option<Nvme>) -> Result<PrivateDaemon, BenchError> {
    Ok(PrivateDaemon::start(&Options {
        host_bytes: Some(u64::from(host_frames) * u64::from(PAGE_BYTES)),
        slab_bytes: Some(SLAB_BYTES),
        config: Some(format!("[limits]\nseqs_max = {PAGES_NVME}\n[tiers.nvme]\nslab = {SLAB_BYTES}\n")),
        nvme,
        ..Options::default()
    })?)
}

/// Run the benchmark.
pub(super) fn measure(args: &Args) -> Result<Report, BenchError> {
    progress("memcpy");
    let memcpy = limits::memcpy();
    let mut two = daemon(HOST_FRAMES, None)?;
    let mut host = Measured::of(&mut two, PAGES_HOST, false)?;
    two.stop()?;
    let mut three = daemon(HOST_FRAMES_SMALL, Some(Nvme { dir: args.dir.clone(), bytes: NVME_BYTES }))?;
    progress("disk without kvtide");
    let disk = limits::disk(three.nvme_dir().unwrap_or(three.dir()))?;
    let mut nvme = Measured::of(&mut three, PAGES_NVME, true)?;
    progress("idle daemon with three tiers");
    let idle = idle::measure(&three)?;
    let status = three.status()?;
    let mode = status.pointer("/disks/0/mode").and_then(Value::as_str).unwrap_or("unknown");
    three.stop()?;

    let mut report = Report::default();
    for (percent, keys) in [
        (50, ["fault_p50_us.host_to_tier0", "fault_p50_us.nvme_to_host"]),
        (99, ["fault_p99_us.host_to_tier0", "fault_p99_us.nvme_to_host"]),
    ] {
        let what = |from: &str| format!("page fault from {from}, 64 KiB, p{percent}");
        report.number(keys[0], what("host"), host.faults.percentile_us(percent), "us", None);
        report.number(keys[1], what("nvme to tier 0"), nvme.faults.percentile_us(percent), "us", None);
    }
    for (key, what, rate, limit) in [
        ("bytes_per_s.host_to_tier0", "host -> tier 0", host.rates.host_to_tier0, memcpy),
        ("bytes_per_s.tier0_to_host", "tier 0 -> host", host.rates.tier0_to_host, memcpy),
        ("bytes_per_s.nvme_to_host", "nvme -> host", nvme.rates.nvme_to_host, disk.read),
        ("bytes_per_s.host_to_nvme", "host -> nvme", nvme.rates.host_to_nvme, disk.write),
    ] {
        report.count(key, format!("{what} ({:.2} of the limit)", rate / limit), rate as u64, "bytes/s", None);
    }
    for (key, what, limit) in [
        ("limit_bytes_per_s.memcpy", "limit: memcpy, one thread", memcpy),
        ("limit_bytes_per_s.disk_read", "limit: disk, 1 MiB reads, 4 in flight", disk.read),
        ("limit_bytes_per_s.disk_write", "limit: disk, 1 MiB writes, 4 in flight", disk.write),
    ] {
        report.count(key, what, limit as u64, "bytes/s", None);
    }
    let what = "idle daemon with three tiers, one session, 10 s";
    report.number("idle_cpu_percent", what, idle, "% of a core", Target::AtMost(0.5));
    let cache = if disk.direct { "without" } else { "with" };
    report.note(format!("NVMe I/O mode {mode}; disk limits measured {cache} the page cache"));
    Ok(report)
}

/// Return a counter of the core in the space with this name: the sum over the list at `path`.
fn counted(daemon: &mut PrivateDaemon, space: &str, path: &str) -> Result<u64, BenchError> {
    let status = daemon.status()?;
    let spaces = status["spaces"].as_array().into_iter().flatten();
    let list = spaces.filter(|s| s["name"] == space).filter_map(|s| s["core"].pointer(path)?.as_array()).next_back();
    let list = list.ok_or_else(|| BenchError::Odd(format!("the daemon's status has no {path} of space {space}")))?;
    Ok(list.iter().filter_map(Value::as_u64).sum())
}
