//! Sizes of a session, checked once. The protocol computes everything else from them.

use kvtide_wire::geometry::{self, GeometryError, Plane, PlaneKind, classes, stride};
use std::ops::Range;

/// Geometry of a session: planes, size classes, bounds.
#[derive(Clone, Debug)]
pub struct Geometry {
    planes: Vec<Plane>,
    class_of: Vec<u8>,
    class_base: Vec<u32>,
    class_bytes: Vec<u32>,
    class_frames: Vec<u32>,
    /// Mapped frames of each class. Their numbers follow those of the class's tier-0 frames.
    mapped_frames: u32,
    bounds: Bounds,
    frames: u32,
}

/// Bounds of a session, as agreed in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Blocks of the space.
    pub blocks_max: u32,
    /// Sequences of the session.
    pub seqs_max: u32,
    /// Blocks of one sequence.
    pub seq_blocks_max: u32,
    /// Lanes.
    pub lanes: u16,
    /// Jobs in flight.
    pub jobs_max: u32,
    /// Entries of the update log, a power of two. Must hold a `Drop` of all planes and the updates of a few more jobs.
    pub log_entries: u32,
    /// Maximum number of pins at one time.
    pub pins_max: u32,
}

/// Reason why a geometry is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadGeometry {
    /// The planes.
    #[error(transparent)]
    Planes(#[from] GeometryError),
    /// A bound.
    #[error("{0}")]
    Bound(&'static str),
}

impl BadGeometry {
    /// The tables do not fit into memory.
    pub(super) const NO_ROOM: BadGeometry =
        BadGeometry::Bound("out of memory: the page tables of the space do not fit");
}

impl Geometry {
    /// Check the bounds and number the size classes. `frames` holds the tier-0 frames of each class in class order.
    ///
    /// # Errors
    /// Names the violated bound.
    pub fn new(planes: &[Plane], frames: &[u32], bounds: Bounds) -> Result<Geometry, BadGeometry> {
        let check = |ok: bool, why| if ok { Ok(()) } else { Err(BadGeometry::Bound(why)) };
        geometry::check(planes)?;
        check(bounds.page_tokens > 0, "a page must have at least one token")?;
        check(bounds.lanes > 0 && bounds.lanes < u16::MAX, "a session must have 1 to 65534 lanes")?;
        check(bounds.jobs_max > 0, "a session must allow at least one job")?;
        check(bounds.blocks_max > 0 && bounds.seqs_max > 0 && bounds.seq_blocks_max > 0, "a bound must not be zero")?;
        let pages = u64::from(bounds.blocks_max) * planes.len() as u64;
        check(pages < u64::from(u32::MAX), "page ids (blocks × planes) must fit 32 bits")?;
        let room = bounds.log_entries as usize >= 2 * planes.len() + 4;
        check(bounds.log_entries.is_power_of_two() && room, "log entries: a power of two, at least 2 × planes + 4")?;
        let class_bytes = classes(planes);
        let class_of = geometry::class_of(planes);
        check(class_bytes.len() == frames.len(), "one tier-0 frame count for each page size is needed")?;
        let mut class_base = Vec::with_capacity(frames.len());
        let mut total = 0u32;
        for count in frames {
            class_base.push(total);
            total = total
                .checked_add(*count)
                .filter(|t| *t < u32::MAX)
                .ok_or(BadGeometry::Bound("too many tier-0 frames"))?;
        }
        let (planes, class_frames) = (planes.to_vec(), frames.to_vec());
        Ok(Geometry {
            planes,
            class_of,
            class_base,
            class_bytes,
            class_frames,
            mapped_frames: 0,
            bounds,
            frames: total,
        })
    }

    /// Add this number of mapped frames to each class.
    ///
    /// # Errors
    /// The total number of frames does not fit.
    pub fn with_mapped_frames(mut self, mapped_frames: u32) -> Result<Geometry, BadGeometry> {
        let mut total = 0u32;
        for (base, frames) in self.class_base.iter_mut().zip(&self.class_frames) {
            *base = total;
            let end = total.checked_add(*frames).and_then(|end| end.checked_add(mapped_frames));
            total = end.filter(|t| *t < u32::MAX).ok_or(BadGeometry::Bound("too many tier-0 and mapped frames"))?;
        }
        (self.mapped_frames, self.frames) = (mapped_frames, total);
        Ok(self)
    }

    /// Return the mapped frames of each class.
    #[must_use]
    pub fn mapped_frames(&self) -> u32 {
        self.mapped_frames
    }

    /// Report whether a frame is a mapped frame.
    #[must_use]
    pub fn is_mapped_frame(&self, frame: u32) -> bool {
        self.locate(frame).is_some_and(|(class, within)| within >= self.class_frames[class])
    }

    /// Return the bounds.
    #[must_use]
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Return the planes of a block.
    #[must_use]
    pub fn planes(&self) -> &[Plane] {
        &self.planes
    }

    /// Return the number of planes.
    #[must_use]
    pub fn plane_count(&self) -> u32 {
        self.planes.len() as u32
    }

    /// Return the number of frames over all classes, including mapped frames.
    #[must_use]
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// Return the number of blocks with table entries: the whole space, or 0 if there are no frames.
    #[must_use]
    pub fn table_blocks(&self) -> u32 {
        if self.frames > 0 { self.bounds.blocks_max } else { 0 }
    }

    /// Return the number of entries of a table. Page ids are below it.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.table_blocks() * self.plane_count()
    }

    /// Return the number of size classes.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.class_bytes.len()
    }

    /// Return the bytes of a page, the distance from frame to frame, and the number of tier-0 frames of a class.
    #[must_use]
    pub fn class(&self, class: usize) -> Option<(u32, u32, u32)> {
        let bytes = *self.class_bytes.get(class)?;
        Some((bytes, stride(bytes), *self.class_frames.get(class)?))
    }

    /// Return the size class of a plane.
    #[must_use]
    pub fn class_of(&self, plane: u16) -> Option<u8> {
        self.class_of.get(usize::from(plane)).copied()
    }

    /// Return the size class of a frame and its number within the class. Mapped frames are numbered after the class's tier-0
    /// frames.
    #[must_use]
    pub fn locate(&self, frame: u32) -> Option<(usize, u32)> {
        let class = self.class_base.iter().rposition(|base| *base <= frame)?;
        let within = frame - self.class_base[class];
        (within < self.class_frames[class] + self.mapped_frames).then_some((class, within))
    }

    /// Report whether block and plane exist.
    #[must_use]
    pub fn has(&self, block: u32, plane: u16) -> bool {
        block < self.bounds.blocks_max && usize::from(plane) < self.planes.len()
    }

    /// Return the page id, if block and plane exist and tables have entries for them.
    #[must_use]
    pub fn page(&self, block: u32, plane: u16) -> Option<u32> {
        let ok = self.frames > 0 && self.has(block, plane);
        ok.then(|| block * self.plane_count() + u32::from(plane))
    }

    /// Return the page ids of a block that tables have entries for.
    #[must_use]
    pub fn pages_of(&self, block: u32) -> Range<u32> {
        self.page(block, 0).map_or(0..0, |first| first..first + self.plane_count())
    }

    /// Return the page id, if block and plane exist and the frame has the page size of the plane.
    #[must_use]
    pub fn page_in(&self, block: u32, plane: u16, frame: u32) -> Option<u32> {
        let page = self.page(block, plane)?;
        let (class, _) = self.locate(frame)?;
        (class == usize::from(self.class_of[usize::from(plane)])).then_some(page)
    }

    /// Return the bytes of a page of an existing plane; 0 for others.
    #[must_use]
    pub fn page_bytes(&self, plane: u16) -> u32 {
        self.planes.get(usize::from(plane)).map_or(0, |p| p.page_bytes)
    }

    /// Report whether a step reads all of a sequence's pages in this plane.
    #[must_use]
    pub fn reads_all(&self, plane: u16) -> bool {
        self.planes.get(usize::from(plane)).is_some_and(|p| p.kind == PlaneKind::Full)
    }

    /// Return the block indices that a read of `tokens` tokens needs in a plane; empty for no tokens.
    #[must_use]
    pub fn needed(&self, plane: u16, tokens: u64) -> std::ops::Range<u32> {
        let Some(spec) = self.planes.get(usize::from(plane)).filter(|_| tokens > 0) else { return 0..0 };
        let end = self.blocks_for(tokens);
        let first = spec.kind.first_needed(tokens, self.bounds.page_tokens.into());
        u32::try_from(first).unwrap_or(end).min(end)..end
    }

    /// Return the number of blocks that hold `tokens` tokens, saturating.
    #[must_use]
    pub fn blocks_for(&self, tokens: u64) -> u32 {
        u32::try_from(tokens.div_ceil(u64::from(self.bounds.page_tokens))).unwrap_or(u32::MAX)
    }
}
