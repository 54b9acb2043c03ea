//! Codecs and encryption of what stands on a disk: how a page becomes the bytes of its place in a slot, and back.
//!
//! * [`codec`]: one page, as fewer sectors. Pure; stored bytes are hostile bytes.
//! * [`keys`]: master, tenant and subkeys, salts and nonces.
//! * [`work`], [`pool`], [`arena`]: pages on their way through a few threads of the disk, and the memory between these and the device.
//!
//! A slab has a codec and is encrypted or not from its grant to its end; a changed configuration holds for slabs to come. Slabs
//! with neither never come in here.
//!
//! The disk's threads, `fsck`, `purge` and `bench codec` call in here. It must not know blocks, spaces or the device.

mod arena;
mod check;
mod codec;
mod keys;
mod pool;
mod stats;
mod work;

#[cfg(test)]
mod tests;

pub(crate) use arena::{Arena, Extent, taken};
pub(crate) use check::Checker;
pub(crate) use codec::{Codec, Coder, stored_bytes};
pub use keys::KeyError;
pub(crate) use keys::{Encryption, KeySource, Keyring, MasterKey, key_sectors};

pub(crate) use keys::Subkey;
pub(crate) use pool::Pool;
pub(crate) use stats::{CodeStatus, CodedStatus};
pub(crate) use work::{Page, Work};

use keys::{Spent, Stored, TenantKey};
use std::sync::Arc;

/// How pages of a slab are stored, if not as they are.
#[derive(Debug)]
pub(crate) struct SlabCode {
    /// Of the disk.
    store: u128,
    codec: Codec,
    /// The key of the slab's domain, if it is encrypted.
    key: Option<Arc<TenantKey>>,
}

impl SlabCode {
    /// Whether it has a codec: records keep how many sectors each page takes.
    pub fn is_coded(&self) -> bool {
        self.codec != Codec::None
    }

    /// Whether it is encrypted: records keep each page's write number and tag, and the slot's salt.
    pub fn is_encrypted(&self) -> bool {
        self.key.is_some()
    }

    /// Takes write numbers for so many pages of a slot: with the subkey that they are for, the salt's number, and the first.
    ///
    /// # Errors
    /// [`Spent`]; also if it is not encrypted.
    pub fn take(&self, count: u32, under: u32) -> Result<(Arc<Subkey>, u32, u32), Spent> {
        self.key.as_ref().ok_or(Spent::None)?.take(count, under)
    }

    /// How a page of it stands on the disk.
    pub fn stored(&self, page_bytes: u32, sectors: u16) -> Stored {
        Stored { codec: self.codec.id(), sectors, page_bytes }
    }

    /// The subkey that pages under a salt were encrypted with; nothing if it is not encrypted, or the salt is not known.
    pub fn subkey(&self, salt: u32) -> Option<Arc<Subkey>> {
        self.key.as_ref()?.pages(salt)
    }

    /// Whether pages are decrypted in their frames.
    pub fn is_read_in_place(&self) -> bool {
        self.key.is_some() && self.codec == Codec::None
    }

    /// Whether a page can have been stored so.
    pub fn can_hold(&self, page_bytes: u32, sectors: u16) -> bool {
        codec::is_possible(self.codec, page_bytes, sectors)
    }
}
