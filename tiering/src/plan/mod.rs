//! Planning of moves: promotion, write-back, eviction, reads from NVMe and writes to it, and the cyclic scan. It decides with the
//! tables of `pages` and `sessions` and sends jobs and transfers through `space`. It does not depend on the format of requests.

mod admit;
mod clean;
mod evict;
mod fault;
mod mapped;
mod pick;
mod prefetch;
mod read_ahead;
mod read_in;
mod reclaim;
mod scan;
mod scheduled;
mod write_back;

pub(crate) use prefetch::{Prediction, Prefetch, Scores};
pub(crate) use read_in::{Fetch, Take, Want};
pub(crate) use scheduled::ScheduledPrefetches;
