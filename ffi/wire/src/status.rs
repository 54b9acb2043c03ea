//! Status codes.

pub use kvtide_types::Status;
