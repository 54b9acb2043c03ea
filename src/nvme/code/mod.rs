//! Codecs and encryption of pages on disk: convert a page to the bytes in its slot, and back.
//!
//! * [`codec`]: compress one page to fewer sectors. Pure functions; stored bytes are not trusted.
//! * [`keys`]: master keys, tenant keys and subkeys; salts and nonces.
//! * [`work`], [`pool`], [`arena`]: the disk's coding threads, their work items, and the memory between them and the device.
//!
//! A slab's codec and encryption are fixed when it is granted; a changed configuration applies to new slabs. Pages of slabs with
//! neither do not use this module.
//!
//! Used by the disk's threads, `fsck`, `purge` and `bench codec`. Must not depend on blocks, spaces or the device.

mod arena;
mod check;
mod codec;
mod keys;
mod pool;
mod stats;
mod work;

#[cfg(test)]
mod tests;

pub use arena::{Arena, Extent, taken};
pub use check::Checker;
pub use codec::{Codec, Coder, stored_bytes};
pub use keys::KeyError;
pub use keys::{Encryption, KeySource, Keyring, MasterKey, erase_sectors};

pub use keys::Subkey;
pub use pool::Pool;
pub use stats::{CodeStatus, CodedStatus};
pub use work::{Page, Work};

use keys::{Spent, Stored, TenantKey};
use std::sync::Arc;

/// Encoding of a slab's pages.
#[derive(Debug)]
pub struct SlabCode {
    /// Store id of the disk.
    store: u128,
    codec: Codec,
    /// The key of the slab's domain, if it is encrypted.
    key: Option<Arc<TenantKey>>,
}

impl SlabCode {
    /// Return true if it has a codec: records then contain the number of sectors of each page.
    pub fn is_coded(&self) -> bool {
        self.codec != Codec::None
    }

    /// Return true if it is encrypted: records then contain each page's write number and tag, and the slot's salt.
    pub fn is_encrypted(&self) -> bool {
        self.key.is_some()
    }

    /// Take write numbers for `count` pages of a slot; return their subkey, the salt's number and the first number.
    ///
    /// # Errors
    /// [`Spent`]; also if the slab is not encrypted.
    pub fn take(&self, count: u32, under: u32) -> Result<(Arc<Subkey>, u32, u32), Spent> {
        self.key.as_ref().ok_or(Spent::None)?.take(count, under)
    }

    /// Return the encoding of a page of this slab.
    pub fn stored(&self, page_bytes: u32, sectors: u16) -> Stored {
        Stored { codec: self.codec.code(), sectors, page_bytes }
    }

    /// Return the subkey of pages under a salt; None if the slab is not encrypted or the salt is unknown.
    pub fn subkey(&self, salt: u32) -> Option<Arc<Subkey>> {
        self.key.as_ref()?.pages(salt)
    }

    /// Return true if pages are decrypted in their frames.
    pub fn is_read_in_place(&self) -> bool {
        self.key.is_some() && self.codec == Codec::None
    }

    /// Return true if a page can have this number of sectors.
    pub fn can_hold(&self, page_bytes: u32, sectors: u16) -> bool {
        codec::is_possible(self.codec, page_bytes, sectors)
    }
}
