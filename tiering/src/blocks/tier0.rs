//! The tier 0 of a session: its frames, their lists, and the lanes that read them.

use super::{Frame, Lane, On, Tier0Class};
use crate::api::{NONE, Policy};
use crate::config::Geometry;
use crate::link::Link;
use crate::lists::List;
use serde::{Deserialize, Serialize};

/// The tier 0 of a session; empty if its engine keeps its KV in its own memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tier0 {
    pub frames: Vec<Frame>,
    pub classes: Vec<Tier0Class>,
    pub lanes: Vec<Lane>,
    /// Number of announced steps.
    pub clock: u32,
    /// Measured rate of copies from host to tier 0.
    pub link: Link,
    /// Blocks that the session may have at the same time without further admission.
    pub guaranteed_blocks: u32,
    /// Referenced blocks that are charged to this session: it is their home, and no other session refers to them.
    pub own_blocks: u32,
    /// Frames that wait for their `Evict` job.
    pub evicts: List,
    /// Frames with an `Evict` job that was refused because the engine pins the page; it is sent again later.
    pub evicts_later: List,
    /// Frames that represent a block that waits for its `Drop` job.
    pub drops: List,
    /// Last block that queued a `Drop` here.
    pub drop_mark: u32,
}

impl Tier0 {
    /// Allocate all tables that the session will use. `frames`: tier-0 frames by class, then mapped frames by class, if any.
    pub fn new(geo: &Geometry, policy: &Policy, lanes: u16, frames: &[u32]) -> Tier0 {
        let classes = geo.classes.len();
        let (counts, mapped_frames) = frames.split_at(classes);
        let mut tier0 = Tier0 {
            frames: vec![Frame::default(); frames.iter().map(|&n| n as usize).sum()],
            lanes: (0..lanes).map(|_| Lane::new(classes)).collect(),
            drop_mark: NONE,
            ..Tier0::default()
        };
        let mut base = 0;
        for (i, &count) in counts.iter().enumerate() {
            // At least one frame per lane and one more, so that each lane's fault always finds one.
            let scan_max = policy.scan_frames.max(u32::from(lanes) + 1);
            let mapped_frames = mapped_frames.get(i).copied().unwrap_or(0);
            let mut class = Tier0Class { base, max: count, count, mapped_frames, scan_max, ..Tier0Class::default() };
            class.scan = class.scan_of(count);
            for f in base..base + count {
                class.free.push_back(&mut tier0.frames, f);
                tier0.frames[f as usize].on = On::Free;
            }
            base += count;
            for f in base..base + mapped_frames {
                class.mapped_free.push_back(&mut tier0.frames, f);
                tier0.frames[f as usize].on = On::MappedFree;
            }
            tier0.classes.push(class);
            base += mapped_frames;
        }
        tier0
    }

    /// Return whether the session has a tier 0. Without one, its engine keeps its KV in its own memory.
    pub fn exists(&self) -> bool {
        !self.frames.is_empty()
    }

    pub fn class_of_frame(&self, frame: u32) -> u8 {
        self.classes.iter().position(|c| frame >= c.base && frame - c.base < c.max + c.mapped_frames).unwrap_or(0) as u8
    }

    /// Return whether a frame is a mapped frame.
    pub fn is_mapped_frame(&self, frame: u32) -> bool {
        self.classes[usize::from(self.class_of_frame(frame))].is_mapped_frame(frame)
    }

    /// Return the bytes of all vectors.
    pub fn bytes(&self) -> usize {
        self.frames.capacity() * size_of::<Frame>()
            + self.classes.capacity() * size_of::<Tier0Class>()
            + self.lanes.capacity() * size_of::<Lane>()
    }
}
