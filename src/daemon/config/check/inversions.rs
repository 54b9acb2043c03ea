//! Warnings about valid values that defeat the purpose of a tier or open access too far.

use super::{Findings, nvme};
use crate::config::{ByteSize, Config, Human, NvmeTier};

/// Page of one layer of an 8B model (16 tokens, 8 KV heads of 128, K and V, 2 bytes each). The file does not determine the page
/// size, so sizes are compared with this one.
pub(super) const PAGE_8B: u64 = 64 << 10;
/// Layers of that model.
const LAYERS_8B: u64 = 32;
/// Room for KV cache of that model on a GPU of 24 GB: weights take 16 GB, the engine 2 GB. A common, small tier 0.
const TIER0_8B: u64 = 6 << 30;
/// Uid of every peer with a user that is not mapped into the daemon's user namespace.
const OVERFLOW_UID: u32 = 65534;

pub(super) fn find(config: &Config, findings: &mut Findings) {
    host(config, findings);
    if let Some(nvme) = config.nvme() {
        self::nvme(config, nvme, findings);
        nvme::find(nvme, findings);
    }
    for (key, low, high) in [
        ("tiers.host.high_percent", config.tiers.host.low_percent, config.tiers.host.high_percent),
        ("tiers.nvme.high_percent", nvme_low(config), config.nvme().map_or(95, |nvme| nvme.high_percent)),
    ] {
        if high == 100 {
            findings.warn(
                key,
                "at 100 nothing is evicted before the tier is full, so requests wait for room. Use 95 or less",
            );
        } else if low == high {
            findings.warn(
                key,
                format!("equal to low_percent ({low}): each new page evicts another one at once. Lower low_percent"),
            );
        }
    }
    let open = config.http.listen.filter(|address| !address.ip().is_loopback());
    if let Some(address) = open {
        let names = if config.http.token_file.is_some() { "metrics and health" } else { "metrics, health and status" };
        let text = format!(
            "{address} is not on loopback: every client that can connect reads {names}, with the names of models and tenants"
        );
        findings.warn("http.listen", text);
    }
    domains(config, findings);
}

fn nvme_low(config: &Config) -> u8 {
    config.nvme().map_or(90, |nvme| nvme.low_percent)
}

fn host(config: &Config, findings: &mut Findings) {
    let host = &config.tiers.host;
    let capacity = host.capacity_bytes;
    if capacity < TIER0_8B {
        let text = format!(
            "{} is less than tier 0 of an 8B model on a GPU of 24 GB ({}). Make each tier larger than the tier above it",
            Human(capacity),
            Human(TIER0_8B)
        );
        findings.warn("tiers.host.capacity", text);
    }
    if host.slab_bytes > capacity / 10 {
        let text = format!(
            "{} is more than a tenth of the tier ({}): a space gets whole slabs for each page size, so others may get none. Use a \
             smaller slab",
            ByteSize(host.slab_bytes),
            ByteSize(capacity)
        );
        findings.warn("tiers.host.slab", text);
    }
    let reach = config.limits.blocks_max.map(|blocks| (blocks, u64::from(blocks) * LAYERS_8B * PAGE_8B));
    if let Some((blocks, reach)) = reach.filter(|(_, reach)| *reach < capacity) {
        let text = format!(
            "{blocks} blocks of an 8B model ({} each) are {}: one space cannot fill host memory of {}. Use 0 (as many as fit)",
            Human(LAYERS_8B * PAGE_8B),
            Human(reach),
            Human(capacity)
        );
        findings.warn("limits.blocks_max", text);
    }
}

fn nvme(config: &Config, nvme: &NvmeTier, findings: &mut Findings) {
    let (capacity, host) = (nvme.slabs_bytes(), config.tiers.host.capacity_bytes);
    if capacity < host {
        let text = format!(
            "{} in whole slabs is less than the host tier ({}). Make each tier larger than the tier above it",
            Human(capacity),
            Human(host)
        );
        findings.warn("tiers.nvme.disks", text);
    }
    for (index, disk) in nvme.disks.iter().enumerate() {
        if nvme.slab_bytes > disk.capacity_bytes / 10 {
            let text = format!(
                "{} is more than a tenth of tiers.nvme.disks[{index}].capacity ({}): a space gets whole slabs, so others may get \
                 none. Use a smaller slab",
                ByteSize(nvme.slab_bytes),
                ByteSize(disk.capacity_bytes)
            );
            findings.warn("tiers.nvme.slab", text);
        }
    }
    // Reads and write-back in flight each hold host frames.
    let disks = nvme.disks.len() as u64;
    let streaming = (u64::from(config.edges.nvme_to_host.frames) + disks * u64::from(nvme.depth)) * PAGE_8B
        + disks * nvme.writeback_bytes;
    if host < 4 * streaming {
        let text = format!(
            "NVMe reads and write-back in flight need {} of host memory with pages of {}, more than a quarter of {}. Increase it, \
             or lower scan_frames, depth or writeback",
            Human(streaming),
            ByteSize(PAGE_8B),
            Human(host)
        );
        findings.warn("tiers.host.capacity", text);
    }
    if nvme.timeout >= config.limits.request_timeout {
        let text = format!(
            "requests fail after limits.request_timeout_ms = {}, before a disk counts as stalled. Set a lower value",
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
            "{mode:04o} lets only the socket's owner and group connect, which excludes processes in containers. With tokens, use \
             \"0666\": the mounted directory and the token control access"
        );
        findings.warn("daemon.socket_mode", text);
    }
    if mode & 0o200 == 0 {
        findings.warn("daemon.socket_mode", format!("{mode:04o} excludes even the daemon's own user. Use \"0660\""));
    }
    for domain in &config.domains {
        let key = |field: &str| format!("domains[{}].{field}", domain.name);
        if domain.uids.contains(&OVERFLOW_UID) {
            let text =
                "65534 is the uid of all processes of unmapped users: they would all share this domain. Use tokens";
            findings.warn(key("uids"), text);
        }
        if domain.host_bytes < config.tiers.host.slab_bytes {
            let text = format!(
                "{} is less than one slab ({}): the domain gets only parts of slabs",
                ByteSize(domain.host_bytes),
                ByteSize(config.tiers.host.slab_bytes)
            );
            findings.warn(key("host"), text);
        }
        if let Some(nvme) = config.nvme()
            && domain.nvme_bytes < nvme.slab_bytes
        {
            let text = format!(
                "{} is less than one slab ({}): the domain gets no NVMe space",
                ByteSize(domain.nvme_bytes),
                ByteSize(nvme.slab_bytes)
            );
            findings.warn(key("nvme"), text);
        }
    }
}
