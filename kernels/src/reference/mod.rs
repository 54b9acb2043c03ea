//! Each kernel in plain Rust and f64: the tests compare with it, and CPU tensors use it.

pub mod append;
pub mod attention;
pub mod boundary;
pub mod crc;
mod element;
pub mod gather;

pub use element::Element;
