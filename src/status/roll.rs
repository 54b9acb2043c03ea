//! Who is to be asked, and how far the daemon is: shared by the threads that come and go and the one that asks.

use super::http::HttpCounters;
use super::wear::Bounds;
use crate::io::DiskLetter;
use crate::mail::Address;
use crate::session::Registry;
use crate::space::Letter;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
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
    spaces: Mutex<BTreeMap<u32, Address<Letter>>>,
    disks: Mutex<Vec<Address<DiskLetter>>>,
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
    /// The last beat that the control thread saw.
    seen: AtomicU64,
}

impl Roll {
    /// The sessions.
    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// A space begins.
    pub fn join(&self, space: u32, address: Address<Letter>) {
        self.spaces_mut().insert(space, address);
    }

    /// A space has ended.
    pub fn leave(&self, space: u32) {
        self.spaces_mut().remove(&space);
    }

    /// The spaces that there are, to be asked without a lock held.
    pub fn spaces(&self) -> BTreeMap<u32, Address<Letter>> {
        self.spaces_mut().clone()
    }

    /// The NVMe tier's disks serve from now on.
    pub fn serve_disks(&self, disks: Vec<Address<DiskLetter>>) {
        *self.0.disks.lock().unwrap_or_else(PoisonError::into_inner) = disks;
    }

    /// The disks that there are.
    pub fn disks(&self) -> Vec<Address<DiskLetter>> {
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

    fn spaces_mut(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, Address<Letter>>> {
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

    /// The control thread sees a beat.
    pub fn see(&self, beat: u64) {
        self.0.seen.store(beat, Ordering::Release);
    }

    /// The last beat that the control thread saw; 0 before the first.
    pub fn seen(&self) -> u64 {
        self.0.seen.load(Ordering::Acquire)
    }
}
