//! Index log: a persistent record of which block each slot of a disk holds, so that a restart finds the blocks again.
//!
//! Each disk has one log, in the area that the superblock names. The area has two halves, of which one is in use.
//! `docs/design/format.md` describes the bytes.
//!
//! All I/O goes through [`Storage`]: the daemon's log thread passes a file, and tests pass memory from which they take crash
//! images. The log handles regions, slots, hashes and checksums. It does not depend on sequences, sessions or threads.

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
