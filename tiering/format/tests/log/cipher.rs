//! A keyed, authenticated cipher for tests; not secure.

use kvtide_format::log::{Cipher, CipherError, NONCE_BYTES, Salt, SlabHeader, TAG_BYTES};
use std::collections::{BTreeMap, HashSet};

/// A cipher with one key.
#[derive(Clone, Default)]
pub struct Toy {
    pub key: u64,
    pub salts: BTreeMap<u32, [u8; 32]>,
    /// Nonces by salt: each may be used once.
    pub nonces: HashSet<(u32, [u8; NONCE_BYTES])>,
}

impl Toy {
    pub fn new(key: u64) -> Toy {
        Toy { key, ..Toy::default() }
    }

    fn stream(&self, salt: u32, nonce: &[u8], domain: &str) -> Result<crate::crash::Dice, CipherError> {
        let salt = self.salts.get(&salt).ok_or(CipherError::NoKey)?;
        let bytes = salt.iter().chain(nonce).chain(domain.as_bytes());
        Ok(crate::crash::Dice::new(
            bytes.fold(self.key, |h, byte| (h ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3)),
        ))
    }

    fn tag(key: u64, associated: &[u8], body: &[u8]) -> [u8; TAG_BYTES] {
        let fold = |seed: u64| {
            associated
                .iter()
                .chain(body)
                .fold(key ^ seed, |h, byte| (h ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3))
        };
        let mut tag = [0; TAG_BYTES];
        tag[..8].copy_from_slice(&fold(1).to_le_bytes());
        tag[8..].copy_from_slice(&fold(2).to_le_bytes());
        tag
    }
}

impl Cipher for Toy {
    fn learn(&mut self, salt: &Salt) {
        self.salts.insert(salt.number, salt.bytes);
    }

    fn seal(
        &mut self,
        slab: &SlabHeader,
        salt: u32,
        nonce: &[u8; NONCE_BYTES],
        associated: &[u8],
        body: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], CipherError> {
        assert!(self.nonces.insert((salt, *nonce)), "a nonce came twice");
        let mut stream = self.stream(salt, nonce, &slab.domain)?;
        body.iter_mut().for_each(|byte| *byte ^= stream.next() as u8);
        Ok(Toy::tag(self.key, associated, body))
    }

    fn open(
        &mut self,
        slab: &SlabHeader,
        salt: u32,
        nonce: &[u8; NONCE_BYTES],
        associated: &[u8],
        body: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), CipherError> {
        if Toy::tag(self.key, associated, body) != *tag {
            return Err(CipherError::Forged);
        }
        let mut stream = self.stream(salt, nonce, &slab.domain)?;
        body.iter_mut().for_each(|byte| *byte ^= stream.next() as u8);
        Ok(())
    }
}
