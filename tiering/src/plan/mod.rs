//! What moves when: promotion, cleaning, eviction, reads from NVMe and writes to it, the cyclic scan. Decides with the tables of
//! `pages` and `sessions` and sends jobs and transfers through `space`; knows nothing of requests' syntax.

mod admission;
mod admit;
mod ahead;
mod budget;
mod clean;
mod evict;
mod fault;
mod intent;
mod pick;
mod place;
mod prefetch;
mod read_in;
mod scan;
mod squeeze;
mod window;
mod write_down;

pub use admit::Endurance;
pub(crate) use admit::Wear;
pub(crate) use intent::Intents;
pub(crate) use place::{Choice, choose};
pub(crate) use prefetch::{Link, Prefetch, Scores, Soft};
pub(crate) use read_in::{Fetch, Take, Want};

/// Tries of a failed transfer before whoever waits for it is told.
pub(crate) const IO_TRIES: u8 = 3;
