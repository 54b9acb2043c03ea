//! What of a configuration does not fit this machine. Only looks: at files' owners and modes, at file systems, at limits.

use super::{Findings, Severity};
use crate::attach;
use crate::config::{ByteSize, Config, Demand, Disk, IoEngine, Machine, NvmeTier, size::Human};
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// CAP_IPC_LOCK: memory is locked without a limit.
const CAP_IPC_LOCK: u64 = 1 << 14;

pub(super) fn find(config: &Config, machine: &Machine, findings: &mut Findings) {
    memory(config, machine, findings);
    socket(config, findings);
    if let Some(nvme) = &config.nvme {
        disks(nvme, findings);
        engine(config, nvme, findings);
    }
    for domain in &config.domains {
        for error in domain.tokens.iter().filter_map(|file| attach::read_token(file).err()) {
            findings.error(format!("domains[{}].tokens", domain.name), error.to_string());
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

fn disks(nvme: &NvmeTier, findings: &mut Findings) {
    let mut devices: Vec<(u64, &Path)> = Vec::new();
    for (index, disk) in nvme.disks.iter().enumerate() {
        let key = |field: &str| format!("tiers.nvme.disks[{index}].{field}");
        let Some(stands) = existing(&disk.dir) else { continue };
        if stands == disk.dir {
            owned(&key("dir"), &disk.dir, findings);
        }
        room(&key("capacity"), disk, &stands, findings);
        if let Ok(found) = fs::metadata(&stands) {
            if let Some((_, other)) = devices.iter().find(|(device, _)| *device == found.dev()) {
                let text =
                    format!("on the same file system as {}: two queues on one device are no faster", other.display());
                findings.warn(key("dir"), text);
            }
            devices.push((found.dev(), &disk.dir));
        }
    }
}

/// The directory, or the nearest above it that there is.
fn existing(dir: &Path) -> Option<PathBuf> {
    dir.ancestors().find(|dir| dir.exists()).map(Path::to_path_buf)
}

fn owned(key: &str, dir: &Path, findings: &mut Findings) {
    let Ok(found) = fs::metadata(dir) else { return };
    let us = rustix::process::geteuid().as_raw();
    if !found.is_dir() {
        findings.error(key, "it is no directory");
    } else if found.uid() != us {
        findings.warn(key, format!("it belongs to uid {}; the daemon must run as that user, we are {us}", found.uid()));
    } else if found.mode() & 0o077 != 0 {
        let text =
            format!("its mode is {:04o}: others could read prompts in it; it must be 0700", found.mode() & 0o777);
        findings.error(key, text);
    }
}

/// Whether the file system has room for the disk's file beside what must stay free.
fn room(key: &str, disk: &Disk, stands: &Path, findings: &mut Findings) {
    let Ok(system) = rustix::fs::statvfs(stands) else { return };
    let (total, free) = (system.f_blocks * system.f_frsize, system.f_bavail * system.f_frsize);
    let has = fs::metadata(disk.dir.join("kvtide.store")).map_or(0, |found| found.blocks() * 512);
    let (floor, left) = (disk.reserve_free.bytes_of(total), (free + has).saturating_sub(disk.capacity_bytes));
    if disk.capacity_bytes > free + has {
        let text = format!(
            "{} is more than is free in {}, {}",
            Human(disk.capacity_bytes),
            stands.display(),
            Human(free + has)
        );
        findings.error(key, text);
    } else if left < floor {
        let text = format!(
            "{} leaves {} of {} free in {}, less than reserve_free = {} ({})",
            Human(disk.capacity_bytes),
            Human(left),
            Human(total),
            stands.display(),
            disk.reserve_free,
            Human(floor)
        );
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
