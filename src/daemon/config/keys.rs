//! All keys with their effective values, and when a changed value takes effect. Used by reload and by `check-config --json`.

use super::nvme::size_or_zero;
use super::{ByteSize, Cleaning, Config, Disk, Domain, KeySource, NvmeTier, Place, Scan};
use serde::Serialize;
use std::fmt;

/// When a value that changed in the file takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// At the reload.
    Now,
    /// For sessions that attach after the reload.
    NewSessions,
    /// For spaces that are created after the reload.
    NewSpaces,
    /// After a restart.
    Restart,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Effect::Now => "in effect now",
            Effect::NewSessions => "applies to new sessions",
            Effect::NewSpaces => "applies to new spaces",
            Effect::Restart => "needs a restart",
        })
    }
}

/// One key with its effective value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The key as in error messages, except that a domain is identified by its name instead of its index.
    pub key: String,
    /// The value in the syntax of the file.
    pub value: String,
    /// When a changed value takes effect.
    pub effect: Effect,
}

struct Settings(Vec<Setting>);

impl Settings {
    fn put(&mut self, effect: Effect, key: impl Into<String>, value: impl fmt::Display) {
        self.0.push(Setting { key: key.into(), value: value.to_string(), effect });
    }
}

impl Config {
    /// Return all settings, in the order of configs/kvtided.toml.
    #[must_use]
    pub fn settings(&self) -> Vec<Setting> {
        let mut all = Settings(Vec::new());
        self.daemon_settings(&mut all);
        self.tier_settings(&mut all);
        self.eviction_settings(&mut all);
        self.limit_settings(&mut all);
        // A domain that a reload closed is no longer in the file.
        let open = |domain: &&Domain| !domain.uids.is_empty() || !domain.tokens.is_empty();
        for domain in self.domains.iter().filter(open) {
            domain_settings(domain, &mut all);
        }
        all.0
    }

    fn daemon_settings(&self, all: &mut Settings) {
        let daemon = &self.daemon;
        all.put(Effect::Restart, "daemon.socket", quoted(daemon.socket.display()));
        all.put(Effect::Restart, "daemon.socket_mode", quoted(format_args!("{:04o}", daemon.socket_mode)));
        all.put(Effect::Restart, "daemon.dir", quoted(daemon.dir.display()));
        all.put(Effect::Now, "daemon.log", quoted(&daemon.log));
        all.put(Effect::NewSpaces, "daemon.spin_us", daemon.spin.as_micros());
        all.put(Effect::Now, "daemon.drain_ms", daemon.drain.as_millis());
        all.put(Effect::Now, "daemon.handshake_ms", daemon.handshake.as_millis());
        all.put(Effect::NewSpaces, "daemon.recorder", size(daemon.recorder_bytes));
        let listen = self.http.listen.map(|address| address.to_string()).unwrap_or_default();
        all.put(Effect::Restart, "http.listen", quoted(listen));
    }

    fn tier_settings(&self, all: &mut Settings) {
        let host = &self.host;
        all.put(Effect::Restart, "tiers.host.capacity", size(host.capacity_bytes));
        all.put(Effect::Restart, "tiers.host.slab", size(host.slab_bytes));
        all.put(Effect::Restart, "tiers.host.prefault", host.prefault);
        all.put(Effect::Now, "tiers.host.high_percent", host.high_percent);
        all.put(Effect::Now, "tiers.host.low_percent", host.low_percent);
        if let Some(nvme) = &self.nvme {
            nvme_settings(nvme, all);
        }
        all.put(Effect::NewSpaces, "canary.one_in", self.sample.one_in);
        let edges = &self.edges;
        let mut cleaning = |edge: &str, cleaning: Cleaning| {
            all.put(Effect::Now, format!("edges.{edge}.clean_low_percent"), cleaning.low_percent);
            all.put(Effect::Now, format!("edges.{edge}.clean_high_percent"), cleaning.high_percent);
        };
        cleaning("tier0_to_host", edges.tier0_to_host);
        cleaning("host_to_nvme", edges.host_to_nvme);
        let Scan { frames } = edges.nvme_to_host;
        all.put(Effect::Now, "edges.nvme_to_host.scan_frames", frames);
        let Scan { frames } = edges.host_to_tier0;
        all.put(Effect::NewSessions, "edges.host_to_tier0.scan_frames", frames);
        let attention = &self.attention;
        all.put(Effect::Now, "attention.policy", attention.policy.name());
        all.put(Effect::Now, "attention.drop", attention.drop);
        all.put(Effect::Now, "attention.sinks", attention.sinks);
        all.put(Effect::Now, "attention.recent", attention.recent);
        all.put(Effect::Now, "attention.bandwidth_percent", attention.bandwidth_percent);
    }

    fn eviction_settings(&self, all: &mut Settings) {
        let eviction = &self.eviction;
        all.put(Effect::Now, "eviction.policy", quoted(eviction.policy.name()));
        all.put(Effect::Now, "eviction.ttl_s", eviction.ttl.as_secs());
        all.put(Effect::Now, "eviction.high_share_percent", eviction.high_share_percent);
        all.put(Effect::Now, "eviction.recompute_tokens_per_s", eviction.recompute_tokens_per_s);
        all.put(Effect::Now, "eviction.attention_doubles_at", eviction.attention_doubles_at);
        all.put(Effect::Now, "eviction.ending_tokens", eviction.ending_tokens);
    }

    fn limit_settings(&self, all: &mut Settings) {
        let limits = &self.limits;
        all.put(Effect::Now, "limits.spaces_max", limits.spaces_max);
        all.put(Effect::Now, "limits.sessions_max", limits.sessions_max);
        all.put(Effect::NewSpaces, "limits.space_sessions_max", limits.space_sessions_max);
        all.put(Effect::Now, "limits.handshakes_max", limits.handshakes_max);
        all.put(Effect::NewSpaces, "limits.blocks_max", limits.blocks_max.unwrap_or(0));
        all.put(Effect::NewSpaces, "limits.seqs_max", limits.seqs_max);
        all.put(Effect::NewSpaces, "limits.seq_blocks_max", limits.seq_blocks_max);
        all.put(Effect::NewSpaces, "limits.lanes_max", limits.lanes_max);
        all.put(Effect::NewSpaces, "limits.channels_max", limits.channels_max);
        all.put(Effect::NewSessions, "limits.tier0_frames_max", limits.tier0_frames_max);
        all.put(Effect::NewSpaces, "limits.depth_max", limits.depth_max);
        all.put(Effect::NewSpaces, "limits.jobs_max", limits.jobs_max);
        all.put(Effect::Now, "limits.request_timeout_ms", limits.request_timeout.as_millis());
        all.put(Effect::Now, "limits.lease_max_ms", limits.lease_max.as_millis());
        all.put(Effect::Now, "limits.lease_percent", limits.lease_percent);
    }
}

fn nvme_settings(nvme: &NvmeTier, all: &mut Settings) {
    all.put(Effect::Restart, "tiers.nvme.slab", size(nvme.slab_bytes));
    all.put(Effect::Now, "tiers.nvme.high_percent", nvme.high_percent);
    all.put(Effect::Now, "tiers.nvme.low_percent", nvme.low_percent);
    all.put(Effect::Restart, "tiers.nvme.io", quoted(nvme.io));
    all.put(Effect::Restart, "tiers.nvme.direct", quoted(nvme.direct));
    all.put(Effect::Restart, "tiers.nvme.registered", quoted(nvme.registered));
    all.put(Effect::Restart, "tiers.nvme.depth", nvme.depth);
    all.put(Effect::Restart, "tiers.nvme.writeback", size(nvme.writeback_bytes));
    all.put(Effect::Restart, "tiers.nvme.timeout_ms", nvme.timeout.as_millis());
    all.put(Effect::Now, "tiers.nvme.admission", quoted(nvme.admission));
    all.put(Effect::Restart, "tiers.nvme.codec", quoted(nvme.codec));
    all.put(Effect::Restart, "tiers.nvme.codec_threads", nvme.codec_threads);
    all.put(Effect::Restart, "tiers.nvme.errors_max", nvme.errors.errors_max);
    all.put(Effect::Restart, "tiers.nvme.errors_window_s", nvme.errors.window.as_secs());
    all.put(Effect::Restart, "tiers.nvme.discard", nvme.discard.is_some());
    if let Some(discard) = nvme.discard {
        all.put(Effect::Restart, "tiers.nvme.discard_per_s", size(discard.bytes_per_s));
        all.put(Effect::Restart, "tiers.nvme.discard_idle_ms", discard.idle.as_millis());
    }
    all.put(Effect::Restart, "tiers.nvme.encryption.key", quoted(&nvme.encryption.source));
    match &nvme.encryption.source {
        KeySource::File(path) => all.put(Effect::Restart, "tiers.nvme.encryption.path", quoted(path.display())),
        KeySource::Credential(name) => all.put(Effect::Restart, "tiers.nvme.encryption.name", quoted(name)),
        KeySource::Off | KeySource::Ephemeral => {}
    }
    all.put(Effect::Restart, "tiers.nvme.encryption.new_slabs", nvme.encryption.new_slabs);
    for (index, disk) in nvme.disks.iter().enumerate() {
        disk_settings(index, disk, all);
    }
}

fn disk_settings(index: usize, disk: &Disk, all: &mut Settings) {
    let mut put =
        |effect, field: &str, value: String| all.put(effect, format!("tiers.nvme.disks[{index}].{field}"), value);
    put(Effect::Restart, disk.place.key(), quoted(disk.place.path().display()));
    put(Effect::Restart, "capacity", size(disk.capacity_bytes));
    if let Place::Dir(_) = disk.place {
        put(Effect::Restart, "reserve_free", quoted(disk.reserve_free));
    }
    put(Effect::Now, "bytes_per_day", quoted(size_or_zero(disk.bytes_per_day)));
    put(Effect::Now, "endurance", quoted(size_or_zero(disk.endurance_bytes)));
    put(Effect::Restart, "weight", disk.weight.to_string());
}

fn domain_settings(domain: &Domain, all: &mut Settings) {
    let mut put = |field: &str, value: String| all.put(Effect::Now, format!("domains[{}].{field}", domain.name), value);
    put("uids", format!("{:?}", domain.uids));
    put("tokens", format!("{:?}", domain.tokens));
    put("host", size(domain.host_bytes));
    put("nvme", size(domain.nvme_bytes));
    put("sessions_max", domain.sessions_max.to_string());
}

fn quoted(value: impl fmt::Display) -> String {
    format!("{:?}", value.to_string())
}

fn size(bytes: u64) -> String {
    quoted(ByteSize(bytes))
}
