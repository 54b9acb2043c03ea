//! Reads traces: those of requests (one JSON object a line) and those of attention (safetensors).
//!
//! Everything in a file is a claim: what is cut off or contradicts itself is refused with the line or byte where it breaks, within
//! bounds, and never with a panic (fuzz target `traces`). Nothing in here knows what is done with a trace.

pub mod attention;
#[cfg(test)]
pub mod fixture;
mod numbers;
pub mod requests;

pub use attention::Attention;
pub use requests::Requests;

use std::fmt;

/// Where a trace breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Line, from 1.
    Line(u64),
    /// Byte, from 0.
    Byte(u64),
    /// Nowhere in particular.
    Whole,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Line(line) => write!(f, "line {line}"),
            At::Byte(byte) => write!(f, "byte {byte}"),
            At::Whole => write!(f, "as a whole"),
        }
    }
}

/// What is wrong with a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Where.
    pub at: At,
    /// How.
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
