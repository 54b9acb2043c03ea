//! `[[domains]]`: uids, tokens and quotas.

use super::Capacities;
use crate::config::ConfigError;
use crate::config::raw::RawDomain;
use crate::config::sourced::{File, Sourced};
use crate::config::{Domain, defaults};
use std::collections::HashMap;
use std::path::PathBuf;

pub(super) fn domains(
    file: File<'_>,
    raw: Vec<RawDomain>,
    tiers: &Capacities,
    sessions_max: &Sourced<u32>,
) -> Result<Vec<Domain>, ConfigError> {
    if raw.is_empty() {
        return Ok(vec![Domain {
            name: "default".into(),
            uids: vec![rustix::process::geteuid().as_raw()],
            tokens: Vec::new(),
            host_bytes: tiers.host.value.0,
            nvme_bytes: tiers.nvme.value.0,
            sessions_max: sessions_max.value,
        }]);
    }
    let mut names: HashMap<String, Sourced<String>> = HashMap::new();
    let mut owners: HashMap<u32, Sourced<Vec<u32>>> = HashMap::new();
    let mut tokens: HashMap<PathBuf, Sourced<Vec<PathBuf>>> = HashMap::new();
    let mut domains = Vec::with_capacity(raw.len());
    for (index, domain) in raw.into_iter().enumerate() {
        let key = |field: &str| format!("domains[{index}].{field}");
        let name = file.given(key("name"), domain.name);
        if name.value.is_empty() || name.value.len() > 64 || name.value.chars().any(char::is_control) {
            return Err(file.value(&name, "a name of 1 to 64 bytes without control characters"));
        }
        if let Some(other) = names.get(&name.value) {
            return Err(file.contradiction(&name, other, "domain names must be unique"));
        }
        let uids = file.field(key("uids"), domain.uids, Vec::new());
        let files = file.field(key("tokens"), domain.tokens, Vec::new());
        if uids.value.is_empty() && files.value.is_empty() {
            return Err(file.contradiction(
                &uids,
                &files,
                "a domain needs a uid or a token; without them no client can attach",
            ));
        }
        for uid in &uids.value {
            if let Some(other) = owners.insert(*uid, uids.clone()) {
                return Err(file.contradiction(
                    &uids,
                    &other,
                    &format!("uid {uid} can belong to one domain only; list it once"),
                ));
            }
        }
        if files.value.len() > defaults::TOKENS_MAX {
            return Err(file.value(&files, format_args!("at most {} files", defaults::TOKENS_MAX)));
        }
        for path in &files.value {
            if !path.is_absolute() {
                return Err(file.value(&files, "absolute paths"));
            }
            if let Some(other) = tokens.insert(path.clone(), files.clone()) {
                let rule = format!("{} can belong to one domain only; list it once", path.display());
                return Err(file.contradiction(&files, &other, &rule));
            }
        }
        let host = file.field(key("host"), domain.host, tiers.host.value);
        if host.value > tiers.host.value {
            return Err(file.contradiction(&host, &tiers.host, "the quota of a domain must fit into the host tier"));
        }
        let nvme = file.field(key("nvme"), domain.nvme, tiers.nvme.value);
        if nvme.value > tiers.nvme.value {
            return Err(file.contradiction(&nvme, &tiers.nvme, "the quota of a domain must fit into the NVMe tier"));
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
            tokens: files.value,
            host_bytes: host.value.0,
            nvme_bytes: nvme.value.0,
            sessions_max: sessions.value,
        });
        names.insert(name.value.clone(), name);
    }
    Ok(domains)
}
