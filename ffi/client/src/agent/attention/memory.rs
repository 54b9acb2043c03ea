//! What a session remembers of its pages' attention: digests and shares, and when they are void.

use super::{DigestOptions, Digests, History};
use crate::agent::protocol::Geometry;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The digests and shares of a session's pages. Lanes and channels of it share one.
pub struct Memory {
    digests: Option<RwLock<Digests>>,
    history: History,
    planes: u32,
    /// Planes of which all is read: of pages that come there from elsewhere digests are wanted.
    wanted: Box<[u16]>,
}

impl Memory {
    /// Knows nothing yet; the digests themselves may be a device's to keep. `None` if the system has no room.
    #[must_use]
    pub fn new(geometry: &Geometry, options: Option<&DigestOptions>, on_device: bool) -> Option<Memory> {
        let bounds = geometry.bounds();
        let (blocks, planes) = (geometry.table_blocks(), geometry.plane_count());
        let make = if on_device { Digests::elsewhere } else { Digests::new };
        let digests = match options {
            Some(options) => Some(RwLock::new(make(options, blocks, planes, bounds.page_tokens)?)),
            None => None,
        };
        let wanted = (0..planes as u16).filter(|plane| geometry.reads_all(*plane)).collect();
        Some(Memory { digests, history: History::new(blocks, planes)?, planes, wanted })
    }

    /// The digests, if the session keeps any.
    pub fn digests(&self) -> Option<RwLockReadGuard<'_, Digests>> {
        // A panic while one was built leaves a page whose digests are built again or overwritten: no worse than before.
        self.digests.as_ref().map(|digests| digests.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same to be changed.
    pub fn digests_mut(&self) -> Option<RwLockWriteGuard<'_, Digests>> {
        self.digests.as_ref().map(|digests| digests.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether digests are kept.
    #[must_use]
    pub fn keeps_digests(&self) -> bool {
        self.digests.is_some()
    }

    /// The shares.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// A block has come that holds nothing yet.
    pub fn fresh(&self, block: u32) {
        self.history.forget(block);
        if let Some(mut digests) = self.digests_mut() {
            digests.forget(block);
        }
    }

    /// A block is being filled: what it had when it was full before, and not committed, is void.
    pub fn unfilled(&self, block: u32) {
        let had = self.digests().is_some_and(|digests| digests.has_any(block));
        if let Some(mut digests) = self.digests_mut().filter(|_| had) {
            digests.forget(block);
        }
    }

    /// A sealed block has got the name of its content.
    pub fn named(&self, block: u32, name: u128) {
        if let Some(mut digests) = self.digests_mut() {
            digests.named(block, name);
        }
    }

    /// A block came with content of this name.
    pub fn mapped(&self, block: u32, name: u128) {
        if let Some(mut digests) = self.digests_mut() {
            digests.mapped(block, name, self.wanted.iter().map(|plane| u32::from(*plane)));
        }
    }

    /// A block came with a sequence that another session had.
    pub fn adopted(&self, block: u32) {
        if let Some(mut digests) = self.digests_mut() {
            digests.owe(self.wanted.iter().map(|plane| block * self.planes + u32::from(*plane)));
        }
    }

    /// Whether some page of these blocks does so.
    pub fn owing(&self, mut blocks: impl Iterator<Item = u32>) -> bool {
        self.digests().is_some_and(|digests| digests.owed() > 0 && blocks.any(|block| digests.owing(block)))
    }

    /// Nobody will read these blocks: they owe nothing.
    pub fn forgive(&self, blocks: impl Iterator<Item = u32>) {
        if let Some(mut digests) = self.digests_mut() {
            blocks.for_each(|block| digests.forgive(block));
        }
    }

    /// Whether pages that came from elsewhere still wait to be read for their digests.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.digests().is_some_and(|digests| digests.owed() > 0)
    }
}
