//! What each kernel computes, in plain Rust and f64: the tests compare with it, and tensors of the CPU use it.

mod element;

pub use element::Element;
