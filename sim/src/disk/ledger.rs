//! What became of contents on the disk over a whole episode: it explains what engines are told later, and counts.

use crate::memory::{Arenas, Place, Tag};
use std::collections::BTreeSet;

/// The ledger. Contents are known by the tags of their token slots, which no two pages share.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Where flipped bits stand.
    rotten: BTreeSet<(usize, u32)>,
    /// Tags of pages that a read did not deliver, whole or right.
    harmed: BTreeSet<Tag>,
    /// First tags of pages whose transfer failed.
    failed: BTreeSet<Tag>,
    /// First tags of pages that a lookup has found.
    mapped: BTreeSet<Tag>,
    /// Transfers that ended with an error of the device.
    pub errors: u64,
}

impl Ledger {
    /// Flip a bit of one token slot of a page on the disk.
    pub fn rot(&mut self, arenas: &mut Arenas, place: Place, slot: usize) {
        flip(arenas, place, slot);
        self.rotten.insert((place.arena, place.frame));
    }

    /// A page on the disk is about to be written.
    pub fn fresh(&mut self, place: Place) {
        self.rotten.remove(&(place.arena, place.frame));
    }

    /// Return whether flipped bits stand there.
    #[must_use]
    pub fn is_rotten(&self, place: Place) -> bool {
        self.rotten.contains(&(place.arena, place.frame))
    }

    /// A read did not deliver this page.
    pub fn harm(&mut self, tags: &[Tag]) {
        self.harmed.extend(tags);
    }

    /// Return whether the disk ever failed to deliver a page.
    #[must_use]
    pub fn any_harm(&self) -> bool {
        !self.harmed.is_empty()
    }

    /// Return whether the disk once failed to deliver a page that holds this.
    #[must_use]
    pub fn harmed(&self, tag: Tag) -> bool {
        self.harmed.contains(&tag)
    }

    /// A transfer of this page failed.
    pub fn fail(&mut self, tags: &[Tag]) {
        self.failed.extend(tags.first());
    }

    /// Return whether a transfer of this page failed before.
    #[must_use]
    pub fn failed(&self, tags: &[Tag]) -> bool {
        tags.first().is_some_and(|tag| self.failed.contains(tag))
    }

    /// A lookup has found the page that begins with this.
    pub fn map(&mut self, tag: Tag) {
        self.mapped.insert(tag);
    }

    /// Return whether a lookup has found this page.
    #[must_use]
    pub fn mapped(&self, tags: &[Tag]) -> bool {
        tags.first().is_some_and(|tag| self.mapped.contains(tag))
    }
}

/// Flip a bit of one token slot of a page, wherever it is.
pub fn flip(arenas: &mut Arenas, place: Place, slot: usize) {
    if let Some(tag) = arenas.read(place, slot) {
        arenas.write(place, slot, tag ^ 1 << 62);
    }
}
