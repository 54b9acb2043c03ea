//! Tenant tokens: they identify processes that the daemon cannot identify by uid, such as those in a container.

use super::codec::{Reader, Writer, within};
use crate::error::Error;
use alloc::vec::Vec;
use core::fmt;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Minimum bytes of a token: a random text of this length has 128 bits or more, in any encoding.
pub const TOKEN_BYTES_MIN: usize = 32;
/// Maximum bytes of a token.
pub const TOKEN_BYTES_MAX: usize = 512;

/// A secret of [`TOKEN_BYTES_MIN`] to [`TOKEN_BYTES_MAX`] bytes. It is overwritten when it is dropped, and never printed.
#[derive(Clone)]
pub struct Token(Zeroizing<Vec<u8>>);

impl Token {
    /// Parse the content of a token file; surrounding white space is not part of the token.
    pub fn new(content: &[u8]) -> Result<Token, Error> {
        let secret = content.trim_ascii();
        within("token", "length", secret.len() as u64, TOKEN_BYTES_MIN as u64, TOKEN_BYTES_MAX as u64)?;
        Ok(Token(Zeroizing::new(secret.into())))
    }

    /// Return the secret: for sending it and for hashing it.
    #[must_use]
    pub fn secret(&self) -> &[u8] {
        &self.0
    }

    /// Write length and bytes; length 0 means no token. The token is the last field, so that no growth of the message leaves a copy
    /// of it behind.
    pub(super) fn write(token: Option<&Token>, w: &mut Writer) {
        let secret = token.map_or(&[][..], Token::secret);
        w.reserve(2 + secret.len()).u16(secret.len() as u16).raw(secret);
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Option<Token>, Error> {
        let length = usize::from(r.u16("token")?);
        if length == 0 {
            return Ok(None);
        }
        within("hello", "length of the token", length as u64, TOKEN_BYTES_MIN as u64, TOKEN_BYTES_MAX as u64)?;
        let secret = r.raw(length, "token")?;
        if secret.trim_ascii().len() != length {
            return Err(super::codec::wrong("hello", "token", "surrounded by white space", "only the token"));
        }
        Ok(Some(Token(Zeroizing::new(secret.into()))))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(secret)")
    }
}

/// Compares in constant time.
impl PartialEq for Token {
    fn eq(&self, other: &Token) -> bool {
        self.secret().ct_eq(other.secret()).into()
    }
}

impl Eq for Token {}
