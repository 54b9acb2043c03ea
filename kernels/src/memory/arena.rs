//! The arena of tier 0: device memory at one address for its life, with an adjustable amount mapped.

use super::vmm::Range;
use crate::{Device, Error, Result};
use cudarc::driver::sys::CUpointer_attribute_enum as Attribute;
use std::{
    ffi::c_void,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Minimum size of chunks, unless the whole arena is smaller: mapping has a cost per chunk.
pub const CHUNK_MIN: u64 = 64 << 20;

/// Maximum size of chunks: a chunk is the amount that an engine gets back at one time.
pub const CHUNK_MAX: u64 = 512 << 20;

/// `CU_MEMORYTYPE_DEVICE`.
const ON_DEVICE: u32 = 2;

/// Device memory at a fixed address: reserved at its maximum and mapped as needed, or provided by the engine.
pub struct Arena {
    device: Arc<Device>,
    base: u64,
    bytes_max: u64,
    kind: Kind,
    /// Mapped bytes; read by any thread, written under the lock of `Kind::Grows`.
    committed: AtomicU64,
}

enum Kind {
    /// Whole chunks from the start of the range are mapped, the last one possibly short. The lock serializes growing and shrinking.
    Grows { range: Range, chunk: u64, one_at_a_time: Mutex<()> },
    /// Memory of the engine.
    Given,
}

impl Arena {
    /// Reserve addresses for at most `bytes_max` bytes; map nothing yet. Memory is mapped and unmapped in chunks of `chunk` bytes,
    /// 64 to 512 MiB, or the whole if that is smaller.
    ///
    /// # Errors
    /// The device cannot map memory, the chunk is out of bounds, or the addresses cannot be reserved.
    pub fn reserve(device: &Arc<Device>, bytes_max: u64, chunk: u64) -> Result<Self> {
        device.works()?.vmm.demand("an arena that grows", device)?;
        let range = Range::reserve(device, bytes_max)?;
        let chunk = chunk.min(range.bytes());
        let short = chunk == range.bytes();
        if !chunk.is_multiple_of(range.granularity()) || chunk > CHUNK_MAX || (chunk < CHUNK_MIN && !short) {
            let why = format!(
                "{chunk} bytes are not a multiple of {} between {CHUNK_MIN} and {CHUNK_MAX}, nor the whole of {} bytes",
                range.granularity(),
                range.bytes()
            );
            return Err(Error::invalid("chunk of the arena", why));
        }
        Ok(Self {
            device: Arc::clone(device),
            base: range.base(),
            bytes_max: range.bytes(),
            kind: Kind::Grows { range, chunk, one_at_a_time: Mutex::new(()) },
            committed: AtomicU64::new(0),
        })
    }

    /// Use memory that the engine has allocated, and frees after this is gone.
    ///
    /// # Errors
    /// It is not memory of this device, or smaller than given.
    pub fn given(device: &Arc<Device>, pointer: u64, bytes: u64) -> Result<Self> {
        let bad =
            |why: String| Error::invalid("memory given for tier 0", format!("{bytes} bytes at {pointer:#x}: {why}"));
        if pointer == 0 || bytes == 0 || !pointer.is_multiple_of(16) {
            return Err(bad("it must be aligned to 16 bytes and not be empty".to_owned()));
        }
        let ask = |which, at: u64| -> Result<u64> {
            let _entered = device.enter()?;
            let mut value = 0_u64;
            // SAFETY: each attribute queried here is written as 4 or 8 bytes, into a zeroed u64 of a little-endian machine.
            let code = unsafe { (device.api().cuPointerGetAttribute)((&raw mut value).cast::<c_void>(), which, at) };
            device.check(code, "cuPointerGetAttribute", || format!("{at:#x}, {which:?}"))?;
            Ok(value)
        };
        if ask(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer)? != u64::from(ON_DEVICE) {
            return Err(bad("it is not memory of a device".to_owned()));
        }
        let ordinal = ask(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer)?;
        if ordinal != u64::from(device.info().ordinal) {
            return Err(bad(format!("it is memory of cuda:{ordinal}, not of {}", device.info().label())));
        }
        // The driver reports the allocation that contains an address; memory of several allocations is followed from one to the
        // next.
        let end = pointer.checked_add(bytes).ok_or_else(|| bad("it ends beyond all addresses".to_owned()))?;
        let mut at = pointer;
        while at < end {
            let start = ask(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at)?;
            let size = ask(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, at)?;
            match start.checked_add(size).filter(|&next| next > at) {
                Some(next) => at = next,
                None => return Err(bad(format!("the driver has no memory at {at:#x}"))),
            }
        }
        Ok(Self {
            device: Arc::clone(device),
            base: pointer,
            bytes_max: bytes,
            kind: Kind::Given,
            committed: AtomicU64::new(bytes),
        })
    }

    /// Return its start address, constant for life.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Return its maximum size in bytes.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Return the mapped bytes from the start.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Acquire)
    }

    /// Return the device.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Map whole chunks until at least `bytes` bytes are mapped, or none: a failure leaves it unchanged. Return the mapped bytes.
    ///
    /// # Errors
    /// The device is full; more is requested than was reserved or given.
    pub fn grow_to(&self, bytes: u64) -> Result<u64> {
        if bytes > self.bytes_max {
            return Err(Error::invalid(
                "size of the arena",
                format!("{bytes} bytes wanted, {} reserved at most", self.bytes_max),
            ));
        }
        let Kind::Grows { range, chunk, one_at_a_time } = &self.kind else { return Ok(self.committed()) };
        let _alone = one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.committed();
        let mut now = before;
        while now < bytes {
            let step = (*chunk).min(self.bytes_max - now);
            if let Err(e) = range.map(now, step) {
                // Chunks mapped by this call are unmapped, last first. If even that fails the device is lost, which the error
                // reports.
                let _ = unmap_down(range, *chunk, now, before);
                return Err(e);
            }
            now += step;
        }
        self.committed.store(now, Ordering::Release);
        Ok(now)
    }

    /// Unmap every chunk beyond `bytes` bytes and return the rest. The caller guarantees, as when it enqueued work on that memory,
    /// that all of the work has ended.
    ///
    /// # Errors
    /// The memory was given, or the device is lost.
    pub fn shrink_to(&self, bytes: u64) -> Result<u64> {
        let Kind::Grows { range, chunk, one_at_a_time } = &self.kind else {
            return Err(Error::Unsupported {
                what: "giving back memory that the engine brought".to_owned(),
                needs: "it belongs to the engine".to_owned(),
            });
        };
        let _alone = one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner);
        let keep = bytes.checked_next_multiple_of(*chunk).map_or(self.bytes_max, |keep| keep.min(self.bytes_max));
        let now = self.committed();
        if keep >= now {
            return Ok(now);
        }
        // Published before the unmapping, so that a concurrent reader never sees memory that is gone.
        self.committed.store(keep, Ordering::Release);
        match unmap_down(range, *chunk, now, keep) {
            Ok(()) => Ok(keep),
            Err((left, e)) => {
                self.committed.store(left, Ordering::Release);
                Err(e)
            }
        }
    }
}

/// Unmap chunks from the end of the mapped part down to a size; on failure return how much is still mapped.
fn unmap_down(range: &Range, chunk: u64, mut now: u64, keep: u64) -> std::result::Result<(), (u64, Error)> {
    while now > keep {
        // Chunks begin at multiples of their size; only the last of the range can be short.
        let start = (now - 1) / chunk * chunk;
        range.unmap(start, now - start).map_err(|e| (now, e))?;
        now = start;
    }
    Ok(())
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.device.is_ours()
            && let Kind::Grows { range, chunk, .. } = &self.kind
        {
            // Only a lost device fails here, and its memory ends with its context.
            let _ = unmap_down(range, *chunk, *self.committed.get_mut(), 0);
        }
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if matches!(self.kind, Kind::Given) { ", given" } else { "" };
        write!(
            f,
            "Arena({} of {} bytes at {:#x} of cuda:{}{kind})",
            self.committed(),
            self.bytes_max,
            self.base,
            self.device.info().ordinal
        )
    }
}
