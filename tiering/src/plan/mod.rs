//! Planning of moves: promotion, write-back, eviction, reads from NVMe and writes to it, and the cyclic scan. It decides with the
//! tables of `pages` and `sessions` and sends jobs and transfers through `space`. It does not depend on the format of requests.

mod admission;
mod admit;
mod budget;
mod clean;
mod evict;
mod fault;
mod intent;
mod mapped;
mod pick;
mod place;
mod prefetch;
mod read_ahead;
mod read_in;
mod reclaim;
mod scan;
mod write_back;

pub use admit::Endurance;
pub(crate) use admit::Wear;
pub(crate) use intent::Intents;
pub(crate) use place::{Choice, choose};
pub(crate) use prefetch::{Link, Prefetch, Scores, Soft};
pub(crate) use read_in::{Fetch, Take, Want};

/// Attempts of a failed transfer before the waiting requests fail.
pub(crate) const IO_TRIES: u8 = 3;
