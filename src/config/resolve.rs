//! From what stands in the file to what the daemon runs with: defaults, ranges, contradictions.

use super::raw::{Raw, RawDaemon, RawDomain, RawHost, RawLimits, RawTier0};
use super::size::ByteSize;
use super::sourced::{File, Sourced};
use super::{Config, Daemon, Domain, HostTier, Limits, Overrides, Tier0, defaults};
use crate::error::Error;
use std::collections::HashMap;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// A syntax error or an unknown key, with its place and its line.
pub(super) fn syntax(file: &str, text: &str, error: &toml::de::Error) -> Error {
    let source = File { name: file, text };
    let (line, column) = error.span().map_or((1, 1), |span| source.place(span.start));
    let snippet = text.lines().nth(line - 1).unwrap_or_default().trim().to_owned();
    Error::Syntax { file: file.into(), line, column, snippet, message: error.message().to_owned() }
}

pub(super) fn resolve(file: &str, text: &str, raw: Raw, overrides: &Overrides) -> Result<Config, Error> {
    let file = File { name: file, text };
    let daemon = daemon(file, raw.daemon, overrides)?;
    let capacity = file
        .field("tiers.host.capacity", raw.tiers.host.capacity.clone(), ByteSize(defaults::HOST_CAPACITY))
        .or_flag("--host-bytes", overrides.host_bytes);
    let host = host(file, &capacity, raw.tiers.host, overrides)?;
    let tier0 = tier0(file, raw.tiers.tier0, overrides)?;
    let sessions_max = file.field("limits.sessions_max", raw.limits.sessions_max.clone(), defaults::SESSIONS_MAX);
    let limits = limits(file, &sessions_max, raw.limits)?;
    let domains = domains(file, raw.domains, &capacity, &sessions_max)?;
    Ok(Config { daemon, host, tier0, limits, domains })
}

fn daemon(file: File<'_>, raw: RawDaemon, overrides: &Overrides) -> Result<Daemon, Error> {
    let dir = file.field("daemon.dir", raw.dir, PathBuf::from(defaults::DIR)).or_flag("--dir", overrides.dir.clone());
    let default_socket = if dir.is_default() { PathBuf::from(defaults::SOCKET) } else { dir.value.join("kvtide.sock") };
    let socket = file.field("daemon.socket", raw.socket, default_socket).or_flag("--socket", overrides.socket.clone());
    if socket.value.as_os_str().as_bytes().len() > defaults::SOCKET_PATH_BYTES_MAX {
        return Err(file.value(&socket, format_args!("a path of at most {} bytes", defaults::SOCKET_PATH_BYTES_MAX)));
    }
    let mode = file.field("daemon.socket_mode", raw.socket_mode, defaults::SOCKET_MODE.to_owned());
    let socket_mode = u32::from_str_radix(&mode.value, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| file.value(&mode, "an octal text from \"0000\" to \"0777\""))?;
    let spin_us = file.field("daemon.spin_us", raw.spin_us, defaults::SPIN_US);
    let drain_ms = file.field("daemon.drain_ms", raw.drain_ms, defaults::DRAIN_MS);
    let handshake_ms = file.field("daemon.handshake_ms", raw.handshake_ms, defaults::HANDSHAKE_MS);
    let recorder = file.field("daemon.recorder", raw.recorder, ByteSize(defaults::RECORDER));
    Ok(Daemon {
        socket: socket.value,
        socket_mode,
        dir: dir.value,
        spin: Duration::from_micros(file.in_range(&spin_us, &defaults::SPIN_US_RANGE)?),
        drain: Duration::from_millis(file.in_range(&drain_ms, &defaults::DRAIN_MS_RANGE)?),
        recorder_bytes: file.in_range(&recorder.map(|size| size.0), &defaults::RECORDER_RANGE)?,
        handshake: Duration::from_millis(file.in_range(&handshake_ms, &defaults::HANDSHAKE_MS_RANGE)?),
    })
}

fn host(file: File<'_>, capacity: &Sourced<ByteSize>, raw: RawHost, overrides: &Overrides) -> Result<HostTier, Error> {
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
    Ok(HostTier { capacity_bytes, slab_bytes, high_percent, low_percent })
}

fn tier0(file: File<'_>, raw: RawTier0, overrides: &Overrides) -> Result<Tier0, Error> {
    let low = file.field("tiers.tier0.clean_low_percent", raw.clean_low_percent, defaults::CLEAN_LOW_PERCENT);
    let high = file.field("tiers.tier0.clean_high_percent", raw.clean_high_percent, defaults::CLEAN_HIGH_PERCENT);
    let (clean_low_percent, clean_high_percent) = watermarks(file, &low, &high)?;
    let scan = file
        .field("tiers.tier0.scan_frames", raw.scan_frames, defaults::SCAN_FRAMES)
        .or_flag("--scan-frames", overrides.scan_frames);
    let scan_frames = file.in_range(&scan, &defaults::SCAN_FRAMES_RANGE)?;
    Ok(Tier0 { clean_low_percent, clean_high_percent, scan_frames })
}

fn watermarks(file: File<'_>, low: &Sourced<u8>, high: &Sourced<u8>) -> Result<(u8, u8), Error> {
    let range = defaults::PERCENT_RANGE;
    let (low_percent, high_percent) = (file.in_range(low, &range)?, file.in_range(high, &range)?);
    if low_percent > high_percent {
        return Err(file.contradiction(low, high, "the low watermark must not be above the high one"));
    }
    Ok((low_percent, high_percent))
}

fn limits(file: File<'_>, sessions_max: &Sourced<u32>, raw: RawLimits) -> Result<Limits, Error> {
    let blocks = file.field("limits.blocks_max", raw.blocks_max, defaults::BLOCKS_MAX);
    let blocks_max = file.in_range(&blocks, &defaults::BLOCKS_RANGE)?;
    let default_seq_blocks = defaults::SEQ_BLOCKS_MAX.min(blocks_max);
    let seq_blocks = file.field("limits.seq_blocks_max", raw.seq_blocks_max, default_seq_blocks);
    let seq_blocks_max = file.in_range(&seq_blocks, &defaults::SEQ_BLOCKS_RANGE)?;
    if seq_blocks_max > blocks_max {
        return Err(file.contradiction(&seq_blocks, &blocks, "a sequence cannot have more blocks than its space"));
    }
    let default_space = u32::from(defaults::SPACE_SESSIONS_MAX).min(sessions_max.value) as u16;
    let space_sessions = file.field("limits.space_sessions_max", raw.space_sessions_max, default_space);
    let space_sessions_max = file.in_range(&space_sessions, &defaults::SPACE_SESSIONS_RANGE)?;
    if u32::from(space_sessions_max) > sessions_max.value {
        return Err(file.contradiction(
            &space_sessions,
            sessions_max,
            "a space cannot have more sessions than the daemon",
        ));
    }
    let timeout = file.field("limits.request_timeout_ms", raw.request_timeout_ms, defaults::REQUEST_TIMEOUT_MS);
    let depth = file.field("limits.depth_max", raw.depth_max, defaults::DEPTH_MAX);
    let depth_max = power_of_two(file, &depth, file.in_range(&depth, &defaults::DEPTH_RANGE)?)?;
    let jobs = file.field("limits.jobs_max", raw.jobs_max, defaults::JOBS_MAX);
    let jobs_max = power_of_two(file, &jobs, file.in_range(&jobs, &defaults::JOBS_RANGE)?)?;
    let u32_of = |key: &str, field, default, range| file.in_range(&file.field(key, field, default), &range);
    let u16_of = |key: &str, field, default, range| file.in_range(&file.field(key, field, default), &range);
    Ok(Limits {
        spaces_max: u32_of("limits.spaces_max", raw.spaces_max, defaults::SPACES_MAX, defaults::SPACES_RANGE)?,
        sessions_max: file.in_range(sessions_max, &defaults::SESSIONS_RANGE)?,
        space_sessions_max,
        handshakes_max: u32_of(
            "limits.handshakes_max",
            raw.handshakes_max,
            defaults::HANDSHAKES_MAX,
            defaults::HANDSHAKES_RANGE,
        )?,
        blocks_max,
        seqs_max: u32_of("limits.seqs_max", raw.seqs_max, defaults::SEQS_MAX, defaults::SEQS_RANGE)?,
        seq_blocks_max,
        lanes_max: u16_of("limits.lanes_max", raw.lanes_max, defaults::LANES_MAX, defaults::LANES_RANGE)?,
        channels_max: u16_of(
            "limits.channels_max",
            raw.channels_max,
            defaults::CHANNELS_MAX,
            defaults::CHANNELS_RANGE,
        )?,
        tier0_frames_max: u32_of(
            "limits.tier0_frames_max",
            raw.tier0_frames_max,
            defaults::TIER0_FRAMES_MAX,
            defaults::TIER0_FRAMES_RANGE,
        )?,
        depth_max,
        jobs_max,
        request_timeout: Duration::from_millis(file.in_range(&timeout, &defaults::REQUEST_TIMEOUT_MS_RANGE)?),
    })
}

fn power_of_two<T: fmt::Debug + Copy + Into<u32>>(file: File<'_>, sourced: &Sourced<T>, value: T) -> Result<T, Error> {
    if value.into().is_power_of_two() {
        Ok(value)
    } else {
        Err(file.value(sourced, "a power of two (it sizes a ring)"))
    }
}

fn domains(
    file: File<'_>,
    raw: Vec<RawDomain>,
    capacity: &Sourced<ByteSize>,
    sessions_max: &Sourced<u32>,
) -> Result<Vec<Domain>, Error> {
    if raw.is_empty() {
        return Ok(vec![Domain {
            name: "default".into(),
            uids: vec![rustix::process::geteuid().as_raw()],
            host_bytes: capacity.value.0,
            sessions_max: sessions_max.value,
        }]);
    }
    let mut names: HashMap<String, Sourced<String>> = HashMap::new();
    let mut owners: HashMap<u32, Sourced<Vec<u32>>> = HashMap::new();
    let mut domains = Vec::with_capacity(raw.len());
    for (index, domain) in raw.into_iter().enumerate() {
        let key = |field: &str| format!("domains[{index}].{field}");
        let name = file.given(key("name"), domain.name);
        if name.value.is_empty() || name.value.len() > 64 {
            return Err(file.value(&name, "a name of 1 to 64 bytes"));
        }
        if let Some(other) = names.get(&name.value) {
            return Err(file.contradiction(&name, other, "a domain's name must be its own"));
        }
        let uids = file.given(key("uids"), domain.uids);
        if uids.value.is_empty() {
            return Err(file.value(&uids, "at least one uid, or nobody may attach"));
        }
        for uid in &uids.value {
            if let Some(other) = owners.insert(*uid, uids.clone()) {
                return Err(file.contradiction(&uids, &other, &format!("uid {uid} can belong to one domain only")));
            }
        }
        let host = file.field(key("host"), domain.host, capacity.value);
        if host.value > capacity.value {
            return Err(file.contradiction(&host, capacity, "a domain's quota must fit into the host tier"));
        }
        let sessions = file.field(key("sessions_max"), domain.sessions_max, sessions_max.value);
        if sessions.value > sessions_max.value {
            return Err(file.contradiction(
                &sessions,
                sessions_max,
                "a domain cannot have more sessions than the daemon",
            ));
        }
        domains.push(Domain {
            name: name.value.clone(),
            uids: uids.value,
            host_bytes: host.value.0,
            sessions_max: sessions.value,
        });
        names.insert(name.value.clone(), name);
    }
    Ok(domains)
}
