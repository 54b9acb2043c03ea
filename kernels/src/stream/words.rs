//! Words in host memory for which a stream waits, and which the host writes to release it.
//!
//! 1. A word only grows while its device is open, through all its owners. So a wait that was once released stays released.
//! 2. The device compares with sign and wrap-around: a wait for `v` ends when `(word - v) as i64 >= 0`.
//! 3. A target is armed at most [`AHEAD`] beyond the word. An owner that is dropped releases all targets that it can have armed, by
//!    adding twice that. A stream that reaches such a wait later does not stop there.
//! 4. The memory stays mapped and registered until the process ends, because a stream of the engine may reach a wait at any time
//!    after the word's owner is gone. Later words reuse it, so it is bounded by the maximum number of words at one time.

use super::Stream;
use crate::{Device, Error, Result, memory::pinned};
use std::{
    ptr::NonNull,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Distance between words: a line of the host's cache, so that two of them never share one.
const APART: usize = 64;

/// Words are mapped one page at a time.
const PAGE: usize = 4096;

/// Maximum words of a device at one time. An agent uses one per lane.
const WORDS_MAX: usize = 4096;

/// Maximum distance between a word and an armed target.
pub(crate) const AHEAD: u64 = 1 << 32;

/// `(word - value) as i64 >= 0`.
const WAIT_GEQ: u32 = 0;

/// A place for a word, in memory that is never unmapped.
#[derive(Clone, Copy)]
struct Slot {
    host: NonNull<AtomicU64>,
    device: u64,
}

// SAFETY: it points to an atomic in memory that is never unmapped.
unsafe impl Send for Slot {}

/// Free words of one device.
#[derive(Default)]
pub(crate) struct Words {
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    free: Vec<Slot>,
    made: usize,
}

/// A word for which a stream waits ([`Stream::wait_word`]) and which its owner releases.
pub struct WaitWord {
    device: Arc<Device>,
    slot: Slot,
    armed: AtomicU64,
}

// SAFETY: the word is an atomic in memory that is never unmapped.
unsafe impl Send for WaitWord {}
// SAFETY: as above.
unsafe impl Sync for WaitWord {}

impl WaitWord {
    /// Create a word.
    ///
    /// # Errors
    /// Streams of this device cannot wait for words, there are too many, or the memory cannot be allocated.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        device.works()?.stream_waits.demand("waiting for a word in a stream", device)?;
        Self::untried(device)
    }

    /// Create a word without checking that streams can wait for it, for the trial of that feature.
    pub(crate) fn untried(device: &Arc<Device>) -> Result<Self> {
        let mut slots = device.words.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.free.is_empty() {
            if slots.made >= WORDS_MAX {
                return Err(Error::Busy { what: "words that streams wait for", limit: WORDS_MAX });
            }
            let page = pinned::map_for_ever(device, PAGE)?;
            for at in (0..PAGE).step_by(APART) {
                // SAFETY: within the page that was just mapped, and aligned; zeroed memory is an atomic zero.
                let host = unsafe { page.host.add(at) }.cast();
                slots.free.push(Slot { host, device: page.device + at as u64 });
            }
            slots.made += PAGE / APART;
        }
        let Some(slot) = slots.free.pop() else {
            return Err(Error::Busy { what: "words that streams wait for", limit: WORDS_MAX });
        };
        let word = Self { device: Arc::clone(device), slot, armed: AtomicU64::new(0) };
        word.armed.store(word.value(), Ordering::Relaxed);
        Ok(word)
    }

    /// Return the next target: a wait for it ends when it, or a later one, is released.
    ///
    /// # Errors
    /// More targets are armed than can be distinguished: none of them was ever released.
    pub fn arm(&self) -> Result<u64> {
        let target = self.armed.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if target.wrapping_sub(self.value()) > AHEAD {
            return Err(Error::Busy { what: "waits for one word", limit: AHEAD as usize });
        }
        Ok(target)
    }

    /// End every wait for this target and earlier ones. The stream's next work sees everything that the host wrote before.
    pub fn release(&self, target: u64) {
        // Release: pairs with the device's read of the word. A fetch, because two threads may release different targets.
        let _ = self.word().fetch_update(Ordering::Release, Ordering::Relaxed, |now| {
            (target.wrapping_sub(now).cast_signed() > 0).then_some(target)
        });
    }

    /// End every wait armed so far.
    pub fn release_all(&self) {
        self.release(self.armed.load(Ordering::Relaxed));
    }

    /// Return the last released target.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.word().load(Ordering::Relaxed)
    }

    /// Return its address on the device.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.slot.device
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: only this word uses the slot, which is aligned and never unmapped.
        unsafe { self.slot.host.as_ref() }
    }
}

impl Drop for WaitWord {
    fn drop(&mut self) {
        if !self.device.is_ours() {
            return; // The device does not read a forked child's copy of the memory.
        }
        self.word().fetch_add(2 * AHEAD, Ordering::Release);
        self.device.words.slots.lock().unwrap_or_else(PoisonError::into_inner).free.push(self.slot);
    }
}

impl std::fmt::Debug for WaitWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WaitWord({} of {})", self.value(), self.armed.load(Ordering::Relaxed))
    }
}

impl Stream {
    /// Make everything enqueued from now on wait, on the device, until the word has reached the target.
    ///
    /// # Errors
    /// The word belongs to another device, the stream is being captured into a graph, or the device is lost.
    pub fn wait_word(&self, word: &WaitWord, target: u64) -> Result<()> {
        let device = &self.device;
        if device.context() != word.device.context() {
            return Err(Error::invalid(
                "word",
                format!("it is of {}, not of {}", word.device.info().label(), device.info().label()),
            ));
        }
        let Some(wait) = device.api().cuStreamWaitValue64_v2 else {
            return Err(Error::Unsupported {
                what: "waiting for a word in a stream".to_owned(),
                needs: "the driver lacks cuStreamWaitValue64_v2".to_owned(),
            });
        };
        self.outside_capture()?;
        let _entered = device.enter()?;
        // SAFETY: the word's memory is never unmapped; the stream lives.
        let code = unsafe { wait(self.handle(), word.address(), target, WAIT_GEQ) };
        device.check(code, "cuStreamWaitValue64", || self.label())
    }
}
