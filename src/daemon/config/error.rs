//! Configuration errors: file, line, key and allowed values.

use super::{ByteSize, Human};
use std::io;
use std::path::PathBuf;

/// An error in a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file could not be read.
    #[error("cannot {action}: {}: {source}", .path.display())]
    File {
        /// The attempted action.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is not valid TOML, or has an unknown key or a value of a wrong type.
    #[error("{file}:{line}:{column}: {message}\n    {snippet}")]
    Syntax {
        /// Name of the file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// Text of the line.
        snippet: String,
        /// The error and the allowed values.
        message: String,
    },
    /// A value is not allowed.
    #[error("{file}: {value}: expected {expected}")]
    Value {
        /// Name of the file.
        file: String,
        /// Key, value and origin.
        value: String,
        /// The allowed values.
        expected: String,
    },
    /// An environment variable has a value that is not allowed.
    #[error("the environment variable {name} is {value:?}: expected {expected}")]
    Variable {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
        /// The allowed values.
        expected: String,
    },
    /// Two values contradict each other.
    #[error("{file}: {a} contradicts {b}: {rule}")]
    Contradiction {
        /// Name of the file.
        file: String,
        /// Key, value and origin of one of them.
        a: String,
        /// Key, value and origin of the other.
        b: String,
        /// The violated rule.
        rule: String,
    },
    /// The host tier exceeds the memory of the machine or of the cgroup.
    #[error("tiers.host.capacity = {capacity} exceeds {source_of_limit}, which is {}. Reduce it", Human(.limit.0))]
    HostTier {
        /// The configured capacity.
        capacity: ByteSize,
        /// The limit.
        limit: ByteSize,
        /// Description of the limit and of the file that states it.
        source_of_limit: String,
    },
}
