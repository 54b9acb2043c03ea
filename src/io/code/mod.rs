//! Codecs and encryption of what stands on a disk: how a page becomes the bytes of its place in a slot, and back.
//!
//! * [`codec`]: one page, as fewer sectors. Pure; stored bytes are hostile bytes.
//! * [`keys`]: master, tenant and subkeys, salts and nonces.
//!
//! A slab has a codec and is encrypted or not from its grant to its end; a changed configuration holds for slabs to come. Slabs
//! with neither never come in here.
//!
//! The disk's threads, `purge` and `bench codec` call in here. It must not know blocks, spaces or the device.

mod codec;
mod keys;

pub(crate) use codec::Codec;
pub use keys::KeyError;
pub(crate) use keys::{Encryption, KeySource, Keyring, MasterKey};

use keys::TenantKey;
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
}
