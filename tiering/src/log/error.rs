//! What goes wrong with a log.

use super::cipher::CipherError;
use std::io;

/// What was tried on which bytes of the log, and why it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The device failed.
    #[error("cannot {tried} {bytes} bytes of the index log at offset {offset}: {source}")]
    Io {
        /// What was tried.
        tried: &'static str,
        /// Where, in bytes of the file.
        offset: u64,
        /// How many bytes.
        bytes: u64,
        /// Why.
        source: io::Error,
    },
    /// There is no room, also not after a compaction.
    #[error(
        "the index log is full: a record of {needed_bytes} bytes, {free_bytes} left of a half of {half_bytes}{}",
        .refused.as_ref().map(|why| format!(", which cannot grow: {why}")).unwrap_or_default()
    )]
    Full {
        /// Bytes of the record.
        needed_bytes: u64,
        /// Bytes left for records of its kind.
        free_bytes: u64,
        /// Bytes of a half.
        half_bytes: u64,
        /// Why the half is not as large as its area: what the storage said when more was reserved.
        refused: Option<String>,
    },
    /// A block of a region that is no slab.
    #[error("region {region} is not granted to anybody by the index log")]
    NotGranted {
        /// The region.
        region: u32,
    },
    /// What shall be recorded cannot be.
    #[error("a record for region {region} makes no sense: {what}")]
    Nonsense {
        /// The region.
        region: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// A block of an encrypted slab that cannot be encrypted.
    #[error("cannot encrypt a record for region {region}: {source}")]
    Cipher {
        /// The region.
        region: u32,
        /// Why.
        source: CipherError,
    },
    /// A device flush failed before. What a device did not flush it may have dropped, and a later flush would not tell.
    #[error("the index log takes no more records since a device flush failed")]
    Failed,
    /// The log says that there were so many starts that none can follow.
    #[error("the index log holds epoch {epoch:#x}, and no start can follow that")]
    Epochs {
        /// The highest epoch in it.
        epoch: u64,
    },
    /// The superblock names no log area that can be used.
    #[error("a log area of {log_bytes} bytes at offset {log_offset} cannot be used")]
    Layout {
        /// Where it begins.
        log_offset: u64,
        /// Its bytes.
        log_bytes: u64,
    },
}
