//! `[tiers]` and `[edges]`.

use super::watermarks;
use crate::config::raw::{RawCleaning, RawDisk, RawEdges, RawHost, RawNvme, RawScan};
use crate::config::size::ByteSize;
use crate::config::sourced::{File, Sourced};
use crate::config::{
    Cleaning, Demand, Disk, Edges, HostTier, IoEngine, Machine, NvmeTier, Overrides, Reserve, Scan, defaults,
};
use crate::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What an unconfigured host tier gets of this machine: half of what it can give, in whole slabs.
fn default_capacity(machine: &Machine) -> u64 {
    let half = machine.available_bytes / 2;
    (half - half % defaults::SLAB).clamp(defaults::HOST_CAPACITY_MIN, defaults::HOST_CAPACITY_MAX)
}

/// The host tier's capacity, as it stands in contradictions.
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
) -> Result<HostTier, Error> {
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

/// The disks, with the places of what they contradict each other by, and the capacity of all.
pub(super) struct SourcedDisks {
    disks: Vec<Disk>,
    dirs: Vec<Sourced<PathBuf>>,
    smallest: Option<Sourced<ByteSize>>,
    /// As it stands in contradictions; 0: there is no NVMe tier.
    pub total: Sourced<ByteSize>,
}

pub(super) fn disks(file: File<'_>, raw: Vec<RawDisk>, overrides: &Overrides) -> Result<SourcedDisks, Error> {
    let no_disks = file.field("tiers.nvme.disks", None, ByteSize(0));
    let mut all = SourcedDisks { disks: Vec::new(), dirs: Vec::new(), smallest: None, total: no_disks };
    if let (Some(dir), Some(bytes)) = (&overrides.nvme_dir, overrides.nvme_bytes) {
        let dir = file.field("tiers.nvme.disks[0].dir", None, PathBuf::new()).or_flag("--nvme-dir", Some(dir.clone()));
        let capacity = file.field("tiers.nvme.disks[0].capacity", None, bytes).or_flag("--nvme-bytes", Some(bytes));
        let reserve = raw.into_iter().next().and_then(|disk| disk.reserve_free);
        let reserve = file.field("tiers.nvme.disks[0].reserve_free", reserve, defaults::NVME_RESERVE_FREE);
        all.add(file, dir, capacity, &reserve)?;
        return Ok(all);
    }
    for (index, disk) in raw.into_iter().enumerate() {
        let key = |field: &str| format!("tiers.nvme.disks[{index}].{field}");
        let dir = file.given(key("dir"), disk.dir);
        let capacity = file.given(key("capacity"), disk.capacity);
        let reserve = file.field(key("reserve_free"), disk.reserve_free, defaults::NVME_RESERVE_FREE);
        all.add(file, dir, capacity, &reserve)?;
    }
    Ok(all)
}

impl SourcedDisks {
    fn add(
        &mut self,
        file: File<'_>,
        dir: Sourced<PathBuf>,
        capacity: Sourced<ByteSize>,
        reserve: &Sourced<Reserve>,
    ) -> Result<(), Error> {
        if self.disks.len() == defaults::DISKS_MAX {
            return Err(file.value(&dir, format_args!("at most {} disks", defaults::DISKS_MAX)));
        }
        if !dir.value.is_absolute() {
            return Err(file.value(&dir, "an absolute path: the daemon's working directory is nobody's business"));
        }
        let own = normal(&dir.value);
        if let Some(other) = self.dirs.iter().find(|other| normal(&other.value) == own) {
            return Err(file.contradiction(&dir, other, "a directory holds one disk's file"));
        }
        let capacity_bytes = file.in_range(&capacity.clone().map(|size| size.0), &defaults::DISK_RANGE)?;
        self.disks.push(Disk { dir: dir.value.clone(), capacity_bytes, reserve_free: reserve.value });
        self.dirs.push(dir);
        if self.smallest.as_ref().is_none_or(|smallest| capacity.value < smallest.value) {
            self.smallest = Some(capacity.clone());
        }
        self.total = match self.disks.len() {
            1 => capacity,
            _ => self.total.clone().renamed("the sum of tiers.nvme.disks").map(|sum| ByteSize(sum.0 + capacity_bytes)),
        };
        Ok(())
    }
}

/// A path without `.`, doubled and trailing slashes: two spellings of one directory.
fn normal(path: &Path) -> PathBuf {
    path.components().collect()
}

pub(super) fn nvme(file: File<'_>, raw: RawNvme, disks: SourcedDisks) -> Result<Option<NvmeTier>, Error> {
    let smallest = disks.smallest.as_ref().map_or(u64::MAX, |capacity| capacity.value.0);
    let default_slab = (smallest / defaults::NVME_SLABS_MIN).clamp(defaults::NVME_ALIGN, defaults::NVME_SLAB);
    let slab = file.field("tiers.nvme.slab", raw.slab, ByteSize(default_slab - default_slab % defaults::NVME_ALIGN));
    let slab_bytes = file.in_range(&slab.clone().map(|size| size.0), &defaults::NVME_SLAB_RANGE)?;
    if slab_bytes % defaults::NVME_ALIGN != 0 {
        return Err(file.value(&slab, format_args!("a multiple of {}", defaults::NVME_ALIGN)));
    }
    if let Some(capacity) = disks.smallest.filter(|capacity| slab_bytes > capacity.value.0) {
        return Err(file.contradiction(&slab, &capacity, "a slab must fit into every disk"));
    }
    let high = file.field("tiers.nvme.high_percent", raw.high_percent, defaults::NVME_HIGH_PERCENT);
    let low = file.field("tiers.nvme.low_percent", raw.low_percent, defaults::NVME_LOW_PERCENT);
    let (low_percent, high_percent) = watermarks(file, &low, &high)?;
    let direct = file.field("tiers.nvme.direct", raw.direct, Demand::Auto);
    let registered = file.field("tiers.nvme.registered", raw.registered, Demand::Auto);
    let io = file.field("tiers.nvme.io", raw.io, IoEngine::Auto);
    if io.value == IoEngine::Threads && registered.value == Demand::Required {
        return Err(file.contradiction(&registered, &io, "only io_uring registers memory"));
    }
    let depth = file.field("tiers.nvme.depth", raw.depth, defaults::NVME_DEPTH);
    let writeback = file.field("tiers.nvme.writeback", raw.writeback, ByteSize(defaults::NVME_WRITEBACK));
    let timeout = file.field("tiers.nvme.timeout_ms", raw.timeout_ms, defaults::NVME_TIMEOUT_MS);
    let tier = NvmeTier {
        slab_bytes,
        high_percent,
        low_percent,
        io: io.value,
        direct: direct.value,
        registered: registered.value,
        depth: file.in_range(&depth, &defaults::NVME_DEPTH_RANGE)?,
        writeback_bytes: file.in_range(&writeback.map(|size| size.0), &defaults::NVME_WRITEBACK_RANGE)?,
        timeout: Duration::from_millis(file.in_range(&timeout, &defaults::NVME_TIMEOUT_MS_RANGE)?),
        disks: disks.disks,
    };
    Ok((!tier.disks.is_empty()).then_some(tier))
}

/// The edges; `host` is there to fit the scan from NVMe into.
pub(super) fn edges(
    file: File<'_>,
    raw: RawEdges,
    overrides: &Overrides,
    host: &Sourced<ByteSize>,
    nvme: bool,
) -> Result<Edges, Error> {
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
        let rule = "the host tier must hold the frames that a scan streams through, of 4 KiB at least";
        return Err(file.contradiction(host, &from_nvme, rule));
    }
    Ok(edges)
}

fn scan(file: File<'_>, key: &str, raw: RawScan, default: u32) -> Sourced<u32> {
    file.field(key, raw.scan_frames, default)
}

fn cleaning(file: File<'_>, table: &str, raw: RawCleaning) -> Result<Cleaning, Error> {
    let low = file.field(format!("{table}.clean_low_percent"), raw.clean_low_percent, defaults::CLEAN_LOW_PERCENT);
    let high = file.field(format!("{table}.clean_high_percent"), raw.clean_high_percent, defaults::CLEAN_HIGH_PERCENT);
    let (low_percent, high_percent) = watermarks(file, &low, &high)?;
    Ok(Cleaning { low_percent, high_percent })
}
