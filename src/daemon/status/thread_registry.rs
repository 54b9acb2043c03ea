//! Registry of the threads' published figures, and the daemon's stage. Shared by the threads and the health monitor.

use super::endurance::Bounds;
use super::http::HttpCounters;
use crate::host::HostStatus;
use crate::session::Registry;
use crate::space::SpaceStatus;
use kvtide_nvme::DiskFigures;
use kvtide_rt::published::{Heartbeat, Published};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
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

/// The registry, shared by all clones.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadRegistry(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    control: Heartbeat,
    host: OnceLock<Published<HostStatus>>,
    spaces: Mutex<BTreeMap<u32, Published<SpaceStatus>>>,
    disks: Mutex<Vec<DiskFigures>>,
    /// DriveLimits of each disk from the configuration.
    bounds: Mutex<Vec<Bounds>>,
    /// Current activity of the start, in words.
    progress: Mutex<String>,
    registry: Registry,
    stage: AtomicU8,
    http: OnceLock<SocketAddr>,
    /// Why the socket cannot be bound again, if so.
    lost_socket: Mutex<Option<String>>,
    http_counters: HttpCounters,
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

    /// Register the figures of a new space.
    pub fn join(&self, space: u32, figures: Published<SpaceStatus>) {
        self.spaces_mut().insert(space, figures);
    }

    /// Remove a space that has ended.
    pub fn leave(&self, space: u32) {
        self.spaces_mut().remove(&space);
    }

    /// Return the figures of all spaces, so that no lock is held while they are read.
    pub fn spaces(&self) -> BTreeMap<u32, Published<SpaceStatus>> {
        self.spaces_mut().clone()
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

    fn spaces_mut(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, Published<SpaceStatus>>> {
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

    /// Record why the socket cannot be bound again, or `None` once it is bound.
    pub fn lose_socket(&self, why: Option<String>) {
        *self.0.lost_socket.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Return why the socket cannot be bound again, if so.
    pub fn lost_socket(&self) -> Option<String> {
        self.0.lost_socket.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Return the counters of the HTTP server.
    pub fn http_counters(&self) -> &HttpCounters {
        &self.0.http_counters
    }
}
