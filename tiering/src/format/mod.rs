//! What stands on NVMe, as bytes: pure arithmetic and encoding, described in `docs/format.md`. Those who read and write files
//! use it, and so does the simulator; it knows no file, and nothing of sequences or sessions.

mod slot;

pub use slot::{SECTOR, SlotLayout};
