//! The plain model: what every sequence holds and which hashes were published, in ordinary collections.
//!
//! It knows nothing of tiers, frames, jobs or time; whatever the system under test does, a reader must see what stands here.

mod attention;
mod library;
mod text;

pub use attention::{Shares, attention};
pub use library::Library;
pub use text::{Text, needed, tag};
