//! Tier-0 frames of one session, and the lists that they are in.

use super::{NO_LANE, NO_SESSION};
use crate::api::NONE;
use crate::lists::{Links, List, linked};
use serde::{Deserialize, Serialize};

/// State of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FrameState {
    Free,
    /// A job in flight fills it; `page` is the page that it will show.
    Incoming,
    /// Shows `page`.
    Present,
    /// Its page was given up and is not in the page's chain any more. It may stay installed until the Evict job ends, or the Move
    /// job that gives the page another frame.
    Invalidating,
    /// Has no memory behind it: the session's tier 0 was shrunk.
    Away,
}

/// List that a frame's links belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum On {
    Nothing,
    Free,
    /// Evictable at once, least recently used first.
    Clean,
    /// Only in tier 0: must be stored before it can be evicted.
    Dirty,
    /// Clean, but its page was pinned by the engine when a job tried to evict it.
    Refused,
    /// Part of a lane's stream list, in order of use; also while a job fills it.
    Stream,
    /// Like `Dirty`, to be stored as soon as possible.
    Early,
    /// Clean, and beyond the size to which its class shrinks: to be evicted.
    Outgoing,
    /// Beyond the size to which its class shrinks, and its page must stay in tier 0: the page is to be moved.
    Move,
    /// Waits for its Evict job.
    Evict,
    /// Like `Evict`, but its page was pinned by the engine when the job came.
    EvictLater,
    /// Represents all frames of its block, which wait for their Drop job.
    Drop,
    /// A mapped frame that shows no page.
    MappedFree,
    /// A mapped frame that shows a page; least recently used first.
    Mapped,
}

/// One frame; 48 bytes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Frame {
    pub links: Links,
    /// Page that it shows or will show.
    pub page: u32,
    /// Next tier-0 copy of the same page, in another session.
    pub copy_frame: u32,
    /// Position (step × planes + plane) of its planned use on `lane`.
    pub use_pos: u64,
    /// The lane's plan that the use belongs to.
    pub plan: u32,
    /// The session's step clock when it was last touched.
    pub stamp: u32,
    /// Job in flight on it, as an index into the job table; none otherwise.
    pub job: u32,
    pub copy_session: u16,
    /// Acquired ranges and copies that read it; it is not evictable while this is above 0.
    pub pins: u16,
    /// Lane of the planned use.
    pub lane: u16,
    /// Lane with a scan that streams through it.
    pub stream_lane: u16,
    pub state: FrameState,
    pub on: On,
    /// The priority of its sequence has protected it once since it was last touched.
    pub spared: bool,
    /// Loaded for a queued sequence that is not resumed yet.
    pub scheduled: bool,
}

impl Default for Frame {
    fn default() -> Self {
        Frame {
            links: Links::default(),
            page: NONE,
            copy_frame: NONE,
            use_pos: 0,
            plan: 0,
            stamp: 0,
            job: NONE,
            copy_session: NO_SESSION,
            pins: 0,
            lane: NO_LANE,
            stream_lane: NO_LANE,
            state: FrameState::Free,
            on: On::Nothing,
            spared: false,
            scheduled: false,
        }
    }
}

linked!(Frame.links);

impl Frame {
    /// Forget that the page was loaded for a queued sequence. Return whether it was there and that sequence was not resumed.
    pub fn end_schedule(&mut self) -> bool {
        std::mem::take(&mut self.scheduled) && self.state != FrameState::Incoming
    }
}

/// The frames of one size class of a session: ids `base .. base + max`, of which the first `count` are in use. The `mapped_frames` ids
/// behind them are mapped frames: a mapped frame has no tier-0 memory and shows a page where it is in host.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tier0Class {
    pub base: u32,
    /// Largest number of tier-0 frames that the class can have.
    pub max: u32,
    pub count: u32,
    /// Number of mapped frames.
    pub mapped_frames: u32,
    /// Frames beyond `count` that are not `Away` yet.
    pub beyond: u32,
    /// Frames that a scan may stream through if the class has at least twice as many.
    pub scan_max: u32,
    /// Frames that a scan streams through.
    pub scan: u32,
    pub free: List,
    pub clean: List,
    pub refused: List,
    pub dirty: List,
    pub early: List,
    pub outgoing: List,
    pub moving: List,
    pub mapped_free: List,
    pub mapped: List,
    /// Mapped frames with a page that was given up and may still be shown.
    pub mapped_invalidating: u32,
    /// Live pages of blocks with this session as their home.
    pub committed: u64,
    /// Pages of the blocks that the session may have by its guarantee.
    pub guaranteed: u64,
    /// Pages that must keep their frame: unsealed and not parked, or about to be so (admitted requests).
    pub unsealed: u64,
    /// Frames pinned by acquired ranges.
    pub pinned: u64,
    /// Pages that acquires in progress have yet to pin.
    pub committed_pins: u64,
    /// CopyOut jobs in flight.
    pub copying_out: u32,
    /// Allocations that found no frame since the class was last cleaned for them.
    pub shortage: u32,
    /// Cleaning continues until the high watermark.
    pub cleaning: bool,
}

impl Tier0Class {
    /// Return the number of frames that are or will be held by pages that must stay.
    pub fn held(&self) -> u64 {
        self.unsealed + self.pinned + self.committed_pins
    }

    /// Return the number of frames that may hold pages for a long time.
    pub fn room(&self) -> u64 {
        u64::from(self.count - self.scan)
    }

    /// Return the host frames that are committed to the session.
    pub fn committed_in_host(&self) -> u64 {
        self.committed_with(self.committed, self.guaranteed, self.room())
    }

    /// Return the host frames committed to a session with `committed` live pages, a guarantee of `guaranteed`, and `room` in tier 0.
    pub fn committed_with(&self, committed: u64, guaranteed: u64, room: u64) -> u64 {
        committed.max(guaranteed).saturating_sub(room)
    }

    /// Return what `room` would be with `count` frames.
    pub fn room_of(&self, count: u32) -> u64 {
        u64::from(count - self.scan_of(count))
    }

    /// Return the number of frames that a scan streams through if there are `count`: at most half, so that pages can still be
    /// reserved.
    pub fn scan_of(&self, count: u32) -> u32 {
        self.scan_max.min(count / 2)
    }

    /// Return whether a tier-0 frame of the class has no memory, or is about to lose it.
    pub fn is_beyond(&self, frame: u32) -> bool {
        (self.count..self.max).contains(&(frame - self.base))
    }

    /// Return whether a frame of the class is a mapped frame.
    pub fn is_mapped_frame(&self, frame: u32) -> bool {
        frame - self.base >= self.max
    }
}
