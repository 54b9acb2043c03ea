//! Words by which the host completes the planes of gated steps, and the state of the gates on the device.
//!
//! 1. A gate is a kernel that waits for its plane of the step that the device is in. Nothing in its parameters depends on the step, so
//!    it may be part of a captured graph. It finds the step in [`GateState`] and the plane's words in host memory.
//! 2. The host runs ahead: it prepares a step while the device executes earlier ones. So step `s` has its own slot of words,
//!    `s % SLOTS`. The slot is reused when the stream has passed the end of step `s - SLOTS`.
//! 3. A plane's words are written before its word (Release), by the thread that holds the watchdog's lock. Before that they say that
//!    the plane timed out.
//! 4. At the end of a step the stream closes the gates: it zeroes the state. A closed gate returns at once and reads nothing else. So a
//!    graph that is launched outside of a gated step, or after its lane, reads no word and applies nothing. The state stays allocated if
//!    a gate was captured; its 32 bytes are the only memory that such a graph needs.

use kvtide_kernels::{
    Buffer, Device, Error, Event, Pinned, Priority, Result, Stream,
    params::{GateState, GateWords},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Gated steps that the host may be ahead of the device. A power of two.
pub(crate) const SLOTS: u64 = 8;

/// Time limit for zeroing the state, on a stream without other work.
const ZERO_MAX: Duration = Duration::from_secs(10);

/// The words and the state of one lane's gates.
pub(crate) struct Gates {
    /// Always there until `drop`.
    state: Option<Buffer>,
    words: Pinned,
    planes: u32,
    captured: AtomicBool,
}

impl Gates {
    /// Create closed gates for `planes` planes.
    pub fn new(device: &Arc<Device>, planes: u32) -> Result<Gates> {
        let state = Buffer::new(device, size_of::<GateState>())?;
        let words = Pinned::new(device, SLOTS as usize * planes as usize * size_of::<GateWords>())?;
        let (stream, zeroed) = (Stream::new(device, Priority::Normal)?, Event::new(device)?);
        // A copy, because a kernel could be queued behind the wait of another session's stream.
        // SAFETY: nothing else uses the memory yet; the words are zero, and longer than the state.
        unsafe { stream.copy(state.address(), words.address(), state.bytes())? };
        stream.record(&zeroed)?;
        if !zeroed.wait_until(Instant::now() + ZERO_MAX)? {
            return Err(Error::TimedOut { what: "zeroing the state of a lane's gates".into(), after: ZERO_MAX });
        }
        Ok(Gates { state: Some(state), words, planes, captured: AtomicBool::new(false) })
    }

    /// Return the device address of the state.
    pub fn state(&self) -> u64 {
        self.state.as_ref().map_or(0, Buffer::address)
    }

    /// Return the device address of the words.
    pub fn words(&self) -> u64 {
        self.words.address()
    }

    /// Return the number of planes.
    pub fn planes(&self) -> u32 {
        self.planes
    }

    /// Record that a graph contains a gate.
    pub fn capture(&self) {
        self.captured.store(true, Ordering::Relaxed);
    }

    /// Close the gates behind the stream's work.
    pub fn close(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the state lives as long as `self` or longer; only kernels of this stream access it.
        unsafe { stream.fill(self.state(), 0, size_of::<GateState>()) }
    }

    fn of(&self, step: u64, plane: u32) -> *mut GateWords {
        debug_assert!(plane < self.planes, "a plane of the table");
        let at = (step % SLOTS) as usize * self.planes as usize + plane as usize;
        self.words.as_ptr().cast::<GateWords>().wrapping_add(at)
    }

    fn word(&self, step: u64, plane: u32) -> &AtomicU64 {
        // SAFETY: within the mapping, aligned; `word` is the first field, and only accessed as an atomic.
        unsafe { &*self.of(step, plane).cast::<AtomicU64>() }
    }

    /// Write a plane's words, which the device does not read before its word is stored.
    fn write(&self, step: u64, plane: u32, end: u32, status: u32, all: bool) {
        let words = self.of(step, plane);
        // SAFETY: within the mapping; the device reads it only after the word.
        unsafe {
            (&raw mut (*words).end).write_volatile(end);
            (&raw mut (*words).status).write_volatile(status);
            (&raw mut (*words).all).write_volatile(all.into());
        }
    }

    /// Prepare the words of a step whose slot the device does not use any more.
    pub fn prepare(&self, step: u64, end: u32, status: u32) {
        (0..self.planes).for_each(|plane| self.write(step, plane, end, status, true));
    }

    /// Complete a plane with the updates before `end`. `all`: the later planes of the step are complete too.
    pub fn complete(&self, step: u64, plane: u32, end: u32, status: u32, all: bool) {
        self.write(step, plane, end, status, all);
        self.word(step, plane).store(step, Ordering::Release);
    }

    /// Let the device pass every plane of the step, with the words as they are.
    pub fn release(&self, step: u64) {
        (0..self.planes).for_each(|plane| self.word(step, plane).store(step, Ordering::Release));
    }
}

impl Drop for Gates {
    fn drop(&mut self) {
        match self.state.take() {
            Some(state) if self.captured.load(Ordering::Relaxed) => state.leak(),
            state => drop(state),
        }
    }
}
