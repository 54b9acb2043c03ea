//! Encryption of records: the log keeps the bytes, somebody else has the keys.

use super::types::{Salt, SlabHeader};

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 12;
/// Bytes of an authentication tag.
pub const TAG_BYTES: usize = 16;

/// Seals and opens the bodies of block records of encrypted slabs (AES-256-GCM or its like).
pub trait Cipher: Send {
    /// A salt that was read from the log, or is about to be written to it; records name it by number.
    fn learn(&mut self, salt: &Salt);

    /// Encrypts `body` in place for the slab's domain, under the subkey that the salt gives for records, and returns the tag.
    /// The log never gives the same nonce twice under one salt, as long as salts are fresh at each start.
    ///
    /// # Errors
    /// The domain's key or the salt is not known.
    fn seal(
        &mut self,
        slab: &SlabHeader,
        salt: u32,
        nonce: &[u8; NONCE_BYTES],
        associated: &[u8],
        body: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], CipherError>;

    /// Decrypts `body` in place.
    ///
    /// # Errors
    /// The domain's key or the salt is not known, or the bytes are not what was sealed.
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

/// Why a record cannot be sealed or opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CipherError {
    /// There is no key for it here.
    #[error("no key for it")]
    NoKey,
    /// It is not what was sealed, or it was sealed with another key.
    #[error("it is not what was sealed under this key")]
    Forged,
}

/// Lends a cipher once more.
pub(super) fn lend<'a>(cipher: &'a mut Option<&mut dyn Cipher>) -> Option<&'a mut dyn Cipher> {
    match cipher {
        Some(cipher) => Some(&mut **cipher),
        None => None,
    }
}
