//! A configuration that is read again while the daemon runs: what changed, when that holds, and what the daemon runs with then.

use super::keys::{Effect, Setting};
use super::{Config, Domain, Limits, NvmeTier};
use std::collections::BTreeMap;
use std::fmt;

/// A key whose value is another one now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// Its value before; `None`: there was no such key, of a domain or a disk that is new.
    pub from: Option<String>,
    /// Its value now; `None`: it is gone, with its disk.
    pub to: Option<String>,
    /// When that holds.
    pub effect: Effect,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
        write!(f, "{}: {} is {} now: {}", self.key, value(&self.from), value(&self.to), self.effect)
    }
}

impl Config {
    /// What the daemon runs with once it has read `new`, and what changed in the file.
    #[must_use]
    pub fn reloaded(&self, mut new: Config) -> (Config, Vec<Change>) {
        let nvme_bytes = self.nvme.as_ref().map_or(0, NvmeTier::capacity_bytes);
        for domain in &mut new.domains {
            // A quota may be the new file's whole tier, which this daemon does not have before its restart.
            domain.host_bytes = domain.host_bytes.min(self.host.capacity_bytes);
            domain.nvme_bytes = domain.nvme_bytes.min(nvme_bytes);
        }
        let changes = self.changes(&new);
        (self.with(&new), changes)
    }

    /// What differs in `other`, in the order of the reference.
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

    /// These values where only a restart changes them, and the new ones elsewhere. Domains keep their places, because sessions
    /// refer to them; nobody may attach to one that the new file does not have.
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
        next.canary = new.canary;
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
    /// These, for a session of a space that began under `begun`: what sized the space is as it was then.
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
