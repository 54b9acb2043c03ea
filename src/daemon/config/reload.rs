//! Reload: compares a new configuration with the running one and merges the values that can change at run time.

use super::section::{Effect, Element, Section, Setting};
use super::{Config, Disk, Domain, Limits};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// A key with a changed value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// Old value; `None` if the key belongs to a new domain or disk.
    pub from: Option<String>,
    /// New value; `None` if its domain or disk was removed.
    pub to: Option<String>,
    /// When the new value takes effect.
    pub effect: Effect,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "unset".to_owned());
        write!(f, "{} changed from {} to {}: {}", self.key, value(&self.from), value(&self.to), self.effect)
    }
}

impl Config {
    /// Return the configuration after a reload of `new`, and the changes in the file.
    #[must_use]
    pub fn reloaded(&self, mut new: Config) -> (Config, Vec<Change>) {
        let (host_bytes, nvme_bytes) = (self.tiers.host.capacity_bytes, self.tiers.nvme.capacity_bytes());
        for domain in &mut new.domains {
            // A new capacity of a tier takes effect only after a restart. Until then a quota is part of the running tier, and one that
            // the file does not give is all of it.
            domain.host_bytes = if domain.has_whole_host { host_bytes } else { domain.host_bytes.min(host_bytes) };
            domain.nvme_bytes = if domain.has_whole_nvme { nvme_bytes } else { domain.nvme_bytes.min(nvme_bytes) };
        }
        let changes = self.changes(&new);
        (self.with(&new), changes)
    }

    /// Return the differences to `other`, in the order of the reference.
    fn changes(&self, other: &Config) -> Vec<Change> {
        let before: BTreeMap<_, _> =
            self.settings().into_iter().map(|setting| (setting.key.clone(), setting)).collect();
        let after = other.settings();
        let mut gone = before.clone();
        let mut changes = Vec::new();
        for Setting { key, value, effect } in after {
            gone.remove(&key);
            let from = before.get(&key).map(|setting| setting.value.clone());
            if from.as_ref() != Some(&value) {
                changes.push(Change { key, from, to: Some(value), effect });
            }
        }
        let gone = gone.into_values();
        changes.extend(gone.map(|s| Change { key: s.key, from: Some(s.value), to: None, effect: s.effect }));
        changes
    }

    /// Merge: keep values that need a restart, and take the new values otherwise. Domains keep their index, because sessions refer
    /// to it. A domain that is missing in the new file accepts no more sessions.
    fn with(&self, new: &Config) -> Config {
        let mut next = self.clone();
        next.take(new, &[Effect::Now, Effect::NewSessions, Effect::NewSpaces]);
        next.domains = domains(&self.domains, &new.domains);
        next
    }
}

fn domains(running: &[Domain], new: &[Domain]) -> Vec<Domain> {
    let named = |list: &[Domain], name: &str| list.iter().find(|domain| domain.name == name).cloned();
    let closed = |domain: &Domain| Domain {
        uids: Vec::new(),
        tokens: Vec::new(),
        relay_uids: Vec::new(),
        relay_tokens: Vec::new(),
        relay_socket: PathBuf::new(),
        ..domain.clone()
    };
    let kept = running.iter().map(|domain| named(new, &domain.name).unwrap_or_else(|| closed(domain)));
    let added = new.iter().filter(|domain| named(running, &domain.name).is_none()).cloned();
    kept.chain(added).collect()
}

impl Limits {
    /// Return the limits for a new session of a space that was created with `begun`. Limits that size the space keep their old
    /// values.
    #[must_use]
    pub fn in_space(&self, begun: &Limits) -> Limits {
        let mut limits = *begun;
        limits.take(self, &[Effect::Now, Effect::NewSessions]);
        limits
    }
}

impl Element for Disk {
    fn label(&self, index: usize) -> String {
        index.to_string()
    }

    fn is_same(&self, other: &Disk) -> bool {
        self.place() == other.place()
    }
}

impl Element for Domain {
    fn label(&self, _: usize) -> String {
        self.name.clone()
    }

    fn is_same(&self, other: &Domain) -> bool {
        self.name == other.name
    }

    fn is_listed(&self) -> bool {
        self.admits()
    }
}

impl Domain {
    /// Return whether any engine may attach. A domain that a reload has closed, because it is no longer in the file, admits none.
    #[must_use]
    pub fn admits(&self) -> bool {
        !self.uids.is_empty() || !self.tokens.is_empty()
    }
}
