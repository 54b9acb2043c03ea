//! The slab that is being emptied for another space, in bounded slices.

use super::Host;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Time for writes to NVMe to complete before their blocks are dropped; then the same time for transfers that still hold frames.
/// A disk that writes 220 MB/s writes a slab of 64 MiB in this time. The node waits a little longer than both together.
const WAIT_US: u64 = 300_000;
/// Interval between checks of frames in flight.
const AGAIN_US: u64 = 1_000;
/// Maximum frames checked in one slice.
const FRAMES_MAX: u32 = 512;

/// A slab that is being emptied.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Drain {
    slab: u32,
    /// The frame to look at next.
    next: u32,
    /// The next pass over all frames begins at this time.
    again_at: u64,
    /// From this time on, blocks that are not yet on NVMe are dropped.
    drop_at: u64,
}

/// State after a slice.
pub(crate) enum Drained {
    /// The next slice may run at once.
    InPart,
    /// The next pass begins at this time.
    Later(u64),
    /// The slab is empty and removed.
    All(u32),
    /// Frames are still held after all this time.
    Never,
}

impl Host {
    /// Start to empty a slab: its frames are not allocated from now on.
    pub fn start_drain(&mut self, slab: u32, now: u64) {
        let s = &mut self.slabs[slab as usize];
        s.draining = true;
        let c = &mut self.classes[usize::from(s.class)];
        (c.draining, c.drained) = (s.frames.into(), s.free.len.into());
        self.drain = Some(Drain { slab, next: s.base, again_at: now, drop_at: now.saturating_add(WAIT_US) });
        if !s.free.is_empty() {
            c.open.remove(&mut self.slabs, slab);
        }
    }

    /// Return when the next slice may run, while a slab is being emptied.
    pub fn drain_at(&self) -> Option<u64> {
        self.drain.map(|drain| drain.again_at)
    }

    /// Return the frames of a slice that may run now, and whether blocks that are not yet on NVMe are dropped.
    pub fn drain_slice(&self, now: u64) -> Option<(Range<u32>, bool)> {
        let drain = self.drain.filter(|drain| drain.again_at <= now)?;
        let end = self.frames_of(drain.slab).end.min(drain.next.saturating_add(FRAMES_MAX));
        Some((drain.next..end, drain.drop_at <= now))
    }

    /// End a slice before frame `next`.
    pub fn end_slice(&mut self, next: u32, now: u64) -> Drained {
        let Some(drain) = &mut self.drain else { return Drained::Never };
        drain.next = next;
        let slab = &self.slabs[drain.slab as usize];
        if next < slab.base + slab.frames {
            return Drained::InPart;
        }
        if slab.free.len == slab.frames {
            let slab = drain.slab;
            self.remove(slab);
            self.drain = None;
            return Drained::All(slab);
        }
        if now >= drain.drop_at.saturating_add(WAIT_US) {
            return Drained::Never;
        }
        (drain.next, drain.again_at) = (slab.base, now.saturating_add(AGAIN_US));
        Drained::Later(drain.again_at)
    }

    /// Stop the drain and keep the slab: its frames can be allocated again.
    pub fn stop_drain(&mut self) {
        let Some(Drain { slab, .. }) = self.drain.take() else { return };
        let s = &mut self.slabs[slab as usize];
        s.draining = false;
        let c = &mut self.classes[usize::from(s.class)];
        (c.draining, c.drained) = (0, 0);
        if !s.free.is_empty() {
            c.open.push_back(&mut self.slabs, slab);
        }
    }
}
