//! On-disk format of the NVMe tier: superblock, slot layout and page checksums. `docs/design/format.md` describes it.
//!
//! This module is arithmetic and encoding only: it opens no files and does not depend on sequences or sessions. The I/O threads and
//! the simulator use it.

mod checksum;
mod slot;
mod superblock;

pub use checksum::PageKey;
pub(crate) use checksum::crc32c;
pub use slot::{SECTOR, SlotLayout};
pub use superblock::{KEY_SECTORS, KEYS_OFFSET, SUPERBLOCK_BYTES, SUPERBLOCK_COPIES, Superblock, SuperblockError};
