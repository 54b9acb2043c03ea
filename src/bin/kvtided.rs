//! `kvtided`.
fn main() {}
