//! On-disk format of the NVMe tier: superblock, slot layout, page checksums, and the index log. `docs/design/format.md` describes it.
//!
//! This is arithmetic and encoding only: all I/O goes through [`log::Storage`], and nothing depends on sequences or sessions. The I/O
//! threads, the core and the simulator use it.
#![forbid(unsafe_code)]

mod checksum;
pub mod log;
mod slot;
mod superblock;

pub use checksum::PageKey;
pub(crate) use checksum::crc32c;
pub use slot::{SECTOR, SlotLayout};
pub use superblock::{
    KEY_SECTORS, KEYS_OFFSET, STORE_FILE, SUPERBLOCK_BYTES, SUPERBLOCK_COPIES, Superblock, SuperblockError,
};
