//! One page and the locations of its copies.

use super::NO_SESSION;
use crate::api::NONE;
use serde::{Deserialize, Serialize};

const COPYING_OUT: u8 = 1;
const LOST: u8 = 2;
const OUT_OF_WINDOW: u8 = 4;
const ON_DISK: u8 = 8;
const WRITING: u8 = 16;
const READING: u8 = 32;
/// The two highest bits count consecutive failed reads.
const READ_FAILS: u32 = 6;

/// A page of a live block. 16 bytes; page id = block × planes + plane.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Page {
    /// Host frame with valid data, or none.
    pub host: u32,
    /// Head of the chain of tier-0 frames that show it or are about to, at most one per session. `session` is the session of the
    /// head.
    pub frame: u32,
    pub session: u16,
    /// Jobs in flight that read the host frame.
    pub loads: u16,
    /// Jobs in flight or queued, in any session, that invalidate it in a frame that it gave up. It gets no new frame before they
    /// have ended.
    pub invalidating: u16,
    bits: u8,
    /// Consecutive failed stores.
    pub copy_out_fails: u8,
}

const _: () = assert!(size_of::<Page>() == 16);

impl Default for Page {
    fn default() -> Self {
        Page { host: NONE, frame: NONE, session: NO_SESSION, loads: 0, invalidating: 0, bits: 0, copy_out_fails: 0 }
    }
}

impl Page {
    /// Return whether a CopyOut of it is in flight, in some session.
    pub fn copying_out(&self) -> bool {
        self.bits & COPYING_OUT != 0
    }

    /// Return whether its only copy was lost.
    pub fn lost(&self) -> bool {
        self.bits & LOST != 0
    }

    /// Return whether it is out of window: never read again.
    pub fn out_of_window(&self) -> bool {
        self.bits & OUT_OF_WINDOW != 0
    }

    /// Return whether its block's slot holds a valid copy.
    pub fn on_disk(&self) -> bool {
        self.bits & ON_DISK != 0
    }

    /// Return whether a transfer in flight writes it to its block's slot. It is not on disk meanwhile.
    pub fn writing(&self) -> bool {
        self.bits & WRITING != 0
    }

    /// Return whether a transfer in flight reads it from its block's slot. The target host frame becomes the page's only when the
    /// read succeeds.
    pub fn reading(&self) -> bool {
        self.bits & READING != 0
    }

    /// Return whether it is in host or on disk: a tier-0 copy can then be evicted without being stored.
    pub fn below(&self) -> bool {
        self.host != NONE || self.on_disk()
    }

    /// Return the number of consecutive failed reads from disk.
    pub fn read_fails(&self) -> u8 {
        self.bits >> READ_FAILS
    }

    pub fn set_read_fails(&mut self, fails: u8) {
        self.bits = self.bits & ((1 << READ_FAILS) - 1) | fails.min(3) << READ_FAILS;
    }

    pub fn set_on_disk(&mut self, on: bool) {
        self.bits = self.bits & !ON_DISK | if on { ON_DISK } else { 0 };
    }

    pub fn set_writing(&mut self, on: bool) {
        self.bits = self.bits & !WRITING | if on { WRITING } else { 0 };
    }

    pub fn set_reading(&mut self, on: bool) {
        self.bits = self.bits & !READING | if on { READING } else { 0 };
    }

    pub fn set_copying_out(&mut self, on: bool) {
        self.bits = self.bits & !COPYING_OUT | if on { COPYING_OUT } else { 0 };
    }

    pub fn set_lost(&mut self) {
        self.bits |= LOST;
    }

    pub fn set_out_of_window(&mut self) {
        self.bits |= OUT_OF_WINDOW;
    }
}
