//! The spaces of the daemon that the relay serves.

use crate::queue::{Recall, Share};
use crate::space::{Shared, Space};
use kvtide_wire::hello::SpaceOpened;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// All spaces, and their shared state.
pub(crate) struct Spaces {
    pub shared: Shared,
    /// By the daemon's number.
    spaces: Mutex<BTreeMap<u32, Space>>,
    /// Why a space is not served, by the daemon's number: logged when it changes, since an attach is tried again and again.
    refused: Mutex<BTreeMap<u32, String>>,
    connected: AtomicBool,
}

impl Spaces {
    /// Serve no space yet.
    pub fn new(shared: Shared) -> Spaces {
        Spaces { shared, spaces: Mutex::default(), refused: Mutex::default(), connected: AtomicBool::new(false) }
    }

    /// Note whether the daemon answers.
    pub fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Ordering::Relaxed);
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<u32, Space>> {
        self.spaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self) -> MutexGuard<'_, BTreeMap<u32, String>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Return whether the relay is connected to the daemon.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Return the name, and the figures, of each space.
    pub fn figures(&self) -> Vec<(String, (usize, usize, usize))> {
        self.all().values().map(|space| (space.name().to_owned(), space.figures())).collect()
    }

    /// Have a prefix brought in. Return false if no space with this fingerprint is served.
    pub fn recall(&self, fingerprint: [u8; 32], recall: Recall) -> bool {
        self.with(fingerprint, |space| space.recall(recall))
    }

    /// Have a prefix copied out now. Return false if no space with this fingerprint is served.
    pub fn share(&self, fingerprint: [u8; 32], share: Share) -> bool {
        self.with(fingerprint, |space| space.share(share))
    }

    fn with(&self, fingerprint: [u8; 32], act: impl FnOnce(&Space)) -> bool {
        let all = self.all();
        let served = all.values().find(|space| space.fingerprint() == fingerprint && !space.is_over());
        served.map(act).is_some()
    }

    /// Serve a space, unless it is served.
    pub fn open(&self, space: &SpaceOpened) {
        let (number, name) = (space.space, &space.name);
        if self.all().contains_key(&number) {
            return;
        }
        match Space::start(self.shared.clone(), space.clone()) {
            Ok(space) => {
                tracing::info!("space {number} ({name}): served");
                self.all().insert(number, space);
                self.refused().remove(&number);
            }
            Err(error) => {
                let error = error.to_string();
                if self.refused().get(&number) != Some(&error) {
                    tracing::warn!("space {number} ({name}): not served: {error}; the relay tries again");
                    self.refused().insert(number, error);
                }
            }
        }
    }

    /// Stop to serve a space.
    pub fn close(&self, number: u32) {
        self.refused().remove(&number);
        let space = self.all().remove(&number);
        if let Some(space) = space {
            tracing::info!("space {number} ({}): closed", space.name());
        }
    }

    /// Drop the spaces of which the daemon has ended a session.
    pub fn close_ended(&self) {
        let ended: Vec<u32> = self.all().iter().filter(|(_, space)| space.is_over()).map(|(n, _)| *n).collect();
        ended.into_iter().for_each(|number| self.close(number));
    }

    /// Stop to serve all spaces.
    pub fn close_all(&self) {
        self.refused().clear();
        let all: Vec<u32> = self.all().keys().copied().collect();
        all.into_iter().for_each(|number| self.close(number));
    }
}
