//! The spaces of the daemon that the relay serves.

use crate::queue::{Recall, Share};
use crate::space::{Shared, Space};
use kvtide_wire::hello::SpaceOpened;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Domain and name of a space.
pub type Names = (String, String);
/// Cached blocks, waiting runs, waiting recalls.
pub type Figures = (usize, usize, usize);

/// All spaces, and their shared state.
pub(crate) struct Spaces {
    pub shared: Shared,
    /// By the daemon's number, which no space of another domain has.
    spaces: Mutex<BTreeMap<u32, Space>>,
    /// Why a space is not served, by the daemon's number: logged when it changes, since an attach is tried again and again.
    refused: Mutex<BTreeMap<u32, String>>,
    /// By domain.
    connected: Vec<AtomicBool>,
}

impl Spaces {
    /// Serve no space yet.
    pub fn new(shared: Shared) -> Spaces {
        let connected = shared.config.domains.iter().map(|_| AtomicBool::new(false)).collect();
        Spaces { shared, spaces: Mutex::default(), refused: Mutex::default(), connected }
    }

    /// Note whether the daemon answers for a domain.
    pub fn set_connected(&self, domain: usize, connected: bool) {
        self.connected[domain].store(connected, Ordering::Relaxed);
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<u32, Space>> {
        self.spaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self) -> MutexGuard<'_, BTreeMap<u32, String>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Return for each domain whether the relay is connected to the daemon.
    pub fn connected(&self) -> Vec<(&str, bool)> {
        let names = self.shared.config.domains.iter().map(|domain| domain.name.as_str());
        names.zip(self.connected.iter().map(|connected| connected.load(Ordering::Relaxed))).collect()
    }

    /// Return the domain and the name, and the figures, of each space.
    pub fn figures(&self) -> Vec<(Names, Figures)> {
        let domain = |space: &Space| self.shared.config.domains[space.domain()].name.clone();
        let read = |space: &Space| ((domain(space), space.name().to_owned()), space.figures());
        // A space that lists its cache delays its figures; recalls must not wait for that.
        let all: Vec<_> = self.all().values().map(read).collect();
        all.into_iter().map(|(names, figures)| (names, figures())).collect()
    }

    /// Have a prefix brought in. Return false if no space with this fingerprint is served, or spaces of two domains have it and none is
    /// named.
    pub fn recall(&self, domain: Option<&str>, fingerprint: [u8; 32], recall: Recall) -> bool {
        self.with(domain, fingerprint, |space| space.recall(recall))
    }

    /// Have a prefix copied out now. Otherwise as [`Spaces::recall`].
    pub fn share(&self, domain: Option<&str>, fingerprint: [u8; 32], share: Share) -> bool {
        self.with(domain, fingerprint, |space| space.share(share))
    }

    /// Return the name of the space that a domain's questions about a fingerprint are for, and the tokens of its blocks; `None` if it is
    /// not served.
    pub fn described(&self, domain: &str, fingerprint: [u8; 32]) -> Option<(String, u32)> {
        let mut described = None;
        self.with(Some(domain), fingerprint, |space| described = Some((space.name().to_owned(), space.page_tokens())));
        described
    }

    /// Return which domain with KV events a note is for: the one that it names, the only one, or the only one that has a space with this
    /// fingerprint.
    pub fn notes(&self, domain: Option<&str>, fingerprint: [u8; 32]) -> Option<usize> {
        let names = &self.shared.config.domains;
        let mut named = self.shared.events.on().filter(|at| domain.is_none_or(|name| names[*at].name == name));
        let (first, second) = (named.next()?, named.next());
        let Some(second) = second else { return Some(first) };
        let all = [first, second].into_iter().chain(named);
        let mut serving = all.filter(|at| self.serves(Some(&names[*at].name), fingerprint));
        serving.next().filter(|_| serving.next().is_none())
    }

    /// Return whether a recall would find its space.
    pub fn serves(&self, domain: Option<&str>, fingerprint: [u8; 32]) -> bool {
        self.with(domain, fingerprint, |_| ())
    }

    fn with(&self, domain: Option<&str>, fingerprint: [u8; 32], act: impl FnOnce(&Space)) -> bool {
        let all = self.all();
        let named = |space: &&Space| domain.is_none_or(|name| self.shared.config.domains[space.domain()].name == name);
        let served = |space: &&Space| space.fingerprint() == fingerprint && !space.is_over() && named(space);
        let mut found = all.values().filter(served);
        match found.next() {
            // A space of the same domain has other planes or shards; one of another domain, other tenants' blocks.
            Some(space) if found.all(|other| other.domain() == space.domain()) => {
                act(space);
                true
            }
            _ => false,
        }
    }

    /// Serve a space of a domain, unless it is served.
    pub fn open(&self, domain: usize, space: &SpaceOpened) {
        let (number, name) = (space.space, &space.name);
        if self.all().contains_key(&number) {
            return;
        }
        match Space::start(self.shared.clone(), domain, space.clone()) {
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

    /// Stop to serve all spaces of a domain.
    pub fn close_all(&self, domain: usize) {
        // Those of other domains are logged once more.
        self.refused().clear();
        let all: Vec<u32> = self.all().iter().filter(|(_, space)| space.domain() == domain).map(|(n, _)| *n).collect();
        all.into_iter().for_each(|number| self.close(number));
    }
}
