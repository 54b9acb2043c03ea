//! What stands on NVMe, as bytes: pure arithmetic and encoding, described in `docs/format.md`. Those who read and write files
//! use it, and so does the simulator; it knows no file, and nothing of sequences or sessions.

mod checksum;
mod slot;
mod superblock;

pub use checksum::PageKey;
pub(crate) use checksum::crc32c;
pub use slot::{SECTOR, SlotLayout};
pub use superblock::{KEY_SECTORS, KEYS_OFFSET, SUPERBLOCK_BYTES, SUPERBLOCK_COPIES, Superblock, SuperblockError};
