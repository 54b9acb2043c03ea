//! Rates computed from two responses of a daemon.

use kvtide_daemon::status::{DiskStatus, Edge, Hits, SessionStatus, Snapshot, SpaceStatus};
use std::time::Instant;

/// The last two statuses of the daemon, and whether it still answers.
#[derive(Debug, Default)]
pub(super) struct Rates {
    now: Option<(Snapshot, Instant)>,
    before: Option<(Snapshot, Instant)>,
    lost: Option<String>,
}

/// Bytes a second over each edge between tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Moves {
    pub host_to_tier0: f64,
    pub tier0_to_host: f64,
    pub nvme_to_host: f64,
    pub host_to_nvme: f64,
}

/// Page accesses by the tier in which the page was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub tier0: u64,
    pub host: u64,
    pub nvme: u64,
    pub nowhere: u64,
}

impl Found {
    /// Return their sum.
    pub fn all(&self) -> u64 {
        self.tier0 + self.host + self.nvme + self.nowhere
    }
}

/// What the prefix cache gave since the last status.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct HitRates {
    /// Tokens asked for.
    pub asked: u64,
    /// Of those, found.
    pub found: u64,
    /// Tokens loaded a second.
    pub loaded: f64,
}

/// Rates of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SessionRates {
    pub loaded: f64,
    pub stored: f64,
    pub faults: f64,
}

impl Rates {
    /// Add a status. If it is of another process, no rates are computed from the one before.
    pub fn take(&mut self, status: Snapshot, at: Instant) {
        self.lost = None;
        let before = self.now.take();
        self.before = before.filter(|(before, _)| before.pid == status.pid && before.uptime_s <= status.uptime_s);
        self.now = Some((status, at));
    }

    /// Record that the daemon did not answer.
    pub fn lose(&mut self, why: String) {
        self.lost = Some(why);
    }

    /// Return why the figures are outdated, if they are.
    pub fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    /// Return the last status.
    pub fn status(&self) -> Option<&Snapshot> {
        self.now.as_ref().map(|(status, _)| status)
    }

    fn seconds(&self) -> f64 {
        match (&self.now, &self.before) {
            (Some((_, now)), Some((_, before))) => now.saturating_duration_since(*before).as_secs_f64(),
            _ => 0.0,
        }
    }

    /// Return the increase a second; 0 without an earlier value.
    fn rate(&self, now: u64, before: Option<u64>) -> f64 {
        match (before, self.seconds()) {
            (Some(before), seconds) if seconds > 0.0 => now.saturating_sub(before) as f64 / seconds,
            _ => 0.0,
        }
    }

    fn space_before(&self, space: &SpaceStatus) -> Option<&SpaceStatus> {
        self.before.as_ref()?.0.spaces.iter().find(|before| before.space == space.space)
    }

    /// Return where pages were found since the last status, or since the space began if this is the first.
    pub fn found(&self, space: &SpaceStatus) -> Found {
        let before = self.space_before(space).map(|space| &space.core);
        let since = |now: u64, before: Option<u64>| now.saturating_sub(before.unwrap_or(0));
        Found {
            tier0: since(space.core.found_tier0, before.map(|core| core.found_tier0)),
            host: since(space.core.found_host, before.map(|core| core.found_host)),
            nvme: since(space.core.found_nvme, before.map(|core| core.found_nvme)),
            nowhere: since(space.core.found_nowhere, before.map(|core| core.found_nowhere)),
        }
    }

    /// Return what changed between two sets of hits, or since the start if nothing was asked for meanwhile.
    fn hits(&self, now: &Hits, before: Option<&Hits>) -> HitRates {
        let was = before.copied().unwrap_or_default();
        let loaded = self.rate(now.loaded_tokens.total(), before.map(|hits| hits.loaded_tokens.total()));
        match now.asked_tokens.saturating_sub(was.asked_tokens) {
            0 => HitRates { asked: now.asked_tokens, found: now.found_tokens, loaded },
            asked => HitRates { asked, found: now.found_tokens.saturating_sub(was.found_tokens), loaded },
        }
    }

    /// Return the hits of the daemon.
    pub fn hits_of_all(&self, status: &Snapshot) -> HitRates {
        self.hits(&status.hits, self.before.as_ref().map(|(before, _)| &before.hits))
    }

    /// Return the hits of a space.
    pub fn hits_of(&self, space: &SpaceStatus) -> HitRates {
        self.hits(&space.hits, self.space_before(space).map(|before| &before.hits))
    }

    /// Return the hits of a session.
    pub fn hits_of_session(&self, space: &SpaceStatus, session: &SessionStatus) -> HitRates {
        self.hits(&session.hits, self.session_before(space, session).map(|before| &before.hits))
    }

    fn session_before(&self, space: &SpaceStatus, session: &SessionStatus) -> Option<&SessionStatus> {
        self.space_before(space)?.attached.iter().find(|before| before.session == session.session)
    }

    /// Return the transfer rates of a space.
    pub fn moves(&self, space: &SpaceStatus) -> Moves {
        let before = self.space_before(space).map(|space| &space.core);
        let rate = |now: &Edge, before: Option<&Edge>| self.rate(now.total_bytes(), before.map(Edge::total_bytes));
        Moves {
            host_to_tier0: rate(&space.core.host_to_tier0, before.map(|core| &core.host_to_tier0)),
            tier0_to_host: rate(&space.core.tier0_to_host, before.map(|core| &core.tier0_to_host)),
            nvme_to_host: rate(&space.core.nvme_to_host, before.map(|core| &core.nvme_to_host)),
            host_to_nvme: rate(&space.core.host_to_nvme, before.map(|core| &core.host_to_nvme)),
        }
    }

    /// Return the faults of a space a second, and the lane seconds spent waiting in them, a second.
    pub fn faults(&self, space: &SpaceStatus) -> (f64, f64) {
        let before = self.space_before(space);
        let faults = self.rate(space.core.faults, before.map(|space| space.core.faults));
        let waited = self.rate(space.request_times.fault.sum_us, before.map(|space| space.request_times.fault.sum_us));
        (faults, waited * 1e-6)
    }

    /// Return the rates of a session.
    pub fn session(&self, space: &SpaceStatus, session: &SessionStatus) -> SessionRates {
        let before = self.session_before(space, session);
        SessionRates {
            loaded: self.rate(session.stats.loaded_bytes, before.map(|before| before.stats.loaded_bytes)),
            stored: self.rate(session.stats.stored_bytes, before.map(|before| before.stats.stored_bytes)),
            faults: self.rate(session.stats.faults, before.map(|before| before.stats.faults)),
        }
    }

    /// Return the bytes a second that a disk reads and writes.
    pub fn disk(&self, disk: &DiskStatus) -> (f64, f64) {
        let before = self.before.as_ref().and_then(|(before, _)| {
            before.disks.iter().find(|before| before.number == disk.number).map(DiskStatus::bytes)
        });
        let (read, written) = disk.bytes();
        (self.rate(read, before.map(|(read, _)| read)), self.rate(written, before.map(|(_, written)| written)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn told(pid: u32, uptime_s: f64, found_host: u64, bytes: u64) -> Snapshot {
        let json = format!(
            r#"{{"schema": 1, "pid": {pid}, "uptime_s": {uptime_s}, "spaces": [{{"space": 1, "core": {{"found_host": {found_host},
            "host_to_tier0": {{"bytes": [{bytes}, 0, 0, 0, 0, 0, 0, 0, 0, 0]}}}}}}]}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    #[test]
    fn rates_are_of_one_daemon_and_one_space() {
        let (mut rates, began) = (Rates::default(), Instant::now());
        rates.take(told(7, 1.0, 10, 1000), began);
        let first = rates.status().unwrap().spaces[0].clone();
        assert_eq!((rates.found(&first).host, rates.moves(&first)), (10, Moves::default()));
        rates.take(told(7, 3.0, 16, 5000), began + Duration::from_secs(2));
        let second = rates.status().unwrap().spaces[0].clone();
        assert_eq!((rates.found(&second).host, rates.moves(&second).host_to_tier0), (6, 2000.0));
        rates.lose("gone".into());
        assert_eq!(
            (rates.lost(), rates.moves(&second).host_to_tier0),
            (Some("gone"), 2000.0),
            "the last value is still shown"
        );
        // Another process: its counters start again.
        rates.take(told(8, 0.5, 2, 100), began + Duration::from_secs(4));
        let other = rates.status().unwrap().spaces[0].clone();
        assert_eq!((rates.lost(), rates.found(&other).host, rates.moves(&other)), (None, 2, Moves::default()));
    }
}
