//! A simulated disk: regions that keep their content across owners, slots with contents identified by block generation and
//! plane, and transfers that move one page at a time, in any order and at any time.
//!
//! The daemon of a world drives it. It implements the daemon's side of the core's contract: grants, owners of slots, and checksums.
//! It does not know sessions, sequences or the model; it detects only misuse of the disk.

mod fault;
mod grants;
mod ledger;
mod queue;
mod regions;

pub use fault::{DiskFault, DiskFaults};
pub use grants::{Grants, Misuse, Part};
pub use ledger::{Ledger, flip};
pub use queue::{DISK, Ended, Queue, Transfer};
pub use regions::Regions;
