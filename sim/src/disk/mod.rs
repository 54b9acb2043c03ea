//! A simulated disk: regions that keep what they held whoever gets them next, slots whose contents are known by block generation
//! and plane, and transfers that move a page at a time, in any order, when they please.
//!
//! The daemon of a world drives it. It plays the shell's side of the core's contract: what is granted, which slot is whose, what
//! a checksum says. It knows nothing of sessions, sequences or the model; what it rules out is misuse of the disk alone.

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
