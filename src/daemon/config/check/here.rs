//! Findings about a configuration on this machine: memory, devices, file systems, limits. Read-only.

use super::{Findings, Severity, disks};
use crate::config::{ByteSize, Config, FeatureUse, Human, IoEngine, Machine, NvmeTier, constants};
use rustix::process::{Resource, getrlimit};
use std::fs;

/// CAP_IPC_LOCK: no limit on locked memory.
const CAP_IPC_LOCK: u64 = 1 << 14;

pub(super) fn find(config: &Config, machine: &Machine, findings: &mut Findings) {
    memory(config, machine, findings);
    socket(config, findings);
    if let Some(nvme) = config.nvme() {
        disks::find(nvme, findings);
        engine(config, nvme, findings);
    }
}

fn memory(config: &Config, machine: &Machine, findings: &mut Findings) {
    let (key, capacity) = ("tiers.host.capacity", config.tiers.host.capacity_bytes);
    if !config.tiers.host.prefault && machine.holds(&config.tiers.host).is_ok() && capacity > machine.available_bytes {
        let text = format!(
            "{} is more than the memory available now ({}). Reduce it",
            Human(capacity),
            Human(machine.available_bytes)
        );
        findings.warn(key, text);
    }
    if capacity == constants::HOST_CAPACITY_MAX && machine.available_bytes / 4 > capacity {
        let text = format!(
            "the default is at most {}, but this machine has {} available. A larger host tier needs fewer reads from NVMe",
            Human(capacity),
            Human(machine.available_bytes)
        );
        findings.warn(key, text);
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().nth(1).is_some() {
        let text = "this machine uses swap: pages of the host tier contain prompts and may be written to the swap device in clear. \
                    Reading them back is slower than NVMe. Set MemorySwapMax=0 in the daemon's unit";
        findings.warn(key, text);
    }
}

fn socket(config: &Config, findings: &mut Findings) {
    let Some(dir) = config.daemon.socket.parent().filter(|dir| !dir.exists()) else { return };
    let text = format!(
        "directory {} does not exist: the daemon creates it if it has permission (under systemd: RuntimeDirectory=)",
        dir.display()
    );
    findings.warn("daemon.socket", text);
}

fn engine(config: &Config, nvme: &NvmeTier, findings: &mut Findings) {
    if nvme.io == IoEngine::Threads {
        return;
    }
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let root = rustix::process::geteuid().is_root();
    if disabled.trim() == "2" || disabled.trim() == "1" && !root {
        let severity = if nvme.io == IoEngine::Uring { Severity::Error } else { Severity::Warning };
        let text = format!(
            "kernel.io_uring_disabled = {} on this machine disables io_uring; threads are slower",
            disabled.trim()
        );
        return findings.put(severity, "tiers.nvme.io", text);
    }
    let limit = getrlimit(Resource::Memlock).current;
    let needed = config.tiers.host.capacity_bytes;
    if nvme.registered == FeatureUse::Off || locks_without_limit() || limit.is_none_or(|limit| limit >= needed) {
        return;
    }
    let text = format!(
        "the limit of locked memory is {} (ulimit -l), less than the host tier ({}): the kernel pins pages anew for each transfer, \
         which costs CPU time. Set LimitMEMLOCK=infinity in the unit",
        ByteSize(limit.unwrap_or(0)),
        Human(needed)
    );
    let severity = if nvme.registered == FeatureUse::Required { Severity::Error } else { Severity::Warning };
    findings.put(severity, "tiers.nvme.registered", text);
}

/// Return true if this process has no limit on locked memory.
fn locks_without_limit() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).is_some_and(|bits| bits & CAP_IPC_LOCK != 0)
}
