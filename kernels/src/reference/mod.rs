//! Each kernel in plain Rust and f64: tests and measurements compare with it.

pub mod append;
pub mod attention;
pub mod boundary;
pub mod crc;
mod element;
pub mod gather;

pub use element::Element;
