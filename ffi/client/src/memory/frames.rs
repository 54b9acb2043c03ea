//! Placement of each size class's frames within tier 0, for any kind of memory.
//!
//! A class has room for its maximum number of frames, at a fixed place. The number of frames with memory may change during the
//! session.

use crate::agent::protocol::Geometry;
use std::sync::atomic::{AtomicU32, Ordering};

/// A size class.
#[derive(Debug)]
struct Class {
    offset: u64,
    first_frame: u32,
    frames_max: u32,
    /// Number of frames with memory, counted from the first.
    frames: AtomicU32,
    stride: u32,
    page_bytes: u32,
}

/// Location of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// Byte offset in tier 0.
    Offset(u64),
    /// Index of a mapped frame, over all classes.
    MappedFrame(usize),
}

/// A class's room in tier 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassRoom {
    /// Byte offset of its first frame.
    pub offset: u64,
    /// Number of its first frame.
    pub first_frame: u32,
    /// Maximum frames.
    pub frames_max: u32,
    /// Bytes from one frame to the next.
    pub stride: u32,
}

impl ClassRoom {
    /// Return the size of the first `frames` frames in bytes.
    #[must_use]
    pub fn bytes_of(&self, frames: u32) -> u64 {
        u64::from(frames) * u64::from(self.stride)
    }

    /// Return the size of all frames in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes_of(self.frames_max)
    }
}

/// The classes of a geometry and their places.
#[derive(Debug)]
pub(super) struct FrameMap {
    classes: Vec<Class>,
    /// Mapped frames of each class.
    mapped_frames: u32,
}

impl FrameMap {
    /// Place the classes of a geometry. `place` returns the offset of a class's room. No frame has memory yet.
    pub fn new<E>(geometry: &Geometry, mut place: impl FnMut(&ClassRoom) -> Result<u64, E>) -> Result<FrameMap, E> {
        let mut classes = Vec::with_capacity(geometry.classes());
        let mut first_frame = 0;
        for (page_bytes, stride, frames_max) in (0..geometry.classes()).filter_map(|class| geometry.class(class)) {
            let offset = place(&ClassRoom { offset: 0, first_frame, frames_max, stride })?;
            let frames = AtomicU32::new(0);
            classes.push(Class { offset, first_frame, frames_max, frames, stride, page_bytes });
            first_frame += frames_max + geometry.mapped_frames();
        }
        Ok(FrameMap { classes, mapped_frames: geometry.mapped_frames() })
    }

    /// Return the room of a class.
    pub fn room(&self, class: usize) -> Option<ClassRoom> {
        let Class { offset, first_frame, frames_max, stride, .. } = *self.classes.get(class)?;
        Some(ClassRoom { offset, first_frame, frames_max, stride })
    }

    /// Return the number of classes.
    pub fn classes(&self) -> usize {
        self.classes.len()
    }

    /// Return the number of a class's frames with memory.
    pub fn frames(&self, class: usize) -> u32 {
        self.classes.get(class).map_or(0, |c| c.frames.load(Ordering::Acquire))
    }

    /// Set the number of a class's frames with memory.
    pub fn set_frames(&self, class: usize, frames: u32) {
        if let Some(class) = self.classes.get(class) {
            class.frames.store(frames.min(class.frames_max), Ordering::Release);
        }
    }

    /// Return the number of mapped frames of each class.
    pub fn mapped_frames(&self) -> u32 {
        self.mapped_frames
    }

    /// Return the location of a frame that has memory or is a mapped frame, and the size of its page.
    pub fn frame(&self, frame: u32) -> Option<(At, usize)> {
        let (index, class) = self.classes.iter().enumerate().rfind(|(_, c)| c.first_frame <= frame)?;
        let (within, bytes) = (frame - class.first_frame, class.page_bytes as usize);
        if within < class.frames.load(Ordering::Acquire) {
            return Some((At::Offset(class.offset + u64::from(within) * u64::from(class.stride)), bytes));
        }
        let mapped = within.checked_sub(class.frames_max).filter(|mapped| *mapped < self.mapped_frames)?;
        Some((At::MappedFrame(index * self.mapped_frames as usize + mapped as usize), bytes))
    }
}
