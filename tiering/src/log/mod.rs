//! The index log: which block stands in which slot of a disk, kept so that a restart finds it.
//!
//! One a disk, in the area that the superblock names, in two halves of which one is in use. It is pure over [`Storage`]: the
//! daemon's log thread gives it a file, tests give it memory from which they take crash images. It knows regions, slots, hashes
//! and checksums, and nothing of sequences, sessions or threads. The bytes are described in `docs/format.md`.

mod batch;
mod blocks;
mod bytes;
mod cipher;
mod compact;
mod error;
mod index;
mod live;
mod open;
mod record;
mod replay;
mod scan;
mod spool;
mod storage;
mod types;
mod writer;

pub use blocks::{Blocks, Counts, Recovered, RecoveredSlab};
pub use cipher::{Cipher, CipherError, NONCE_BYTES, TAG_BYTES};
pub use error::LogError;
pub use index::Log;
pub use open::inspect;
pub use replay::Progress;
pub use storage::Storage;
pub use types::{DOMAIN_BYTES_MAX, LogStatus, Put, Salt, SlabHeader, SpaceKey};
