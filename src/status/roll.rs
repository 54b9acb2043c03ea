//! Where each thread publishes its figures, and how far the daemon is: shared by the threads that come and go and the one that reads.

use super::http::HttpCounters;
use super::wear::Bounds;
use crate::host::HostStatus;
use crate::io::DiskFigures;
use crate::published::{Heartbeat, Published};
use crate::session::Registry;
use crate::space::SpaceStatus;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// How far the daemon is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    /// Engines cannot attach yet.
    Starting,
    /// They can.
    Serving,
    /// It was told to end.
    Draining,
}

/// The roll; clones are the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roll(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    control: Heartbeat,
    host: OnceLock<Published<HostStatus>>,
    spaces: Mutex<BTreeMap<u32, Published<SpaceStatus>>>,
    disks: Mutex<Vec<DiskFigures>>,
    /// What the configuration says of each disk's wear.
    bounds: Mutex<Vec<Bounds>>,
    /// What the start is busy with, in words.
    progress: Mutex<String>,
    registry: Registry,
    stage: AtomicU8,
    http: OnceLock<SocketAddr>,
    /// Why the socket cannot be bound again, while that is so.
    lost_socket: Mutex<Option<String>>,
    http_counters: HttpCounters,
}

impl Roll {
    /// The sessions.
    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// The heartbeat of the control thread.
    pub fn control(&self) -> &Heartbeat {
        &self.0.control
    }

    /// The host thread begins, and publishes here.
    pub fn serve_host(&self, figures: Published<HostStatus>) {
        // Only the thread that starts it says so.
        let _ = self.0.host.set(figures);
    }

    /// Where the host thread publishes, once it has begun.
    pub fn host(&self) -> Option<&Published<HostStatus>> {
        self.0.host.get()
    }

    /// A space begins, and publishes here.
    pub fn join(&self, space: u32, figures: Published<SpaceStatus>) {
        self.spaces_mut().insert(space, figures);
    }

    /// A space has ended.
    pub fn leave(&self, space: u32) {
        self.spaces_mut().remove(&space);
    }

    /// Where each space publishes, to be read without a lock held.
    pub fn spaces(&self) -> BTreeMap<u32, Published<SpaceStatus>> {
        self.spaces_mut().clone()
    }

    /// The NVMe tier's disks serve from now on.
    pub fn serve_disks(&self, disks: Vec<DiskFigures>) {
        *self.0.disks.lock().unwrap_or_else(PoisonError::into_inner) = disks;
    }

    /// Where each disk publishes.
    pub fn disks(&self) -> Vec<DiskFigures> {
        self.0.disks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the configuration says of the disks' wear from now on, in their order.
    pub fn bound_disks(&self, bounds: Vec<Bounds>) {
        *self.0.bounds.lock().unwrap_or_else(PoisonError::into_inner) = bounds;
    }

    /// What the configuration says of a disk's wear.
    pub fn bounds(&self, disk: u16) -> Bounds {
        let bounds = self.0.bounds.lock().unwrap_or_else(PoisonError::into_inner);
        bounds.get(usize::from(disk)).copied().unwrap_or_default()
    }

    /// The start is so far, in words.
    pub fn progress(&self, words: &str) {
        words.clone_into(&mut self.0.progress.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// How far the start is, in words; empty before it has said anything.
    pub fn progressed(&self) -> String {
        self.0.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn spaces_mut(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, Published<SpaceStatus>>> {
        self.0.spaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The daemon has come so far.
    pub fn advance(&self, stage: Stage) {
        self.0.stage.store(stage as u8, Ordering::Release);
    }

    /// How far it is.
    pub fn stage(&self) -> Stage {
        match self.0.stage.load(Ordering::Acquire) {
            0 => Stage::Starting,
            1 => Stage::Serving,
            _ => Stage::Draining,
        }
    }

    /// Where HTTP is served; set once.
    pub fn serve_http(&self, address: SocketAddr) {
        // Only the thread that starts the server says so.
        let _ = self.0.http.set(address);
    }

    /// Where HTTP is served, if it is.
    pub fn http(&self) -> Option<SocketAddr> {
        self.0.http.get().copied()
    }

    /// The socket is lost, and why it cannot be bound again; or it is bound.
    pub fn lose_socket(&self, why: Option<String>) {
        *self.0.lost_socket.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Why the socket cannot be bound again, while that is so.
    pub fn lost_socket(&self) -> Option<String> {
        self.0.lost_socket.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The counters of the HTTP server.
    pub fn http_counters(&self) -> &HttpCounters {
        &self.0.http_counters
    }
}
