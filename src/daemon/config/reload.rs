//! Reload: compares a new configuration with the running one and merges the values that can change at run time.

use super::keys::{Effect, Setting};
use super::{Config, Domain, Limits, NvmeTier};
use std::collections::BTreeMap;
use std::fmt;

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
        let nvme_bytes = self.nvme.as_ref().map_or(0, NvmeTier::capacity_bytes);
        for domain in &mut new.domains {
            // The default quota is the tier's capacity in the new file, which takes effect only after a restart.
            domain.host_bytes = domain.host_bytes.min(self.host.capacity_bytes);
            domain.nvme_bytes = domain.nvme_bytes.min(nvme_bytes);
        }
        let changes = self.changes(&new);
        (self.with(&new), changes)
    }

    /// Return the differences to `other`, in the order of configs/kvtided.toml.
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
        next.daemon.log.clone_from(&new.daemon.log);
        next.daemon.spin = new.daemon.spin;
        next.daemon.drain = new.daemon.drain;
        next.daemon.handshake = new.daemon.handshake;
        next.daemon.recorder_bytes = new.daemon.recorder_bytes;
        next.host.high_percent = new.host.high_percent;
        next.host.low_percent = new.host.low_percent;
        if let (Some(next), Some(new)) = (&mut next.nvme, &new.nvme) {
            next.high_percent = new.high_percent;
            next.low_percent = new.low_percent;
            next.admission = new.admission;
            for disk in &mut next.disks {
                if let Some(new) = new.disks.iter().find(|new| new.place == disk.place) {
                    disk.bytes_per_day = new.bytes_per_day;
                    disk.endurance_bytes = new.endurance_bytes;
                }
            }
        }
        next.sample = new.sample;
        next.edges = new.edges;
        next.attention = new.attention;
        next.eviction.clone_from(&new.eviction);
        next.limits = new.limits;
        next.domains = domains(&self.domains, &new.domains);
        next
    }
}

fn domains(running: &[Domain], new: &[Domain]) -> Vec<Domain> {
    let named = |list: &[Domain], name: &str| list.iter().find(|domain| domain.name == name).cloned();
    let closed = |domain: &Domain| Domain { uids: Vec::new(), tokens: Vec::new(), ..domain.clone() };
    let kept = running.iter().map(|domain| named(new, &domain.name).unwrap_or_else(|| closed(domain)));
    let added = new.iter().filter(|domain| named(running, &domain.name).is_none()).cloned();
    kept.chain(added).collect()
}

impl Limits {
    /// Return the limits for a new session of a space that was created with `begun`. Limits that size the space keep their old
    /// values.
    #[must_use]
    pub fn in_space(&self, begun: &Limits) -> Limits {
        Limits {
            spaces_max: self.spaces_max,
            sessions_max: self.sessions_max,
            handshakes_max: self.handshakes_max,
            tier0_frames_max: self.tier0_frames_max,
            request_timeout: self.request_timeout,
            lease_max: self.lease_max,
            lease_percent: self.lease_percent,
            ..*begun
        }
    }
}
