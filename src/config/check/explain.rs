//! A configuration in sentences: what each tier holds, what each watermark means in bytes, who may attach.

use super::nvme;
use crate::config::{ByteSize, Cleaning, Config, Domain, size::Human};
use serde::Serialize;

/// Lines about one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Section {
    /// What they are about.
    pub title: String,
    /// What is to be said, a sentence each.
    pub lines: Vec<String>,
}

fn section(title: &str, lines: Vec<String>) -> Section {
    Section { title: title.to_owned(), lines }
}

pub(super) fn explain(config: &Config) -> Vec<Section> {
    let mut all = vec![daemon(config), tier0(config), host(config)];
    match &config.nvme {
        Some(tier) => all.push(section("nvme", nvme::explain(config, tier))),
        None => all.push(section("nvme", vec!["There is none: no [[tiers.nvme.disks]].".to_owned()])),
    }
    all.push(section("attention", attention(config)));
    all.push(section("canary", vec![canary(config)]));
    all.push(section("who may attach", config.domains.iter().map(|domain| attach(config, domain)).collect()));
    all
}

/// Human and exact.
pub(super) fn both(bytes: u64) -> String {
    format!("{} ({bytes} bytes)", Human(bytes))
}

pub(super) fn share(bytes: u64, percent: u8) -> String {
    let part = (u128::from(bytes) * u128::from(percent) / 100) as u64;
    format!("{percent} % ({}, {part} bytes)", Human(part))
}

fn daemon(config: &Config) -> Section {
    let daemon = &config.daemon;
    let mut lines = vec![
        format!("Engines attach at {} (mode {:04o}).", daemon.socket.display(), daemon.socket_mode),
        format!("Status dumps and recordings go to {}; the log is filtered by {:?}.", daemon.dir.display(), daemon.log),
        format!(
            "A core thread polls {:?} after its last work; SIGTERM leaves work {:?}; a hello may take {:?}.",
            daemon.spin, daemon.drain, daemon.handshake
        ),
    ];
    lines.push(match config.http.listen {
        Some(address) => format!("Metrics and health are at http://{address}."),
        None => "Metrics and health are served nowhere.".to_owned(),
    });
    section("daemon", lines)
}

fn tier0(config: &Config) -> Section {
    let cleaning = config.edges.tier0_to_host;
    let lines = vec![
        "It is the engines' own memory; they bring their size with them.".to_owned(),
        format!("Sealed pages are written to host memory {}.", written("tier-0 frames are free or clean", cleaning)),
        format!(
            "A step that reads more than tier 0 holds streams through {} frames of each page size, and the rest stays.",
            config.edges.host_to_tier0.frames
        ),
    ];
    section("tier 0", lines)
}

fn written(what: &str, Cleaning { low_percent, high_percent }: Cleaning) -> String {
    format!("when fewer than {low_percent} % of a page size's {what}, until {high_percent} % are")
}

fn host(config: &Config) -> Section {
    let host = &config.host;
    let slabs = host.capacity_bytes / host.slab_bytes;
    let taken = if host.prefault { "all taken before the daemon is ready" } else { "taken as spaces need them" };
    let gone = if config.nvme.is_some() { "once they are on NVMe" } else { "for good" };
    let order = config.eviction.policy.name();
    let mut lines = vec![
        format!("It holds {} in slabs of {}: {slabs}, {taken}.", both(host.capacity_bytes), ByteSize(host.slab_bytes)),
        format!(
            "Published blocks that no sequence uses leave it, {gone}, from {} in use down to {}.",
            share(host.capacity_bytes, host.high_percent),
            share(host.capacity_bytes, host.low_percent)
        ),
        match config.eviction.ttl.as_secs() {
            0 => format!("They go in the order of \"{order}\", and stay while there is room."),
            ttl => format!(
                "They go in the order of \"{order}\", and {ttl} s after their last use, or soon after that, in any case."
            ),
        },
    ];
    if config.nvme.is_some() {
        let cleaning = config.edges.host_to_nvme;
        lines.push(format!(
            "Blocks are written to NVMe {}: of all of it that is {} and {}.",
            written("host frames are free or also on NVMe", cleaning),
            share(host.capacity_bytes, cleaning.low_percent),
            share(host.capacity_bytes, cleaning.high_percent)
        ));
        lines.push(format!(
            "A step that reads more than tier 0 and host memory hold streams through {} host frames of each page size.",
            config.edges.nvme_to_host.frames
        ));
    }
    section("host", lines)
}

fn attention(config: &Config) -> Vec<String> {
    let a = &config.attention;
    let mut lines = vec![format!(
        "Of sequences under the contract `approx` tier 0 keeps the pages that rank best by {:?}, the first {} and the last {} full ones \
         always; predictions may use {} % of the bandwidth that is measured. Other sequences are read whole.",
        a.policy.name(),
        a.sinks,
        a.recent,
        a.bandwidth_percent
    )];
    if a.drop {
        lines.push(
            "Pages of such sequences that rank too low are given up for good: nothing can read them any more."
                .to_owned(),
        );
    }
    lines
}

fn canary(config: &Config) -> String {
    match config.canary.one_in {
        0 => "No page's bytes are followed from the engine that stored them to the one that reads them.".to_owned(),
        1 => "Every page's bytes are followed from the engine that stored them to the one that reads them.".to_owned(),
        one_in => format!(
            "The bytes of one page in {one_in} are followed from the engine that stored them to the one that reads them."
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
        who.push(format!("whoever shows the token of {}", files.join(", ")));
    }
    let nvme = match &config.nvme {
        Some(_) => format!(", {} of NVMe", both(domain.nvme_bytes)),
        None => String::new(),
    };
    format!(
        "{}: {}; at most {} of host memory{nvme}, {} sessions.",
        domain.name,
        who.join(", and "),
        both(domain.host_bytes),
        domain.sessions_max
    )
}
