//! Tier 0: the frames of a session, in the kind of memory that its options chose.

use super::{
    frames::{At, ClassRoom, FrameMap},
    host::{self, HostMap},
};
use crate::{Error, Result, agent::protocol::Geometry};
use kvtide_wire::status::Status;
#[cfg(feature = "cuda")]
use {super::cuda::DeviceMemory, crate::client::options::DeviceChoice, kvtide_kernels::Device, std::sync::Arc};

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicPtr, Ordering},
};

/// The memory behind the frames.
#[derive(Debug)]
enum Memory {
    /// Plain memory of this process.
    Host(HostMap),
    /// Memory of a device.
    #[cfg(feature = "cuda")]
    Device(DeviceMemory),
}

/// The frames of tier 0. Their addresses are fixed for its life; the memory behind them may be added and removed.
#[derive(Debug)]
pub struct Tier0 {
    frames: FrameMap,
    memory: Memory,
    /// Address of the page of each mapped frame; null: none.
    mapped_frames: Box<[AtomicPtr<u8>]>,
    /// Held while a class grows or shrinks.
    resizing: Mutex<()>,
}

/// Return one empty entry for each mapped frame of a geometry.
fn no_pages(geometry: &Geometry) -> Box<[AtomicPtr<u8>]> {
    let count = geometry.classes() * geometry.mapped_frames() as usize;
    (0..count).map(|_| AtomicPtr::default()).collect()
}

impl Tier0 {
    /// Create the frames of a geometry in plain memory, prefaulted. Of each class the first `initial` frames get memory; all if
    /// `initial` is empty.
    ///
    /// # Errors
    /// [`Error::System`]: the memory cannot be allocated.
    pub fn host(geometry: &Geometry, initial: &[u32]) -> Result<Tier0> {
        let mut end = 0u64;
        let frames = FrameMap::new(geometry, |room| {
            let offset = host::place(end, room);
            end = offset.saturating_add(room.bytes());
            Ok::<u64, Error>(offset)
        })?;
        let tier0 = Tier0 {
            frames,
            memory: Memory::Host(HostMap::new(end)?),
            mapped_frames: no_pages(geometry),
            resizing: Mutex::new(()),
        };
        tier0.fill(initial)?;
        Ok(tier0)
    }

    /// Create the frames on a device, as `choice` specifies.
    ///
    /// # Errors
    /// The device does not support the choice, or has no memory left.
    #[cfg(feature = "cuda")]
    pub(crate) fn on(
        device: &Arc<Device>,
        geometry: &Geometry,
        choice: &DeviceChoice,
        initial: &[u32],
    ) -> Result<Tier0> {
        let (memory, frames) = DeviceMemory::new(device, geometry, choice)?;
        let tier0 = Tier0 {
            frames,
            memory: Memory::Device(memory),
            mapped_frames: no_pages(geometry),
            resizing: Mutex::new(()),
        };
        tier0.fill(initial)?;
        Ok(tier0)
    }

    /// Return the device, if tier 0 is on one.
    #[cfg(feature = "cuda")]
    pub(crate) fn device(&self) -> Option<&Arc<Device>> {
        match &self.memory {
            Memory::Host(_) => None,
            Memory::Device(memory) => Some(memory.device()),
        }
    }

    /// Allocate the initial frames of every class.
    fn fill(&self, initial: &[u32]) -> Result<()> {
        let frames = |class| initial.get(class).copied().unwrap_or(u32::MAX);
        (0..self.frames.classes()).try_for_each(|class| self.resize(class, frames(class)).map(|_| ()))
    }

    /// Return whether host code may read and write frames.
    #[must_use]
    pub fn is_host(&self) -> bool {
        matches!(self.memory, Memory::Host(_))
    }

    /// Return the address of the first byte, in tier 0's kind of memory.
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        match &self.memory {
            Memory::Host(map) => map.start(),
            #[cfg(feature = "cuda")]
            Memory::Device(memory) => std::ptr::without_provenance_mut(memory.base() as usize),
        }
    }

    /// Return the length of the address range in bytes, with and without memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.memory {
            Memory::Host(map) => map.bytes(),
            #[cfg(feature = "cuda")]
            Memory::Device(memory) => memory.bytes() as usize,
        }
    }

    /// Return the room of a class.
    #[must_use]
    pub fn class(&self, class: usize) -> Option<ClassRoom> {
        self.frames.room(class)
    }

    /// Return the number of a class's frames with memory, counted from the first.
    #[must_use]
    pub fn frames(&self, class: usize) -> u32 {
        self.frames.frames(class)
    }

    /// Return the address and size of a frame's page, for a frame with memory or a mapped frame that shows a page. Host code may
    /// access it only if [`Tier0::is_host`], and may write only to frames with memory.
    #[must_use]
    pub fn frame(&self, frame: u32) -> Option<(*mut u8, usize)> {
        let (at, page_bytes) = self.frames.frame(frame)?;
        let at = match at {
            At::Offset(offset) => self.start().wrapping_add(offset as usize),
            At::MappedFrame(mapped) => self.mapped_frames[mapped].load(Ordering::Acquire),
        };
        (!at.is_null()).then_some((at, page_bytes))
    }

    /// Return the device table through which kernels find the pages of mapped frames, if there are any.
    #[cfg(feature = "cuda")]
    pub(crate) fn device_mapped_frames(&self) -> Option<&super::cuda::MappedFrames> {
        match &self.memory {
            Memory::Host(_) => None,
            Memory::Device(memory) => memory.mapped_frames(),
        }
    }

    /// Return the address of the array of page addresses of mapped frames, 8 bytes each, class by class, in tier 0's kind of
    /// memory; 0 without mapped frames.
    #[must_use]
    pub fn aliases(&self) -> u64 {
        match &self.memory {
            _ if self.mapped_frames.is_empty() => 0,
            Memory::Host(_) => self.mapped_frames.as_ptr().addr() as u64,
            #[cfg(feature = "cuda")]
            Memory::Device(memory) => memory.mapped_frames().map_or(0, super::cuda::MappedFrames::address),
        }
    }

    /// Return the number of mapped frames of each class.
    #[must_use]
    pub fn mapped_frames(&self) -> u32 {
        self.frames.mapped_frames()
    }

    /// Return the index of a mapped frame over all classes, and the size of its page.
    pub(crate) fn mapped_frame(&self, frame: u32) -> Option<(usize, usize)> {
        match self.frames.frame(frame)? {
            (At::MappedFrame(mapped), bytes) => Some((mapped, bytes)),
            (At::Offset(_), _) => None,
        }
    }

    /// Set the address of the page that a mapped frame shows; null: none. The release store pairs with the acquire load in `frame`.
    /// The page table installs the page only afterwards.
    pub(crate) fn set_mapped_frame(&self, mapped: usize, address: *mut u8) {
        if let Some(at) = self.mapped_frames.get(mapped) {
            at.store(address, Ordering::Release);
        }
    }

    /// Resize a class to its first `frames` frames, at most its room. Frames that go must not be in use: no page table contains
    /// them, no copy accesses them. Return the number of frames with memory.
    ///
    /// # Errors
    /// `Range`: no such class. [`Error::System`]: the memory cannot be allocated; the class stays as it was.
    pub fn resize(&self, class: usize, frames: u32) -> Result<u32> {
        let none = || Error::call("resize tier-0 class", class as u64, Status::Range);
        let room = self.frames.room(class).ok_or_else(none)?;
        let _alone = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let (had, want) = (self.frames.frames(class), frames.min(room.frames_max));
        if want > had {
            match &self.memory {
                Memory::Host(map) => map.take(&room, had, want)?,
                #[cfg(feature = "cuda")]
                Memory::Device(memory) => memory.resize(class, &room, want)?,
            }
            self.frames.set_frames(class, want);
        } else if want < had {
            // Make the frames unreachable before their memory is freed.
            self.frames.set_frames(class, want);
            match &self.memory {
                Memory::Host(map) => map.give_back(&room, want, had)?,
                #[cfg(feature = "cuda")]
                Memory::Device(memory) => memory.resize(class, &room, want)?,
            }
        }
        Ok(want)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::geometry::Bounds;
    use kvtide_wire::geometry::Plane;

    fn geometry() -> Geometry {
        let plane = |page_bytes| Plane::full(page_bytes);
        let bounds = Bounds {
            page_tokens: 16,
            blocks_max: 8,
            seqs_max: 1,
            seq_blocks_max: 8,
            lanes: 1,
            jobs_max: 4,
            log_entries: 16,
            pins_max: 1,
        };
        Geometry::new(&[plane(1000), plane(1 << 20), plane(1000)], &[7, 3], bounds).expect("geometry")
    }

    #[test]
    fn frames_are_aligned_apart_and_inside() {
        let tier0 = Tier0::host(&geometry(), &[]).expect("map");
        let mut ranges = Vec::new();
        for frame in 0..10 {
            let (at, bytes) = tier0.frame(frame).expect("a frame");
            assert_eq!(bytes, if frame < 7 { 1000 } else { 1 << 20 });
            assert!(at.addr().is_multiple_of(64));
            // SAFETY: the frame is inside the map, and no other code uses it.
            unsafe { at.write_bytes(frame as u8, bytes) };
            ranges.push(at.addr()..at.addr() + bytes);
        }
        assert!(tier0.frame(10).is_none());
        ranges.sort_by_key(|r| r.start);
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
        let end = tier0.start().addr() + tier0.bytes();
        assert!(ranges.iter().all(|r| r.start >= tier0.start().addr() && r.end <= end));
    }

    #[test]
    fn a_class_that_shrinks_and_grows_keeps_what_stays_and_loses_what_goes() {
        let tier0 = Tier0::host(&geometry(), &[]).expect("map");
        let fill = |frame: u32| {
            let (at, bytes) = tier0.frame(frame).expect("a frame");
            // SAFETY: the frame is inside the map, and no other code uses it.
            unsafe { at.write_bytes(frame as u8 + 1, bytes) };
        };
        let all = |frame: u32, byte: u8| {
            let (at, bytes) = tier0.frame(frame).expect("a frame");
            // SAFETY: as above.
            unsafe { std::slice::from_raw_parts(at, bytes) }.iter().all(|b| *b == byte)
        };
        (0..10).for_each(fill);
        assert_eq!(tier0.resize(1, 1).expect("shrinks"), 1);
        assert!(tier0.frame(8).is_none() && tier0.frame(9).is_none(), "they have no memory");
        assert_eq!(tier0.resize(0, 3).expect("shrinks"), 3);
        assert!((0..3).all(|frame| all(frame, frame as u8 + 1)) && all(7, 8), "what stays is whole");
        assert_eq!(tier0.resize(1, 2).expect("grows"), 2);
        assert!(all(8, 0), "fresh memory");
        assert_eq!(tier0.resize(1, 99).expect("no more than its room"), 3);
        assert_eq!(tier0.resize(0, 7).expect("grows"), 7);
        (0..10).for_each(fill);
        assert!((0..10).all(|frame| all(frame, frame as u8 + 1)));
        assert_eq!(tier0.resize(2, 1).expect_err("no such class").status(), Status::Range);
    }
}
