//! One page: where its copies are.

use super::NO_SESSION;
use crate::api::NONE;
use serde::{Deserialize, Serialize};

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
    /// A Store of it is in flight, in some session.
    pub storing: bool,
    /// It existed nowhere else and is gone.
    pub lost: bool,
    /// Out of its window: never read again.
    pub retired: bool,
    /// Stores that failed in a row.
    pub store_fails: u8,
}

impl Default for Page {
    fn default() -> Self {
        Page {
            host: NONE,
            frame: NONE,
            session: NO_SESSION,
            loads: 0,
            storing: false,
            lost: false,
            retired: false,
            store_fails: 0,
        }
    }
}
