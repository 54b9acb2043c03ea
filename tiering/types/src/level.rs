//! Durability of blocks, and kinds of attention scores.

use crate::{Raw, Status};

codes! {
    /// Durability of a published block, as requested and as reached.
    pub enum Level: u16, name: str {
        /// Findable while the daemon lives.
        Published = 0 "published",
        /// Data and index record written; survives `kill -9`.
        Stored = 1 "stored",
        /// After a device flush; survives power loss.
        Durable = 2 "durable",
    }
}

impl Raw<u16> for Level {
    fn put(self) -> u16 {
        self.code()
    }
    fn get(raw: u16) -> Result<Level, Status> {
        Level::from_code(raw).ok_or(Status::Invalid)
    }
}

codes! {
    /// Meaning of the shares in attention scores.
    pub enum ScoreKind: u8, name: str {
        /// Shares of attention that step `step` gave to the pages that it read.
        Mass = 0 "mass",
        /// Shares that digests estimate for the query of step `step`; reported before its `Mass`, or not at all.
        Query = 1 "query",
        /// Shares that digests estimate for a guess of the query of step `step`; reported before the plane's attention runs.
        Ahead = 2 "ahead",
    }
}
