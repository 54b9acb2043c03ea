//! Tier-0 frames of one session and the lists that they stand in.

use super::{NO_LANE, NO_SESSION};
use crate::api::NONE;
use crate::lists::{Linked, Links, List};
use serde::{Deserialize, Serialize};

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FrameState {
    Free,
    /// A job in flight fills it; `page` is the page to be.
    Incoming,
    /// Shows `page`.
    Present,
    /// Its page is given up (not in the page's chain any more) but may still be published until the Evict job ended, or the Move
    /// job that gives the page another frame.
    Leaving,
    /// There is no memory behind it: the session's tier 0 is smaller now.
    Away,
}

/// Which list a frame's links belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum On {
    Nothing,
    Free,
    /// Evictable at once, least recently used first.
    Clean,
    /// Only in tier 0: must be stored before it can be evicted.
    Dirty,
    /// Clean, but its page was pinned by the engine when a job wanted to take it.
    Refused,
    /// Streams for a lane's scan, in order of use; also while a job fills it.
    Ring,
    /// Like `Dirty`, to be stored as soon as possible.
    Early,
    /// Clean, and beyond what its class shrinks to: to be evicted.
    Outgoing,
    /// Shows a page that must stay in tier 0, and is beyond what its class shrinks to: the page is to be moved.
    Move,
    /// Waits for its Evict job.
    Evict,
    /// Like `Evict`, but its page was pinned by the engine when the job came.
    EvictLater,
    /// Stands for all frames of its block, which wait for their Drop job.
    Drop,
    /// A window frame that shows nothing.
    WindowFree,
    /// A window frame that shows a page; the least recently used first.
    Window,
}

/// One frame. 48 bytes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Frame {
    pub links: Links,
    /// Page that it shows or will show.
    pub page: u32,
    /// Next tier-0 copy of the same page, in another session.
    pub copy_frame: u32,
    /// Position (step × planes + plane) of its planned use on `lane`.
    pub use_pos: u64,
    /// The session's step clock when it was last touched.
    pub stamp: u32,
    /// Job in flight on it, as slot; none otherwise.
    pub job: u32,
    pub copy_session: u16,
    /// Acquired ranges and copies that read it: not evictable while above 0.
    pub pins: u16,
    /// Lane of the planned use.
    pub lane: u16,
    /// Lane whose scan streams through it.
    pub ring: u16,
    pub state: FrameState,
    pub on: On,
    /// Its sequence's priority has spared it once since it was last touched.
    pub spared: bool,
    /// It was loaded for a queued sequence that was not resumed yet.
    pub intent: bool,
}

impl Default for Frame {
    fn default() -> Self {
        Frame {
            links: Links::default(),
            page: NONE,
            copy_frame: NONE,
            use_pos: 0,
            stamp: 0,
            job: NONE,
            copy_session: NO_SESSION,
            pins: 0,
            lane: NO_LANE,
            ring: NO_LANE,
            state: FrameState::Free,
            on: On::Nothing,
            spared: false,
            intent: false,
        }
    }
}

impl Linked for Frame {
    fn links(&self) -> &Links {
        &self.links
    }
    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// The frames of one size class of a session: ids `base .. base + max`, of which the first `count` are in use. The `windows` ids
/// behind them are window frames: there is no memory of tier 0 behind one, it shows a page where that is in host.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tier0Class {
    pub base: u32,
    /// As many as there may ever be.
    pub max: u32,
    pub count: u32,
    /// Window frames.
    pub windows: u32,
    /// Frames beyond `count` that are not away yet.
    pub beyond: u32,
    /// Frames that a scan may stream through if there are twice as many.
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
    pub window_free: List,
    pub window: List,
    /// Window frames whose page was given up and may still show.
    pub windows_leaving: u32,
    /// Live pages of blocks that are at home in this session.
    pub owned: u64,
    /// Pages whose frame may not be taken: unsealed and not parked, or to be so (admitted requests).
    pub unsealed: u64,
    /// Frames pinned by acquired ranges.
    pub pinned: u64,
    /// Pages that acquires under way have yet to pin.
    pub promised: u64,
    /// Stores in flight.
    pub storing: u32,
    /// Work that found no frame since the class was last cleaned for it.
    pub starved: u32,
    /// Cleaning goes on until the high watermark.
    pub cleaning: bool,
}

impl Tier0Class {
    /// Frames that are or will be held by pages that must stay.
    pub fn held(&self) -> u64 {
        self.unsealed + self.pinned + self.promised
    }

    /// Frames that may hold pages for long.
    pub fn room(&self) -> u64 {
        u64::from(self.count - self.scan)
    }

    /// The same if there were `count` frames.
    pub fn room_of(&self, count: u32) -> u64 {
        u64::from(count - self.scan_of(count))
    }

    /// Frames that a scan streams through if there are `count`: at most half, so that reserving is possible at all.
    pub fn scan_of(&self, count: u32) -> u32 {
        self.scan_max.min(count / 2)
    }

    /// Whether a tier-0 frame of the class has no memory, or is to have none.
    pub fn is_beyond(&self, frame: u32) -> bool {
        (self.count..self.max).contains(&(frame - self.base))
    }

    /// Whether a frame of the class is a window frame.
    pub fn is_window(&self, frame: u32) -> bool {
        frame - self.base >= self.max
    }
}
