//! Faults and rates from tier to tier, with working sets of twice what the tiers above hold: pages that come from host memory, and
//! pages that come from NVMe. One private daemon with all three tiers; each figure has a session, and so a space, of its own.

mod faults;
mod limits;
mod rates;

use super::engine::PAGE_BYTES;
use super::report::Report;
use super::{BenchError, Output};
use crate::cli::private_daemon::{Nvme, Options, PrivateDaemon};
use serde_json::Value;
use std::path::PathBuf;

/// Frames of every session's tier 0: 32 MiB.
const TIER0_FRAMES: u32 = 512;
/// Frames of the host tier: 96 MiB, which is beyond any cache, and more than the smaller working set leaves to it.
const HOST_FRAMES: u32 = 1536;
/// Pages of a working set of twice tier 0: all of them in tier 0 and host memory.
const PAGES_HOST: u32 = 2 * TIER0_FRAMES;
/// Pages of a working set of twice tier 0 and host memory together: half of them on NVMe alone.
const PAGES_NVME: u32 = 2 * (TIER0_FRAMES + HOST_FRAMES);
/// Room on NVMe: every page, and slabs that are not full.
const NVME_BYTES: u64 = PAGES_NVME as u64 * PAGE_BYTES as u64 * 3 / 2;
/// One slab of host memory and one on NVMe.
const SLAB_BYTES: u64 = 4 << 20;

/// What `kvtide bench paging` takes.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// Where the NVMe tier's temporary directory is made; by default in the system's
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    pub(super) output: Output,
}

/// Measures.
pub(super) fn measure(args: &Args) -> Result<Report, BenchError> {
    let mut daemon = PrivateDaemon::start(&Options {
        host_bytes: Some(u64::from(HOST_FRAMES) * u64::from(PAGE_BYTES)),
        slab_bytes: Some(SLAB_BYTES),
        nvme: Some(Nvme { dir: args.dir.clone(), bytes: NVME_BYTES }),
        config: Some(format!("[limits]\nseqs_max = {PAGES_NVME}\n[tiers.nvme]\nslab = {SLAB_BYTES}\n")),
        ..Options::default()
    })?;
    let memcpy = limits::memcpy();
    let disk = limits::disk(daemon.nvme_dir().unwrap_or(daemon.dir()))?;
    let mut report = Report::default();

    let mut host = faults::measure(&mut daemon, "fault-host", PAGES_HOST, false)?;
    let mut nvme = faults::measure(&mut daemon, "fault-nvme", PAGES_NVME, true)?;
    for (percent, keys) in [
        (50, ["fault_p50_us.host_to_tier0", "fault_p50_us.nvme_to_host"]),
        (99, ["fault_p99_us.host_to_tier0", "fault_p99_us.nvme_to_host"]),
    ] {
        let what = |from: &str| format!("page fault from {from}, 64 KiB, p{percent}");
        report.number(keys[0], what("host"), host.percentile_us(percent), "us", None);
        report.number(keys[1], what("nvme, on to tier 0"), nvme.percentile_us(percent), "us", None);
    }

    let host = rates::measure(&mut daemon, "rate-host", PAGES_HOST)?;
    let nvme = rates::measure(&mut daemon, "rate-nvme", PAGES_NVME)?;
    for (key, what, rate, limit) in [
        ("bytes_per_s.host_to_tier0", "host -> tier 0", host.host_to_tier0, memcpy),
        ("bytes_per_s.tier0_to_host", "tier 0 -> host", host.tier0_to_host, memcpy),
        ("bytes_per_s.nvme_to_host", "nvme -> host", nvme.nvme_to_host, disk.read),
        ("bytes_per_s.host_to_nvme", "host -> nvme", nvme.host_to_nvme, disk.write),
    ] {
        let what = format!("{what}, GB/s {:.2} of {:.2} that the device can", rate / 1e9, limit / 1e9);
        report.count(key, what, rate as u64, "bytes/s", None);
    }
    report.count("limit_bytes_per_s.memcpy", "limit: memcpy, one thread", memcpy as u64, "bytes/s", None);
    report.count(
        "limit_bytes_per_s.disk_read",
        "limit: disk, 1 MiB reads, 4 threads",
        disk.read as u64,
        "bytes/s",
        None,
    );
    let what = "limit: disk, 1 MiB writes, 4 threads";
    report.count("limit_bytes_per_s.disk_write", what, disk.write as u64, "bytes/s", None);
    let status = daemon.status()?;
    let mode = status.pointer("/disks/0/mode").and_then(Value::as_str).unwrap_or("unknown");
    report.note(format!(
        "nvme: {mode}; disk limits {}",
        if disk.direct { "past the page cache" } else { "through the page cache" }
    ));
    daemon.stop()?;
    Ok(report)
}

/// What the daemon's core counted so far in the space of this name: the sum over the list at `path`.
fn counted(daemon: &mut PrivateDaemon, space: &str, path: &str) -> Result<u64, BenchError> {
    let status = daemon.status()?;
    let spaces = status["spaces"].as_array().into_iter().flatten();
    let list = spaces.filter(|s| s["name"] == space).filter_map(|s| s["core"].pointer(path)?.as_array()).last();
    let list = list.ok_or_else(|| BenchError::Odd(format!("the daemon's status has no {path} of space {space}")))?;
    Ok(list.iter().filter_map(Value::as_u64).sum())
}
