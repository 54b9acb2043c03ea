//! What is wrong with a configuration: which file, which line, which key, and what is allowed.

use super::ByteSize;
use std::io;
use std::path::PathBuf;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file could not be read.
    #[error("cannot {action}: {}: {source}", .path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It does not parse, or has a key that does not exist.
    #[error("{file}:{line}:{column}: {message}\n    {snippet}")]
    Syntax {
        /// Name of the file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// The line's text.
        snippet: String,
        /// What is wrong and what is allowed.
        message: String,
    },
    /// A value is out of its range.
    #[error("{file}: {value}: expected {expected}")]
    Value {
        /// Name of the file.
        file: String,
        /// Key, value and place.
        value: String,
        /// What is allowed.
        expected: String,
    },
    /// Two values contradict each other.
    #[error("{file}: {a} contradicts {b}: {rule}")]
    Contradiction {
        /// Name of the file.
        file: String,
        /// Key, value and place of one side.
        a: String,
        /// Key, value and place of the other.
        b: String,
        /// What must hold.
        rule: String,
    },
    /// The host tier is larger than what can be had.
    #[error("tiers.host.capacity = {capacity} exceeds {source_of_limit}, which is {limit}")]
    HostTier {
        /// What is configured.
        capacity: ByteSize,
        /// What can be had.
        limit: ByteSize,
        /// Who says so.
        source_of_limit: String,
    },
}
