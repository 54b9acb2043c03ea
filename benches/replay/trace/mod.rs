//! Readers of traces: request traces (one JSON object per line) and attention traces (safetensors).
//!
//! Files are untrusted. A truncated or inconsistent file is rejected with the line or byte of the error, within limits and without
//! a panic (fuzz target `traces`). This module does not depend on the use of a trace.

pub mod attention;
#[cfg(test)]
pub mod fixture;
pub mod requests;

pub use attention::Attention;
pub use requests::Requests;

use std::fmt;

/// Position of an error in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Line, from 1.
    Line(u64),
    /// Byte, from 0.
    Byte(u64),
    /// The whole file.
    Whole,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Line(line) => write!(f, "line {line}"),
            At::Byte(byte) => write!(f, "byte {byte}"),
            At::Whole => write!(f, "whole file"),
        }
    }
}

/// Error of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Position.
    pub at: At,
    /// Description.
    pub why: String,
}

impl Broken {
    fn line(line: u64, why: impl Into<String>) -> Broken {
        Broken { at: At::Line(line), why: why.into() }
    }

    fn byte(byte: usize, why: impl Into<String>) -> Broken {
        Broken { at: At::Byte(byte as u64), why: why.into() }
    }

    fn whole(why: impl Into<String>) -> Broken {
        Broken { at: At::Whole, why: why.into() }
    }
}
