//! `kvtide`.
fn main() {}
