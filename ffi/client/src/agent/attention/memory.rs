//! Digests and attention shares of a session's pages, and the events that invalidate them.

use super::{DigestOptions, Digests, History};
use crate::agent::protocol::Geometry;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The digests and shares of a session's pages. Its lanes and channels share one instance.
pub struct Memory {
    digests: Option<RwLock<Digests>>,
    history: History,
    planes: u32,
    /// Planes that steps read completely. Pages that arrive there from elsewhere get digests.
    wanted: Box<[u16]>,
}

impl Memory {
    /// Create an empty memory. With `on_device` a device keeps the digests themselves. Return `None` if the system has no
    /// memory.
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

    /// Return the digests, if the session keeps any.
    pub fn digests(&self) -> Option<RwLockReadGuard<'_, Digests>> {
        // A poisoned lock is safe to use. A panic during a build affects one page; its digests are rebuilt or overwritten
        // later.
        self.digests.as_ref().map(|digests| digests.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Return the digests for writing, if the session keeps any.
    pub fn digests_mut(&self) -> Option<RwLockWriteGuard<'_, Digests>> {
        self.digests.as_ref().map(|digests| digests.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Report whether digests are kept.
    #[must_use]
    pub fn keeps_digests(&self) -> bool {
        self.digests.is_some()
    }

    /// Return the attention history.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Record that a block arrived that holds nothing yet.
    pub fn fresh(&self, block: u32) {
        self.history.forget(block);
        if let Some(mut digests) = self.digests_mut() {
            digests.forget(block);
        }
    }

    /// Record that a block is being filled. Digests from an earlier fill that was not committed are dropped.
    pub fn unfilled(&self, block: u32) {
        let had = self.digests().is_some_and(|digests| digests.has_any(block));
        if let Some(mut digests) = self.digests_mut().filter(|_| had) {
            digests.forget(block);
        }
    }

    /// Record the content name of a sealed block.
    pub fn named(&self, block: u32, name: u128) {
        if let Some(mut digests) = self.digests_mut() {
            digests.named(block, name);
        }
    }

    /// Record that a block was attached with the content `name`.
    pub fn mapped(&self, block: u32, name: u128) {
        if let Some(mut digests) = self.digests_mut() {
            digests.mapped(block, name, self.wanted.iter().map(|plane| u32::from(*plane)));
        }
    }

    /// Record that a block came with a sequence that another session had.
    pub fn adopted(&self, block: u32) {
        if let Some(mut digests) = self.digests_mut() {
            digests.owe(self.wanted.iter().map(|plane| block * self.planes + u32::from(*plane)));
        }
    }

    /// Report whether a page of these blocks still needs its digests built.
    pub fn owing(&self, mut blocks: impl Iterator<Item = u32>) -> bool {
        self.digests().is_some_and(|digests| digests.owed() > 0 && blocks.any(|block| digests.owing(block)))
    }

    /// Drop the pending digests of these blocks: no sequence will read them.
    pub fn forgive(&self, blocks: impl Iterator<Item = u32>) {
        if let Some(mut digests) = self.digests_mut() {
            blocks.for_each(|block| digests.forgive(block));
        }
    }

    /// Report whether pages from elsewhere still have to be read for their digests.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.digests().is_some_and(|digests| digests.owed() > 0)
    }
}
