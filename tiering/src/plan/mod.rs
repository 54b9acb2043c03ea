//! What moves when: promotion, cleaning, eviction, reads from NVMe and writes to it, the cyclic scan. Decides with the tables of
//! `pages` and `sessions` and sends jobs and transfers through `space`; knows nothing of requests' syntax.

mod ahead;
mod clean;
mod evict;
mod fault;
mod pick;
mod read_in;
mod scan;
mod squeeze;
mod write_down;

pub(crate) use read_in::{Fetch, Take, Want};

/// Tries of a failed transfer before whoever waits for it is told.
pub(crate) const IO_TRIES: u8 = 3;
