//! Registry of the threads' published figures, and the daemon's stage. Shared by the threads and the health monitor.

use super::HttpCounters;
use super::endurance::Bounds;
use super::history::History;
use super::snapshot::RelayStatus;
use super::tenants::Quota;
use crate::host::HostStatus;
use crate::session::Registry;
use crate::space::{SpaceMessage, SpaceStatus};
use kvtide_nvme::DiskFigures;
use kvtide_rt::mail::Address;
use kvtide_rt::published::{Heartbeat, Published};
use kvtide_trace::TraceCounters;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Stage of the daemon's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Engines cannot attach yet.
    #[default]
    Starting,
    /// Engines can attach.
    Serving,
    /// The daemon is shutting down.
    Draining,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Starting => "starting",
            Stage::Serving => "serving",
            Stage::Draining => "draining",
        })
    }
}

/// Reloads of the configuration since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reloads {
    /// Their number, failed ones included.
    pub count: u64,
    /// Why the last one failed; empty if it did not.
    pub failed: String,
    /// What the last one changed, one line for each value.
    pub changes: Vec<String>,
}

/// A running space: its figures, and where messages to it go.
#[derive(Clone, Debug)]
pub(crate) struct SpaceHandle {
    pub figures: Published<SpaceStatus>,
    pub address: Address<SpaceMessage>,
}

/// The registry, shared by all clones.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadRegistry(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    control: Heartbeat,
    host: OnceLock<Published<HostStatus>>,
    spaces: Mutex<BTreeMap<u32, SpaceHandle>>,
    disks: Mutex<Vec<DiskFigures>>,
    /// DriveLimits of each disk from the configuration.
    bounds: Mutex<Vec<Bounds>>,
    /// Current activity of the start, in words.
    progress: Mutex<String>,
    registry: Registry,
    stage: AtomicU8,
    http: OnceLock<SocketAddr>,
    socket: OnceLock<PathBuf>,
    /// Why the socket cannot be bound again, if so.
    lost_socket: Mutex<Option<String>>,
    /// An operator has stopped attaches.
    drained: AtomicBool,
    reloads: Mutex<Reloads>,
    history: History,
    /// Names and quotas of the domains.
    tenants: Mutex<Vec<Quota>>,
    http_counters: HttpCounters,
    trace_counters: TraceCounters,
    relays: Mutex<Vec<RelayStatus>>,
}

impl ThreadRegistry {
    /// Return the sessions.
    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// Return the heartbeat of the control thread.
    pub fn control(&self) -> &Heartbeat {
        &self.0.control
    }

    /// Register the figures of the host thread.
    pub fn serve_host(&self, figures: Published<HostStatus>) {
        // Only the starter of the host thread sets it.
        let _ = self.0.host.set(figures);
    }

    /// Return the figures of the host thread, once it has started.
    pub fn host(&self) -> Option<&Published<HostStatus>> {
        self.0.host.get()
    }

    /// Register a new space.
    pub fn join(&self, space: u32, handle: SpaceHandle) {
        self.spaces_mut().insert(space, handle);
    }

    /// Remove a space that has ended.
    pub fn leave(&self, space: u32) {
        self.spaces_mut().remove(&space);
    }

    /// Return the figures of all spaces, so that no lock is held while they are read.
    pub fn spaces(&self) -> BTreeMap<u32, Published<SpaceStatus>> {
        self.spaces_mut().iter().map(|(number, space)| (*number, space.figures.clone())).collect()
    }

    /// Return where messages to each space go.
    pub fn addresses(&self) -> BTreeMap<u32, Address<SpaceMessage>> {
        self.spaces_mut().iter().map(|(number, space)| (*number, space.address.clone())).collect()
    }

    /// Stop attaches, or admit them again.
    pub fn drain(&self, drained: bool) {
        self.0.drained.store(drained, Ordering::Release);
    }

    /// Return whether an operator has stopped attaches.
    pub fn is_drained(&self) -> bool {
        self.0.drained.load(Ordering::Acquire)
    }

    /// Record a reload: what it changed, or why it failed.
    pub fn reloaded(&self, result: Result<Vec<String>, String>) {
        let mut reloads = self.0.reloads.lock().unwrap_or_else(PoisonError::into_inner);
        let count = reloads.count + 1;
        *reloads = match result {
            Ok(changes) => Reloads { count, changes, ..Reloads::default() },
            Err(failed) => Reloads { count, failed, ..Reloads::default() },
        };
    }

    /// Return the figures of the last hour.
    pub fn history(&self) -> &History {
        &self.0.history
    }

    /// Return the reloads so far.
    pub fn reloads(&self) -> Reloads {
        self.0.reloads.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Set the names and quotas of the domains from the configuration.
    pub fn set_quotas(&self, quotas: Vec<Quota>) {
        *self.0.tenants.lock().unwrap_or_else(PoisonError::into_inner) = quotas;
    }

    /// Return the names and quotas of the domains.
    pub fn quotas(&self) -> Vec<Quota> {
        self.0.tenants.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Set the relays that watch, with their states.
    pub fn set_relays(&self, relays: Vec<RelayStatus>) {
        *self.0.relays.lock().unwrap_or_else(PoisonError::into_inner) = relays;
    }

    /// Return the relays that watch, with their states.
    pub fn relays(&self) -> Vec<RelayStatus> {
        self.0.relays.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Register the figures of the disks.
    pub fn serve_disks(&self, disks: Vec<DiskFigures>) {
        *self.0.disks.lock().unwrap_or_else(PoisonError::into_inner) = disks;
    }

    /// Return the figures of all disks.
    pub fn disks(&self) -> Vec<DiskFigures> {
        self.0.disks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Set the endurance limits of the disks from the configuration, in their order.
    pub fn bound_disks(&self, bounds: Vec<Bounds>) {
        *self.0.bounds.lock().unwrap_or_else(PoisonError::into_inner) = bounds;
    }

    /// Return the endurance limits of a disk.
    pub fn bounds(&self, disk: u16) -> Bounds {
        let bounds = self.0.bounds.lock().unwrap_or_else(PoisonError::into_inner);
        bounds.get(usize::from(disk)).copied().unwrap_or_default()
    }

    /// Set the current activity of the start, in words.
    pub fn progress(&self, words: &str) {
        words.clone_into(&mut self.0.progress.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Return the current activity of the start; empty before the first one.
    pub fn progressed(&self) -> String {
        self.0.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn spaces_mut(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, SpaceHandle>> {
        self.0.spaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Set the stage.
    pub fn advance(&self, stage: Stage) {
        self.0.stage.store(stage as u8, Ordering::Release);
    }

    /// Return the stage.
    pub fn stage(&self) -> Stage {
        match self.0.stage.load(Ordering::Acquire) {
            0 => Stage::Starting,
            1 => Stage::Serving,
            _ => Stage::Draining,
        }
    }

    /// Set the HTTP address, once.
    pub fn serve_http(&self, address: SocketAddr) {
        // Only the starter of the HTTP server sets it.
        let _ = self.0.http.set(address);
    }

    /// Return the HTTP address, if HTTP is enabled.
    pub fn http(&self) -> Option<SocketAddr> {
        self.0.http.get().copied()
    }

    /// Record the socket that engines attach to.
    pub fn serve_socket(&self, path: PathBuf) {
        // Only the start of the control thread sets it.
        let _ = self.0.socket.set(path);
    }

    /// Return the socket that engines attach to; empty until it is bound.
    pub fn socket(&self) -> PathBuf {
        self.0.socket.get().cloned().unwrap_or_default()
    }

    /// Record why the socket cannot be bound again, or `None` once it is bound.
    pub fn lose_socket(&self, why: Option<String>) {
        *self.0.lost_socket.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Return why the socket cannot be bound again, if so.
    pub fn lost_socket(&self) -> Option<String> {
        self.0.lost_socket.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Return the counters of traces.
    pub fn trace_counters(&self) -> &TraceCounters {
        &self.0.trace_counters
    }

    /// Return the counters of the HTTP server.
    pub fn http_counters(&self) -> &HttpCounters {
        &self.0.http_counters
    }
}
