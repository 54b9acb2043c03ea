//! `[tiers.host]`, `[edges]` and `[attention]`.

use super::watermarks;
use crate::config::ConfigError;
use crate::config::raw::{RawAttention, RawCleaning, RawEdges, RawHost, RawScan};
use crate::config::size::ByteSize;
use crate::config::sourced::{File, Sourced};
use crate::config::{Attention, Cleaning, Edges, HostTier, Machine, Overrides, Scan, Scoring, defaults};

/// Return the default host capacity: half of the available memory, in whole slabs.
fn default_capacity(machine: &Machine) -> u64 {
    let half = machine.available_bytes / 2;
    (half - half % defaults::SLAB).clamp(defaults::HOST_CAPACITY_MIN, defaults::HOST_CAPACITY_MAX)
}

/// Return the host capacity with its origin.
pub(super) fn host_capacity(
    file: File<'_>,
    raw: &RawHost,
    overrides: &Overrides,
    machine: &Machine,
) -> Sourced<ByteSize> {
    file.field("tiers.host.capacity", raw.capacity.clone(), ByteSize(default_capacity(machine)))
        .or_flag("--host-bytes", overrides.host_bytes)
}

pub(super) fn host(
    file: File<'_>,
    capacity: &Sourced<ByteSize>,
    raw: RawHost,
    overrides: &Overrides,
) -> Result<HostTier, ConfigError> {
    let capacity_bytes = file.in_range(&capacity.clone().map(|size| size.0), &defaults::HOST_RANGE)?;
    let default_slab = ByteSize(defaults::SLAB.min(capacity_bytes));
    let slab = file.field("tiers.host.slab", raw.slab, default_slab).or_flag("--slab-bytes", overrides.slab_bytes);
    let slab_bytes = file.in_range(&slab.clone().map(|size| size.0), &defaults::SLAB_RANGE)?;
    if slab_bytes > capacity_bytes {
        return Err(file.contradiction(&slab, capacity, "a slab must fit into the host tier"));
    }
    let high = file.field("tiers.host.high_percent", raw.high_percent, defaults::HOST_HIGH_PERCENT);
    let low = file.field("tiers.host.low_percent", raw.low_percent, defaults::HOST_LOW_PERCENT);
    let (low_percent, high_percent) = watermarks(file, &low, &high)?;
    let prefault = file.field("tiers.host.prefault", raw.prefault, defaults::PREFAULT).value;
    Ok(HostTier { capacity_bytes, slab_bytes, prefault, high_percent, low_percent })
}

/// Resolve `[edges]`. The frames for streaming from NVMe must fit into `host`.
pub(super) fn edges(
    file: File<'_>,
    raw: RawEdges,
    overrides: &Overrides,
    host: &Sourced<ByteSize>,
    nvme: bool,
) -> Result<Edges, ConfigError> {
    let from_host = scan(file, "edges.host_to_tier0.scan_frames", raw.host_to_tier0, defaults::SCAN_FRAMES)
        .or_flag("--scan-frames", overrides.scan_frames);
    let from_nvme = scan(file, "edges.nvme_to_host.scan_frames", raw.nvme_to_host, defaults::HOST_SCAN_FRAMES);
    let edges = Edges {
        tier0_to_host: cleaning(file, "edges.tier0_to_host", raw.tier0_to_host)?,
        host_to_nvme: cleaning(file, "edges.host_to_nvme", raw.host_to_nvme)?,
        nvme_to_host: Scan { frames: file.in_range(&from_nvme, &defaults::SCAN_FRAMES_RANGE)? },
        host_to_tier0: Scan { frames: file.in_range(&from_host, &defaults::SCAN_FRAMES_RANGE)? },
    };
    if nvme && u64::from(edges.nvme_to_host.frames) * defaults::NVME_ALIGN > host.value.0 {
        let rule = "the host tier must hold this many frames of at least 4 KiB";
        return Err(file.contradiction(host, &from_nvme, rule));
    }
    Ok(edges)
}

/// Resolve `[attention]`.
pub(super) fn attention(file: File<'_>, raw: RawAttention) -> Result<Attention, ConfigError> {
    let sinks = file.field("attention.sinks", raw.sinks, defaults::SINKS);
    let recent = file.field("attention.recent", raw.recent, defaults::RECENT);
    let percent =
        file.field("attention.bandwidth_percent", raw.bandwidth_percent, defaults::ATTENTION_BANDWIDTH_PERCENT);
    Ok(Attention {
        policy: file.field("attention.policy", raw.policy, Scoring::Attention).value,
        drop: file.field("attention.drop", raw.drop, false).value,
        sinks: file.in_range(&sinks, &defaults::SINKS_RANGE)?,
        recent: file.in_range(&recent, &defaults::RECENT_RANGE)?,
        bandwidth_percent: file.in_range(&percent, &(1..=100))?,
    })
}

fn scan(file: File<'_>, key: &str, raw: RawScan, default: u32) -> Sourced<u32> {
    file.field(key, raw.scan_frames, default)
}

fn cleaning(file: File<'_>, table: &str, raw: RawCleaning) -> Result<Cleaning, ConfigError> {
    let low = file.field(format!("{table}.clean_low_percent"), raw.clean_low_percent, defaults::CLEAN_LOW_PERCENT);
    let high = file.field(format!("{table}.clean_high_percent"), raw.clean_high_percent, defaults::CLEAN_HIGH_PERCENT);
    let (low_percent, high_percent) = watermarks(file, &low, &high)?;
    Ok(Cleaning { low_percent, high_percent })
}
