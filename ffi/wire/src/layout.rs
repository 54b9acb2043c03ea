//! Layout of the two regions that a session shares.
//!
//! Region E is written by the engine, region D by the daemon (the engine maps it read-only). Offsets follow from [`Shape`] alone,
//! by [`Layout::of`], so both sides compute the same offsets and never transmit them.
//!
//! ```text
//! region E                                              region D
//! header                      written by the daemon     header
//! done tail, job head, copy loop sleeps   3 × 128 B     daemon sleeps, job tail, done head       3 × 128 B
//! per channel: sub tail, comp head, sleeps  3 × 128 B   per channel: comp tail, sub head         2 × 128 B
//! per lane: LaneLine                          128 B
//! done slots                           jobs × 64 B      job slots                              jobs × 64 B
//! per channel: submission slots       depth × 64 B      per channel: completion slots         depth × 64 B
//! per channel: request lists        depth × 2048 B      per channel: answer lists           depth × 2048 B
//! per lane: score slots         SCORE_SLOTS × 1024 B
//! ```

use crate::entry::{ENTRY_BYTES, LIST_WORDS};
use crate::error::Error;
use crate::sync::AtomicU64;

/// First word of each region: "kvtide" and the region's letter, little endian.
pub const MAGIC: [u64; 2] = [u64::from_le_bytes(*b"kvtide\0E"), u64::from_le_bytes(*b"kvtide\0D")];
/// Newest version of everything in this crate that this release speaks. 2: the hello may carry a token. 3: jobs and their
/// completions carry digests. 4: tier 0 grows and shrinks. 5: scores have kinds and name more pages; sequences have reading
/// contracts. 6: blocks in an engine's own memory. 7: an engine that detaches sends a message. 8: identities. 9: the relay's socket.
/// 10: the NUMA node of an engine.
pub const VERSION: u32 = 10;
/// Oldest version that it speaks. Messages carry it in their headers: the two sides agree on a version by [`crate::hello::Protocol`].
pub const OLDEST: u32 = 10;
/// Page size of the regions; their lengths are multiples of it.
pub const REGION_ALIGN: u64 = 4096;
/// Maximum channels of a session.
pub const CHANNELS_MAX: u16 = 16;
/// Maximum entries of a channel's rings, a power of two; also bounds its tags.
pub const DEPTH_MAX: u16 = 1024;
/// Maximum entries of the job rings, a power of two.
pub const JOBS_MAX: u32 = 4096;
/// Maximum lanes of a session.
pub const LANES_MAX: u16 = 64;
/// Score slots of a lane: two steps of 32 planes with four entries each.
pub const SCORE_SLOTS: u32 = 256;
/// Bytes of a [`crate::score::ScoreSlot`].
pub const SCORE_BYTES: u32 = 1024;
/// Bytes of an index or sleep word with its padding.
pub const LINE_BYTES: u64 = 128;
/// Bytes of a list area.
pub const LIST_BYTES: u64 = LIST_WORDS as u64 * 4;

/// Progress of a lane, published by the engine without a message. Untrusted, like everything that the engine writes.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct LaneLine {
    /// Current position of the lane: step × planes + plane.
    pub position: AtomicU64,
    /// Steps that the lane has begun.
    pub begun: AtomicU64,
    /// Steps that the lane has ended; equal to `begun` while the lane is idle.
    pub ended: AtomicU64,
}

/// Input of the layout, agreed in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Channels, 1 to [`CHANNELS_MAX`].
    pub channels: u16,
    /// Entries of each channel's rings, a power of two, 2 to [`DEPTH_MAX`].
    pub depth: u16,
    /// Entries of the job rings, a power of two, 2 to [`JOBS_MAX`].
    pub jobs: u32,
    /// Lanes, 1 to [`LANES_MAX`].
    pub lanes: u16,
}

/// Reason why a shape has no layout. It has no text, because a constant cannot build an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapeError {
    what: &'static str,
    value: u64,
    min: u64,
    max: u64,
}

impl From<ShapeError> for Error {
    fn from(e: ShapeError) -> Error {
        if e.value < e.min || e.value > e.max {
            return Error::Bound { what: e.what, value: e.value, min: e.min, max: e.max };
        }
        Error::PowerOfTwo { what: e.what, value: e.value }
    }
}

/// Offsets of one direction: the part that both regions have in common. All offsets in bytes from the region's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Tail of the job ring that this region's writer produces.
    pub job_tail: u64,
    /// Head of the job ring that this region's writer consumes.
    pub job_head: u64,
    /// The writer's sleep word (region E: of its copy loop; region D: of the daemon).
    pub sleeping: u64,
    /// First channel's lines; see [`Region::channel_lines`].
    channels: u64,
    /// Lines of a channel: tail, head, and in region E the sleep word.
    lines: u64,
    /// Slots of the job ring that the writer fills.
    pub job_slots: u64,
    slots: u64,
    lists: u64,
    depth: u64,
    /// Length of the region, a multiple of [`REGION_ALIGN`].
    pub bytes: u64,
}

/// Both regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Shape that the layout was computed from.
    pub shape: Shape,
    /// Written by the engine.
    pub engine: Region,
    /// Written by the daemon.
    pub daemon: Region,
    lanes: u64,
    scores: u64,
}

const fn within(what: &'static str, value: u64, min: u64, max: u64, power: bool) -> Result<(), ShapeError> {
    if value < min || value > max || (power && !value.is_power_of_two()) {
        return Err(ShapeError { what, value, min, max });
    }
    Ok(())
}

/// Reserve `count` × `bytes` at `offset`; return the start and the next offset. The largest shape stays below 2^32 (asserted
/// below), so plain sums cannot overflow for a valid shape.
const fn take(offset: u64, count: u64, bytes: u64) -> (u64, u64) {
    (offset, offset + count * bytes)
}

impl Region {
    const fn new(shape: Shape, lines: u64, lane_lines: u64, scores: u64) -> (Region, u64, u64) {
        let (channels, depth) = (shape.channels as u64, shape.depth as u64);
        let (job_tail, next) = take(LINE_BYTES, 1, LINE_BYTES); // after the header
        let (job_head, next) = take(next, 1, LINE_BYTES);
        let (sleeping, next) = take(next, 1, LINE_BYTES);
        let (first_channel, next) = take(next, channels * lines, LINE_BYTES);
        let (lanes, next) = take(next, lane_lines, LINE_BYTES);
        let (job_slots, next) = take(next, shape.jobs as u64, ENTRY_BYTES as u64);
        let (slots, next) = take(next, channels * depth, ENTRY_BYTES as u64);
        let (lists, next) = take(next, channels * depth, LIST_BYTES);
        let (scores, next) = take(next, scores, SCORE_BYTES as u64);
        let bytes = next.next_multiple_of(REGION_ALIGN);
        let channels = first_channel;
        let region = Region { job_tail, job_head, sleeping, channels, lines, job_slots, slots, lists, depth, bytes };
        (region, lanes, scores)
    }

    /// Return the tail of a channel's ring. Its producer writes this region.
    #[must_use]
    pub const fn tail(&self, channel: u16) -> u64 {
        self.channels + channel as u64 * self.lines * LINE_BYTES
    }

    /// Return the head of a channel's ring. Its consumer writes this region.
    #[must_use]
    pub const fn head(&self, channel: u16) -> u64 {
        self.tail(channel) + LINE_BYTES
    }

    /// Return the first slot of a channel's ring. Its producer writes this region.
    #[must_use]
    pub const fn slots(&self, channel: u16) -> u64 {
        self.slots + channel as u64 * self.depth * ENTRY_BYTES as u64
    }

    /// Return the first list area of a channel; areas are ordered by tag.
    #[must_use]
    pub const fn lists(&self, channel: u16) -> u64 {
        self.lists + channel as u64 * self.depth * LIST_BYTES
    }
}

impl Layout {
    /// Return the layout of a session of this shape; an error names the size that is out of bounds.
    pub const fn of(shape: Shape) -> Result<Layout, ShapeError> {
        let checks = [
            within("channels", shape.channels as u64, 1, CHANNELS_MAX as u64, false),
            within("depth of a channel", shape.depth as u64, 2, DEPTH_MAX as u64, true),
            within("depth of the job ring", shape.jobs as u64, 2, JOBS_MAX as u64, true),
            within("lanes", shape.lanes as u64, 1, LANES_MAX as u64, false),
        ];
        let mut i = 0;
        while i < checks.len() {
            if let Err(e) = checks[i] {
                return Err(e);
            }
            i += 1;
        }
        let lane_count = shape.lanes as u64;
        let (engine, lanes, scores) = Region::new(shape, 3, lane_count, lane_count * SCORE_SLOTS as u64);
        let (daemon, _, _) = Region::new(shape, 2, 0, 0);
        Ok(Layout { shape, engine, daemon, lanes, scores })
    }

    /// Return the sleep word of the engine's thread that owns a channel (region E).
    #[must_use]
    pub const fn channel_sleeping(&self, channel: u16) -> u64 {
        self.engine.tail(channel) + 2 * LINE_BYTES
    }

    /// Return the [`LaneLine`] of a lane (region E).
    #[must_use]
    pub const fn lane(&self, lane: u16) -> u64 {
        self.lanes + lane as u64 * LINE_BYTES
    }

    /// Return the first score slot of a lane (region E).
    #[must_use]
    pub const fn scores(&self, lane: u16) -> u64 {
        self.scores + lane as u64 * SCORE_SLOTS as u64 * SCORE_BYTES as u64
    }

    /// Return the header words of a region of a session that uses this protocol version: `which` 0 = E, 1 = D.
    #[must_use]
    pub const fn header(&self, which: usize, version: u32) -> [u64; 8] {
        let shape = self.shape;
        let sizes = shape.channels as u64 | (shape.depth as u64) << 16 | (shape.lanes as u64) << 32;
        let bytes = if which == 0 { self.engine.bytes } else { self.daemon.bytes };
        [MAGIC[which], version as u64, sizes, shape.jobs as u64, bytes, 0, 0, 0]
    }
}

#[cfg(not(loom))]
const _: () = {
    use crate::lists::ListArea;
    use crate::ring::{IndexLine, Slot};
    assert!(cfg!(target_endian = "little"), "the shared layouts are little endian");
    assert!(size_of::<Slot>() == ENTRY_BYTES && align_of::<Slot>() == ENTRY_BYTES);
    assert!(size_of::<IndexLine>() as u64 == LINE_BYTES && align_of::<IndexLine>() as u64 == LINE_BYTES);
    assert!(size_of::<LaneLine>() as u64 == LINE_BYTES && align_of::<LaneLine>() as u64 == LINE_BYTES);
    assert!(size_of::<ListArea>() as u64 == LIST_BYTES && align_of::<ListArea>() == 64);
    // One layout written out, so that a test shows any change of an offset.
    let shape = Shape { channels: 2, depth: 8, jobs: 16, lanes: 3 };
    let Ok(l) = Layout::of(shape) else { panic!("a valid shape") };
    assert!(l.engine.job_tail == 128 && l.engine.job_head == 256 && l.engine.sleeping == 384);
    assert!(l.engine.tail(0) == 512 && l.engine.head(0) == 640 && l.channel_sleeping(0) == 768);
    assert!(l.engine.tail(1) == 896 && l.lane(0) == 1280 && l.lane(2) == 1536);
    assert!(l.engine.job_slots == 1664 && l.engine.slots(0) == 2688 && l.engine.slots(1) == 3200);
    assert!(l.engine.lists(0) == 3712 && l.engine.lists(1) == 20096 && l.scores(0) == 36480);
    assert!(l.scores(1) == 298624 && l.engine.bytes == 823296);
    assert!(l.daemon.tail(0) == 512 && l.daemon.head(0) == 640 && l.daemon.tail(1) == 768);
    assert!(l.daemon.job_slots == 1024 && l.daemon.slots(0) == 2048 && l.daemon.lists(0) == 3072);
    assert!(l.daemon.bytes == 36864);
    // The largest shape bounds every sum above.
    let largest = Shape { channels: CHANNELS_MAX, depth: DEPTH_MAX, jobs: JOBS_MAX, lanes: LANES_MAX };
    let Ok(l) = Layout::of(largest) else { panic!("a valid shape") };
    assert!(l.engine.bytes < 1 << 32 && l.daemon.bytes < 1 << 32);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_out_of_bounds_are_named() {
        let good = Shape { channels: 1, depth: 2, jobs: 2, lanes: 1 };
        assert!(Layout::of(good).is_ok());
        let text = |shape| Error::from(Layout::of(shape).expect_err("out of bounds")).to_string();
        assert_eq!(text(Shape { channels: 17, ..good }), "channels is 17, allowed are 1 to 16");
        assert_eq!(text(Shape { channels: 0, ..good }), "channels is 0, allowed are 1 to 16");
        assert_eq!(text(Shape { depth: 96, ..good }), "depth of a channel is 96, which is not a power of two");
        assert_eq!(text(Shape { depth: 2048, ..good }), "depth of a channel is 2048, allowed are 2 to 1024");
        assert_eq!(text(Shape { jobs: 1, ..good }), "depth of the job ring is 1, allowed are 2 to 4096");
        assert_eq!(text(Shape { lanes: 65, ..good }), "lanes is 65, allowed are 1 to 64");
    }
}
