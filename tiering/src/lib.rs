//! The core: a virtual KV address space over tiers, sans-IO.
//!
//! [`Core::handle`] takes an [`api::Event`] and writes [`api::Action`]s into a caller-owned [`ActionBuf`]. The core owns no socket,
//! thread, clock, file or KV data, and is deterministic. It allocates only at construction, at attach, and when host memory is
//! granted.
#![forbid(unsafe_code)]

pub mod actions;
pub mod api;
mod block_api;
mod blocks;
mod config;
mod core;
mod counters;
mod disk;
mod error;
mod host;
mod index;
mod layer;
mod link;
mod lists;
pub mod mutants;
pub mod node;
mod paging;
pub mod predict;
pub mod recorder;
mod requests;
mod sessions;
mod tables;
mod trace;

pub use self::core::Core;
pub use actions::{ActionBuf, LIST_MAX};
pub use config::Class;
pub use counters::{ByTier, Counters, Edge, Hits, REASONS, Reason};
pub use error::Error;
pub use index::EntryStatus;
pub use kvtide_types::geometry::{CLASSES_MAX, FRAME_ALIGN, PLANES_MAX};
pub use recorder::{Recorder, Recording};
pub use requests::{Amount, Fill, Occupancy};
pub use tables::disk::BudgetReport;
pub use tables::index::{Absence, evict};
pub use trace::Trace;
