//! Build helpers.
fn main() {}
