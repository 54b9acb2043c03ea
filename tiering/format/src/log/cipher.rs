//! Encryption of records. The log stores the bytes; the implementation of [`Cipher`] holds the keys.

use super::types::{Salt, SlabHeader};

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 12;
/// Bytes of an authentication tag.
pub const TAG_BYTES: usize = 16;

/// Authenticated encryption of block record bodies in encrypted slabs (AES-256-GCM or similar).
pub trait Cipher: Send {
    /// Learn a salt that was read from the log or was just added to it. Records refer to it by number.
    fn learn(&mut self, salt: &Salt);

    /// Encrypt `body` in place for the slab's domain, with the subkey derived from the salt for records, and return the tag.
    ///
    /// The log never reuses a nonce under one salt, provided that each start uses new salts.
    ///
    /// # Errors
    /// The domain's key or the salt is unknown.
    fn seal(
        &mut self,
        slab: &SlabHeader,
        salt: u32,
        nonce: &[u8; NONCE_BYTES],
        associated: &[u8],
        body: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], CipherError>;

    /// Decrypt `body` in place.
    ///
    /// # Errors
    /// The domain's key or the salt is unknown, or authentication fails.
    fn open(
        &mut self,
        slab: &SlabHeader,
        salt: u32,
        nonce: &[u8; NONCE_BYTES],
        associated: &[u8],
        body: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), CipherError>;
}

/// Reason why a record cannot be encrypted or decrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CipherError {
    /// The key or the salt is unknown.
    #[error("the key or the salt is unknown")]
    NoKey,
    /// The bytes were changed, or encrypted with another key.
    #[error("authentication failed: the bytes were changed or encrypted with another key")]
    Forged,
}

/// Reborrow an optional cipher.
pub(super) fn lend<'a>(cipher: &'a mut Option<&mut dyn Cipher>) -> Option<&'a mut dyn Cipher> {
    match cipher {
        Some(cipher) => Some(&mut **cipher),
        None => None,
    }
}
