//! The plain model: the content of every sequence and the published hashes, in ordinary collections.
//!
//! It does not know tiers, frames, jobs or time; a reader must always see the content in this model.

mod attention;
mod library;
mod text;

pub use attention::{Shares, attention};
pub use library::Library;
pub use text::{Text, needed, tag};
