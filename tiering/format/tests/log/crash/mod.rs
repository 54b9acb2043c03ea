//! Crash images: possible contents of a disk after `kill -9` and after a power cut, at every write, and the recovery from them.
//!
//! A [`disk::Disk`] journals all writes and flushes of a history, of pages and of the log. In between, the driver
//! ([`world::World`]) journals its requests and the guarantees that it got. Afterwards the journal is walked: before and after each
//! write, images are made ([`images`]) and the log is opened on each. [`model::Model`] knows which blocks must, may and must not be
//! found.

mod disk;
mod exhaustive;
mod images;
mod model;
mod random;
mod walk;
mod world;

pub use kvtide_types::random::Random as Dice;
