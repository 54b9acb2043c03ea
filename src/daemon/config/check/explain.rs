//! Summary of a configuration: capacity of each tier, watermarks in bytes, access.

use super::nvme;
use crate::config::{ByteSize, Config, Domain, Human};
use serde::Serialize;

/// One part of the summary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Section {
    /// Name of the part.
    pub title: String,
    /// Effective settings.
    pub lines: Vec<String>,
}

fn section(title: &str, lines: Vec<String>) -> Section {
    Section { title: title.to_owned(), lines }
}

pub(super) fn explain(config: &Config) -> Vec<Section> {
    let mut all = vec![daemon(config), tier0(config), host(config)];
    match config.nvme() {
        Some(tier) => all.push(section("nvme", nvme::explain(config, tier))),
        None => all.push(section("nvme", vec!["Disabled: no [[tiers.nvme.disks]].".to_owned()])),
    }
    all.push(section("attention", attention(config)));
    all.push(section("integrity_sample", vec![integrity_sample(config)]));
    all.push(section("access", config.domains.iter().map(|domain| attach(config, domain)).collect()));
    all
}

/// Format a size rounded and exact.
pub(super) fn both(bytes: u64) -> String {
    format!("{} ({bytes} bytes)", Human(bytes))
}

/// Format a percentage of a size.
pub(super) fn share(bytes: u64, percent: u8) -> String {
    let part = (u128::from(bytes) * u128::from(percent) / 100) as u64;
    format!("{percent} % ({}, {part} bytes)", Human(part))
}

fn daemon(config: &Config) -> Section {
    let daemon = &config.daemon;
    let mut lines = vec![
        format!("Socket: {} (mode {:04o}).", daemon.socket.display(), daemon.socket_mode),
        format!("Status dumps and recordings: {}. Log filter: {:?}.", daemon.dir.display(), daemon.log),
        format!("Core threads poll for {} µs after their last work before they sleep.", daemon.spin.as_micros()),
        format!(
            "Drain timeout after SIGTERM: {} ms. Handshake timeout: {} ms.",
            daemon.drain.as_millis(),
            daemon.handshake.as_millis()
        ),
    ];
    lines.push(match config.http.listen {
        Some(address) => format!("Metrics, health and status: http://{address}."),
        None => "HTTP is disabled.".to_owned(),
    });
    section("daemon", lines)
}

fn tier0(config: &Config) -> Section {
    let lines = vec![
        "Allocated by each engine, outside of the host tier.".to_owned(),
        format!(
            "If a step reads more than tier 0 holds, the excess streams through {} frames of each page size.",
            config.edges.host_to_tier0.frames
        ),
    ];
    section("tier 0", lines)
}

fn host(config: &Config) -> Section {
    let host = &config.tiers.host;
    let slabs = host.capacity_bytes / host.slab_bytes;
    let taken = if host.prefault { "allocated from the start on" } else { "allocated on demand" };
    let gone =
        if config.nvme().is_some() { "Blocks on NVMe stay cached." } else { "They are lost: there is no NVMe tier." };
    let order = config.eviction.policy.name();
    let mut lines = vec![
        format!("Capacity: {} in {slabs} slabs of {}, {taken}.", both(host.capacity_bytes), ByteSize(host.slab_bytes)),
        format!(
            "Unreferenced blocks are evicted above {}, down to {}. {gone}",
            share(host.capacity_bytes, host.high_percent),
            share(host.capacity_bytes, host.low_percent)
        ),
        match config.eviction.ttl.as_secs() {
            0 => format!("Eviction policy: {order}. Blocks stay until room is needed."),
            ttl => format!(
                "Eviction policy: {order}. Blocks expire {ttl} s after their last use, or soon after that, even if there is room."
            ),
        },
    ];
    if config.nvme().is_some() {
        lines.push(format!(
            "If a step reads more than tier 0 and host memory hold, the excess streams through {} host frames of each page size.",
            config.edges.nvme_to_host.frames
        ));
    }
    section("host", lines)
}

fn attention(config: &Config) -> Vec<String> {
    let a = &config.attention;
    vec![format!(
        "Sequences with the contract `approx`: tier 0 keeps the pages with the most predicted attention, and always the first {} \
         and the last {} full pages. Predicted loads use at most {} % of the measured bandwidth. Other sequences are read completely.",
        a.sinks, a.recent, a.bandwidth_percent
    )]
}

fn integrity_sample(config: &Config) -> String {
    match config.sample.one_in {
        0 => "End-to-end verification of pages is disabled.".to_owned(),
        1 => {
            "Every page is verified end to end, from the engine that stores it to the engine that loads it.".to_owned()
        }
        one_in => format!(
            "One page in {one_in} is verified end to end, from the engine that stores it to the engine that loads it."
        ),
    }
}

fn attach(config: &Config, domain: &Domain) -> String {
    let mut who = Vec::new();
    if !domain.uids.is_empty() {
        let uids: Vec<_> = domain.uids.iter().map(u32::to_string).collect();
        who.push(format!("uid {}", uids.join(", ")));
    }
    if !domain.tokens.is_empty() {
        let files: Vec<_> = domain.tokens.iter().map(|file| file.display().to_string()).collect();
        who.push(format!("clients with a token from {}", files.join(", ")));
    }
    let nvme = match config.nvme() {
        Some(_) => format!(", {} of NVMe", both(domain.nvme_bytes)),
        None => String::new(),
    };
    format!(
        "{}: {}. Limits: {} of host memory{nvme}, {} sessions.",
        domain.name,
        who.join(" and "),
        both(domain.host_bytes),
        domain.sessions_max
    )
}
