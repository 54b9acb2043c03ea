//! Tier 0: the frames of a session, in the memory that its options chose.

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

/// The frames of tier 0. Addresses never change while it lives; memory comes and goes behind them.
#[derive(Debug)]
pub struct Tier0 {
    frames: FrameMap,
    memory: Memory,
    /// Where each window frame's page is, null for none.
    windows: Box<[AtomicPtr<u8>]>,
    /// Held while a class grows or shrinks.
    resizing: Mutex<()>,
}

/// As many windows as a geometry has, showing nothing.
fn no_pages(geometry: &Geometry) -> Box<[AtomicPtr<u8>]> {
    let count = geometry.classes() * geometry.windows() as usize;
    (0..count).map(|_| AtomicPtr::default()).collect()
}

impl Tier0 {
    /// Frames of a geometry in plain memory, prefaulted: of each class the first `initial` ones, all if that is empty.
    ///
    /// # Errors
    /// [`Error::System`]: there is no room for so many bytes.
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
            windows: no_pages(geometry),
            resizing: Mutex::new(()),
        };
        tier0.fill(initial)?;
        Ok(tier0)
    }

    /// The same on a device, as `choice` says.
    ///
    /// # Errors
    /// The device cannot have it so, or is full.
    #[cfg(feature = "cuda")]
    pub(crate) fn on(
        device: &Arc<Device>,
        geometry: &Geometry,
        choice: &DeviceChoice,
        initial: &[u32],
    ) -> Result<Tier0> {
        let (memory, frames) = DeviceMemory::new(device, geometry, choice)?;
        let tier0 =
            Tier0 { frames, memory: Memory::Device(memory), windows: no_pages(geometry), resizing: Mutex::new(()) };
        tier0.fill(initial)?;
        Ok(tier0)
    }

    /// The device that it is on.
    #[cfg(feature = "cuda")]
    pub(crate) fn device(&self) -> Option<&Arc<Device>> {
        match &self.memory {
            Memory::Host(_) => None,
            Memory::Device(memory) => Some(memory.device()),
        }
    }

    /// Gives every class memory for the frames that it begins with.
    fn fill(&self, initial: &[u32]) -> Result<()> {
        let frames = |class| initial.get(class).copied().unwrap_or(u32::MAX);
        (0..self.frames.classes()).try_for_each(|class| self.resize(class, frames(class)).map(|_| ()))
    }

    /// Whether this process's own code may read and write frames.
    #[must_use]
    pub fn is_host(&self) -> bool {
        matches!(self.memory, Memory::Host(_))
    }

    /// Its first byte: an address of the memory that it is in.
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        match &self.memory {
            Memory::Host(map) => map.start(),
            #[cfg(feature = "cuda")]
            Memory::Device(memory) => std::ptr::without_provenance_mut(memory.base() as usize),
        }
    }

    /// Its length, memory or not.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.memory {
            Memory::Host(map) => map.bytes(),
            #[cfg(feature = "cuda")]
            Memory::Device(memory) => memory.bytes() as usize,
        }
    }

    /// The room of a class.
    #[must_use]
    pub fn class(&self, class: usize) -> Option<ClassRoom> {
        self.frames.room(class)
    }

    /// Frames of a class, counted from its first, that have memory behind them.
    #[must_use]
    pub fn frames(&self, class: usize) -> u32 {
        self.frames.frames(class)
    }

    /// Where a frame that has memory, or a page that a window frame shows, is, and the bytes of its page. The host may look there
    /// only if [`Tier0::is_host`], and write only into frames that have memory.
    #[must_use]
    pub fn frame(&self, frame: u32) -> Option<(*mut u8, usize)> {
        let (at, page_bytes) = self.frames.frame(frame)?;
        let at = match at {
            At::Offset(offset) => self.start().wrapping_add(offset as usize),
            At::Window(window) => self.windows[window].load(Ordering::Acquire),
        };
        (!at.is_null()).then_some((at, page_bytes))
    }

    /// The table on the device through which kernels find what windows show, if there are any.
    #[cfg(feature = "cuda")]
    pub(crate) fn device_windows(&self) -> Option<&super::cuda::Windows> {
        match &self.memory {
            Memory::Host(_) => None,
            Memory::Device(memory) => memory.windows(),
        }
    }

    /// Address of the addresses of what windows show, 8 bytes each, class by class, in the memory that tier 0 is in; 0 without
    /// windows.
    #[must_use]
    pub fn aliases(&self) -> u64 {
        match &self.memory {
            _ if self.windows.is_empty() => 0,
            Memory::Host(_) => self.windows.as_ptr().addr() as u64,
            #[cfg(feature = "cuda")]
            Memory::Device(memory) => memory.windows().map_or(0, super::cuda::Windows::address),
        }
    }

    /// Window frames of each class.
    #[must_use]
    pub fn windows(&self) -> u32 {
        self.frames.windows()
    }

    /// A window frame's number over all classes, and the bytes of its page.
    pub(crate) fn window(&self, frame: u32) -> Option<(usize, usize)> {
        match self.frames.frame(frame)? {
            (At::Window(window), bytes) => Some((window, bytes)),
            (At::Offset(_), _) => None,
        }
    }

    /// A window shows the page at an address from now on, null: none. Release: pairs with the load in `frame`; and the table
    /// publishes the page only afterwards.
    pub(crate) fn set_window(&self, window: usize, address: *mut u8) {
        if let Some(at) = self.windows.get(window) {
            at.store(address, Ordering::Release);
        }
    }

    /// Grows or shrinks a class to its first `frames` frames (no more than its room). Nobody may use a frame that goes: none
    /// shows a page, no copy touches it. Returns the frames that have memory now.
    ///
    /// # Errors
    /// `Range`: no such class. [`Error::System`]: there is no memory; the class stays as it was.
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
            // First nobody finds them, then they go.
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
    use kvtide_wire::geometry::PlaneSpec;

    fn geometry() -> Geometry {
        let plane = |page_bytes| PlaneSpec { page_bytes, ..PlaneSpec::default() };
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
            // SAFETY: the frame is inside the map, and nobody else uses it.
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
            // SAFETY: the frame is inside the map, and nobody else uses it.
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
