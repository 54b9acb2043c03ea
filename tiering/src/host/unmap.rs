//! Mapped frames that are unmapped because a request found no host frame.

use crate::api::NONE;
use crate::host::HostTier;

/// Number of mapped frames unmapped at a time.
pub(crate) const UNMAP_BATCH: u32 = 8;

/// Announced steps during which no page enters a mapped frame after a request found no host frame.
const PAUSE_STEPS: u32 = 8;

impl HostTier {
    /// Return how many host frames of a class mapped frames may show. While NVMe is in use, the frames through which its pages
    /// stream are excluded.
    pub(crate) fn mapped_quota(&self, class: u8) -> u64 {
        let usable = self.host.usable(class);
        if !self.disk.exists() || self.disk.used() == 0 {
            return usable;
        }
        let scan = self.host.scan_frames(class, self.cfg().policy.host_scan_frames);
        usable.saturating_sub(self.stream_frames(usize::from(class)) + scan)
    }

    /// Unmap mapped frames because a request found no host frame of a class. Return whether any will be unmapped.
    pub(crate) fn unmap_some(&mut self, class: u8) -> bool {
        let clock = self.clock();
        if !self.host.pause_mapping(class, clock.wrapping_add(PAUSE_STEPS)) {
            return false;
        }
        let classes = self.tier0s().iter().filter_map(|tier0| tier0.classes.get(usize::from(class)));
        if classes.map(|c| c.mapped_invalidating).sum::<u32>() > 0 {
            // Waiting requests check again when one of them has been unmapped.
            return true;
        }
        let found = (0..self.sessions().len()).find(|&s| self.next_to_unmap(s, class).is_some());
        if let Some(s) = found {
            self.host.request_unmaps(class, UNMAP_BATCH);
            self.wake(s);
        }
        found.is_some()
    }

    /// Return the mapped frame of a class with the lowest cost of unmapping: one that no live step needs, else the most recently
    /// used one, which is needed again last.
    pub(crate) fn next_to_unmap(&self, s: u16, class: u8) -> Option<u32> {
        let session = self.tier0(s);
        let list = session.classes.get(usize::from(class))?.mapped;
        let limit = self.unneeded_before(s);
        let head = Some(list.head).filter(|&f| f != NONE && session.frames[f as usize].stamp < limit);
        if let Some(f) = head.filter(|&f| !self.is_fault_frame(s, f)) {
            return Some(f);
        }
        let mut f = list.tail;
        while f != NONE && self.is_fault_frame(s, f) {
            f = session.frames[f as usize].links.prev;
        }
        (f != NONE).then_some(f)
    }
}
