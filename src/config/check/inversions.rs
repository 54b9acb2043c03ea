//! Values that are allowed and contradict what tiers are for.

use super::{Findings, nvme};
use crate::config::{ByteSize, Config, NvmeTier, size::Human};

/// Page of one layer of an 8B model (16 tokens, 8 KV heads of 128, K and V, 2 bytes each): what sizes are compared with where the
/// file cannot say how large pages will be.
pub(super) const PAGE_8B: u64 = 64 << 10;
/// Its layers.
const LAYERS_8B: u64 = 32;
/// KV that it has room for on a card of 24 GB: its weights take 16 GB, the engine itself 2 GB. A common, small tier 0.
const TIER0_8B: u64 = 6 << 30;
/// What a peer reads as whose user is not mapped into the daemon's user namespace, whoever it is.
const OVERFLOW_UID: u32 = 65534;

pub(super) fn find(config: &Config, findings: &mut Findings) {
    host(config, findings);
    if let Some(nvme) = &config.nvme {
        self::nvme(config, nvme, findings);
        nvme::find(nvme, findings);
    }
    for (key, low, high) in [
        ("tiers.host.high_percent", config.host.low_percent, config.host.high_percent),
        ("tiers.nvme.high_percent", nvme_low(config), config.nvme.as_ref().map_or(95, |nvme| nvme.high_percent)),
    ] {
        if high == 100 {
            findings.warn(
                key,
                "at 100 nothing leaves before the tier is full, and whoever needs room waits; 95 leaves some",
            );
        } else if low == high {
            findings.warn(
                key,
                format!("as low as the low watermark ({low}): each page that comes in makes another leave at once"),
            );
        }
    }
    if config.http.listen.is_some_and(|address| !address.ip().is_loopback()) {
        let text =
            "not on loopback: whoever reaches it reads the names of models and tenants, and there is no password";
        findings.warn("http.listen", text);
    }
    domains(config, findings);
}

fn nvme_low(config: &Config) -> u8 {
    config.nvme.as_ref().map_or(90, |nvme| nvme.low_percent)
}

fn host(config: &Config, findings: &mut Findings) {
    let host = &config.host;
    let capacity = host.capacity_bytes;
    if capacity < TIER0_8B {
        let text = format!(
            "{} is less than tier 0 of an 8B model on a card of 24 GB ({}): a tier below another one should be larger than it",
            Human(capacity),
            Human(TIER0_8B)
        );
        findings.warn("tiers.host.capacity", text);
    }
    if host.slab_bytes > capacity / 10 {
        let text = format!(
            "{} is more than a tenth of the tier ({}): a space takes whole slabs for each page size, and the others go without",
            ByteSize(host.slab_bytes),
            ByteSize(capacity)
        );
        findings.warn("tiers.host.slab", text);
    }
    let reach = config.limits.blocks_max.map(|blocks| u64::from(blocks) * LAYERS_8B * PAGE_8B);
    if let Some(reach) = reach.filter(|reach| *reach < capacity) {
        let text = format!(
            "so many blocks of an 8B model ({} each) are {}: one space cannot fill host memory of {}; 0 is as many as fit",
            Human(LAYERS_8B * PAGE_8B),
            Human(reach),
            Human(capacity)
        );
        findings.warn("limits.blocks_max", text);
    }
}

fn nvme(config: &Config, nvme: &NvmeTier, findings: &mut Findings) {
    let (capacity, host) = (nvme.slabs_bytes(), config.host.capacity_bytes);
    if capacity < host {
        let text = format!("{} in whole slabs is less than the host tier ({})", Human(capacity), Human(host));
        findings.warn("tiers.nvme.disks", text);
    }
    for (index, disk) in nvme.disks.iter().enumerate() {
        if nvme.slab_bytes > disk.capacity_bytes / 10 {
            let text = format!(
                "{} is more than a tenth of tiers.nvme.disks[{index}].capacity ({}): a space takes whole slabs",
                ByteSize(nvme.slab_bytes),
                ByteSize(disk.capacity_bytes)
            );
            findings.warn("tiers.nvme.slab", text);
        }
    }
    // Reads in flight and cleaning in flight each hold host frames.
    let disks = nvme.disks.len() as u64;
    let streaming = (u64::from(config.edges.nvme_to_host.frames) + disks * u64::from(nvme.depth)) * PAGE_8B
        + disks * nvme.writeback_bytes;
    if host < 4 * streaming {
        let text = format!(
            "reading from NVMe and cleaning to it take {} of host memory with pages of {}: more than a quarter of {}",
            Human(streaming),
            ByteSize(PAGE_8B),
            Human(host)
        );
        findings.warn("tiers.host.capacity", text);
    }
    if nvme.timeout >= config.limits.request_timeout {
        let text = format!(
            "an engine gives up after limits.request_timeout_ms = {}, before a disk counts as stalled",
            config.limits.request_timeout.as_millis()
        );
        findings.warn("tiers.nvme.timeout_ms", text);
    }
}

fn domains(config: &Config, findings: &mut Findings) {
    let mode = config.daemon.socket_mode;
    let tokens = config.domains.iter().any(|domain| !domain.tokens.is_empty());
    if tokens && mode & 0o006 != 0o006 {
        let text = format!(
            "{mode:04o} lets only the socket's owner and group connect, and a container's processes are neither: with tokens it is \
             \"0666\", and the directory's mount and the token decide"
        );
        findings.warn("daemon.socket_mode", text);
    }
    if mode & 0o200 == 0 {
        findings.warn("daemon.socket_mode", format!("{mode:04o} lets not even the daemon's own user connect"));
    }
    for domain in &config.domains {
        let key = |field: &str| format!("domains[{}].{field}", domain.name);
        if domain.uids.contains(&OVERFLOW_UID) {
            let text =
                "65534 is what processes of any unmapped user read as: they would all share this domain; use tokens";
            findings.warn(key("uids"), text);
        }
        if domain.host_bytes < config.host.slab_bytes {
            let text = format!("less than one slab ({}): it gets parts of slabs", ByteSize(config.host.slab_bytes));
            findings.warn(key("host"), text);
        }
        if let Some(nvme) = &config.nvme
            && domain.nvme_bytes < nvme.slab_bytes
        {
            let text = format!("less than one slab ({}): it gets nothing of the NVMe tier", ByteSize(nvme.slab_bytes));
            findings.warn(key("nvme"), text);
        }
    }
}
