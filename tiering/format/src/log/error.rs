//! Errors of the index log.

use super::cipher::CipherError;
use std::io;

/// Error of an operation on the index log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// An I/O operation failed.
    #[error("cannot {tried} {bytes} bytes of the index log at offset {offset}: {source}")]
    Io {
        /// The operation.
        tried: &'static str,
        /// Offset in the file, in bytes.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
        /// The cause.
        source: io::Error,
    },
    /// The record does not fit, even after a compaction.
    #[error(
        "the index log is full: a record needs {needed_bytes} bytes, {free_bytes} are free in a half of {half_bytes} bytes{}",
        .refused.as_ref().map(|why| format!("; the half cannot grow: {why}")).unwrap_or_default()
    )]
    Full {
        /// Bytes of the record.
        needed_bytes: u64,
        /// Free bytes for records of this kind.
        free_bytes: u64,
        /// Bytes of a half.
        half_bytes: u64,
        /// Error of the storage when more of the area was reserved, if the half is smaller than its area.
        refused: Option<String>,
    },
    /// The block's region is not granted.
    #[error("the index log has no slab for region {region}")]
    NotGranted {
        /// The region.
        region: u32,
    },
    /// The record is invalid.
    #[error("invalid record for region {region}: {what}")]
    Nonsense {
        /// The region.
        region: u32,
        /// The defect.
        what: &'static str,
    },
    /// The record of a block in an encrypted slab cannot be encrypted.
    #[error("cannot encrypt a record for region {region}: {source}")]
    Cipher {
        /// The region.
        region: u32,
        /// The cause.
        source: CipherError,
    },
    /// An earlier device flush failed. The device may have dropped unflushed writes, and a later flush would not report that.
    #[error("the index log accepts no more records: a device flush failed")]
    Failed,
    /// The start numbers are exhausted.
    #[error("the start numbers of the index log are exhausted (epoch {epoch:#x})")]
    Epochs {
        /// Highest epoch in the log.
        epoch: u64,
    },
    /// The log area in the superblock is invalid.
    #[error("the superblock has an invalid log area: {log_bytes} bytes at offset {log_offset}")]
    Layout {
        /// Offset of the area.
        log_offset: u64,
        /// Bytes of the area.
        log_bytes: u64,
    },
}
