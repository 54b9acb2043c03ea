//! What of a configuration does not fit this machine. Only looks: at files' owners and modes, at file systems, at limits.

use super::{Findings, Judges, Severity, disks};
use crate::config::{ByteSize, Config, Demand, IoEngine, KeySource, Machine, NvmeTier, defaults, size::Human};
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// CAP_IPC_LOCK: memory is locked without a limit.
const CAP_IPC_LOCK: u64 = 1 << 14;

pub(super) fn find(config: &Config, machine: &Machine, judges: &Judges<'_>, findings: &mut Findings) {
    memory(config, machine, findings);
    socket(config, findings);
    if let Some(nvme) = &config.nvme {
        disks::find(nvme, findings);
        key(nvme, judges, findings);
        engine(config, nvme, findings);
    }
    for domain in &config.domains {
        for text in domain.tokens.iter().filter_map(|file| (judges.token)(file)) {
            findings.error(format!("domains[{}].tokens", domain.name), text);
        }
    }
}

fn memory(config: &Config, machine: &Machine, findings: &mut Findings) {
    let (key, capacity) = ("tiers.host.capacity", config.host.capacity_bytes);
    if let Err(error) = machine.holds(&config.host) {
        findings.error(key, error.to_string());
    } else if capacity > machine.available_bytes {
        let text = format!("{} is more than is available now, {}", Human(capacity), Human(machine.available_bytes));
        let severity = if config.host.prefault { Severity::Error } else { Severity::Warning };
        findings.put(severity, key, text);
    }
    if capacity == defaults::HOST_CAPACITY_MAX && machine.available_bytes / 4 > capacity {
        let text = format!(
            "{} is all that is taken where nothing is set, of {} that this machine could give: the more, the fewer reads from NVMe",
            Human(capacity),
            Human(machine.available_bytes)
        );
        findings.warn(key, text);
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().nth(1).is_some() {
        let text = "this machine swaps: pages of the host tier, which hold prompts, may be written to the swap device in clear, and \
                    reading them from there is slower than NVMe; MemorySwapMax=0 in the daemon's unit prevents it";
        findings.warn(key, text);
    }
}

fn socket(config: &Config, findings: &mut Findings) {
    let key = "daemon.socket";
    let Some(dir) = config.daemon.socket.parent() else { return };
    let found = match fs::metadata(dir) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let text = format!(
                "its directory {} does not exist: the daemon makes it if it may (systemd does with RuntimeDirectory=)",
                dir.display()
            );
            return findings.warn(key, text);
        }
        Err(error) => return findings.error(key, format!("its directory {}: {error}", dir.display())),
    };
    let us = rustix::process::geteuid().as_raw();
    if !found.is_dir() {
        findings.error(key, format!("{} is no directory", dir.display()));
    } else if found.uid() != us && found.uid() != 0 {
        let owner = found.uid();
        let text =
            format!("its directory {} belongs to uid {owner}, who can replace the socket; we are {us}", dir.display());
        findings.warn(key, text);
    } else if found.mode() & 0o002 != 0 {
        let text = format!(
            "anybody may write its directory {} (mode {:04o}) and stand in for a daemon that does not run",
            dir.display(),
            found.mode() & 0o7777
        );
        findings.warn(key, text);
    }
    if fs::symlink_metadata(&config.daemon.socket).is_ok_and(|found| found.file_type().is_file()) {
        findings.error(key, "a file that is no socket stands there");
    }
}

/// The master key, as the daemon would read it.
fn key(nvme: &NvmeTier, judges: &Judges<'_>, findings: &mut Findings) {
    let key = match &nvme.encryption.source {
        KeySource::Off | KeySource::Ephemeral => return,
        KeySource::File(_) => "tiers.nvme.encryption.path",
        KeySource::Credential(name) if std::env::var_os("CREDENTIALS_DIRECTORY").is_none() => {
            let text = format!(
                "no $CREDENTIALS_DIRECTORY here, so nobody can tell whether there is a credential {name}: systemd makes it for the \
                 unit, with LoadCredential= or LoadCredentialEncrypted="
            );
            return findings.warn("tiers.nvme.encryption.name", text);
        }
        KeySource::Credential(_) => "tiers.nvme.encryption.name",
    };
    if let Some(text) = (judges.key)(&nvme.encryption.source) {
        findings.error(key, text);
    }
}

fn engine(config: &Config, nvme: &NvmeTier, findings: &mut Findings) {
    if nvme.io == IoEngine::Threads {
        return;
    }
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let root = rustix::process::geteuid().is_root();
    if disabled.trim() == "2" || disabled.trim() == "1" && !root {
        let severity = if nvme.io == IoEngine::IoUring { Severity::Error } else { Severity::Warning };
        let text = format!("kernel.io_uring_disabled is {} on this machine: threads are slower", disabled.trim());
        return findings.put(severity, "tiers.nvme.io", text);
    }
    let limit = getrlimit(Resource::Memlock).current;
    let needed = config.host.capacity_bytes;
    if nvme.registered == Demand::Off || locks_without_limit() || limit.is_none_or(|limit| limit >= needed) {
        return;
    }
    let text = format!(
        "only {} may be locked here (ulimit -l), the host tier has {}: transfers pass through staging buffers; the unit needs \
         LimitMEMLOCK=infinity",
        ByteSize(limit.unwrap_or(0)),
        Human(needed)
    );
    let severity = if nvme.registered == Demand::Required { Severity::Error } else { Severity::Warning };
    findings.put(severity, "tiers.nvme.registered", text);
}

/// Whether this process may lock any amount of memory.
fn locks_without_limit() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).is_some_and(|bits| bits & CAP_IPC_LOCK != 0)
}
