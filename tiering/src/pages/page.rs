//! One page: where its copies are.

use super::NO_SESSION;
use crate::api::NONE;
use serde::{Deserialize, Serialize};

const STORING: u8 = 1;
const LOST: u8 = 2;
const RETIRED: u8 = 4;

/// A page of a live block. 16 bytes; page id = block × planes + plane.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Page {
    /// Host frame with valid content, or none.
    pub host: u32,
    /// Head of the chain of tier-0 frames that show it or are about to, at most one a session; `session` says whose.
    pub frame: u32,
    pub session: u16,
    /// Jobs in flight that read the host frame.
    pub loads: u16,
    /// Jobs in flight or queued, in any session, that unpublish it from a frame that it has given up. It gets no new frame
    /// before they ended.
    pub leaving: u16,
    bits: u8,
    /// Stores that failed in a row.
    pub store_fails: u8,
}

const _: () = assert!(size_of::<Page>() == 16);

impl Default for Page {
    fn default() -> Self {
        Page { host: NONE, frame: NONE, session: NO_SESSION, loads: 0, leaving: 0, bits: 0, store_fails: 0 }
    }
}

impl Page {
    /// A Store of it is in flight, in some session.
    pub fn storing(&self) -> bool {
        self.bits & STORING != 0
    }

    /// It existed nowhere else and is gone.
    pub fn lost(&self) -> bool {
        self.bits & LOST != 0
    }

    /// Out of its window: never read again.
    pub fn retired(&self) -> bool {
        self.bits & RETIRED != 0
    }

    pub fn set_storing(&mut self, on: bool) {
        self.bits = self.bits & !STORING | if on { STORING } else { 0 };
    }

    pub fn set_lost(&mut self) {
        self.bits |= LOST;
    }

    pub fn set_retired(&mut self) {
        self.bits |= RETIRED;
    }
}
