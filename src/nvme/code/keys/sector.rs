//! A tenant key on the disk. It has a sector of its own, so that overwriting that sector erases all of the tenant's data.
//!
//! ```text
//! offset  bytes  field
//!      0      8  magic "kvtidkey"
//!      8      4  version, 1
//!     12      4  zero
//!     16     16  store id
//!     32     16  id of the master key that wrapped it
//!     48      1  bytes of the domain's name, 1 to 64
//!     49     64  the name
//!    113     15  zero
//!    128     12  nonce
//!    140     32  the key, AES-256-GCM; the bytes before the nonce are the associated data
//!    172     16  tag
//!    188   3904  zero
//!   4092      4  CRC-32C of the bytes before
//! ```
//! A sector of zeros is free.

use super::source::{ID_BYTES, KEY_BYTES, KeyId, Wrapper};
use crc_fast::{CrcAlgorithm, checksum};
use kvtide_format::SECTOR;
use kvtide_format::log::DOMAIN_BYTES_MAX;
use ring::aead::NONCE_LEN;
use zeroize::Zeroizing;

pub(super) const BYTES: usize = SECTOR as usize;
const MAGIC: &[u8; 8] = b"kvtidkey";
const VERSION: u32 = 1;
const NAME: usize = 49;
const NONCE: usize = 128;
const KEY: usize = NONCE + NONCE_LEN;
const TAG: usize = KEY + KEY_BYTES;
const CRC: usize = BYTES - 4;

/// A sector that holds a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sector {
    /// Id of the master key that wrapped it.
    pub master: KeyId,
    /// The domain.
    pub domain: String,
    bytes: Box<[u8; BYTES]>,
}

/// Content of a sector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Empty.
    Free,
    /// A key of this store.
    Key(Sector),
    /// A key of another store or of a later version, or a damaged sector.
    Other(&'static str),
}

/// Wrap a key and encode its sector. The name has 1 to [`DOMAIN_BYTES_MAX`] bytes.
pub(super) fn encode(
    store: u128,
    domain: &str,
    wrapper: &Wrapper,
    nonce: [u8; NONCE_LEN],
    secret: &[u8; KEY_BYTES],
) -> Box<[u8; BYTES]> {
    let mut bytes = Box::new([0; BYTES]);
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, MAGIC);
    put(8, &VERSION.to_le_bytes());
    put(16, &store.to_le_bytes());
    put(32, &wrapper.id.0);
    assert!((1..=DOMAIN_BYTES_MAX).contains(&domain.len()), "invalid domain name of {} bytes", domain.len());
    put(NAME - 1, &[domain.len() as u8]);
    put(NAME, domain.as_bytes());
    put(NONCE, &nonce);
    let mut wrapped = Zeroizing::new(*secret);
    let tag = wrapper.wrap(nonce, &bytes[..NONCE], &mut wrapped);
    bytes[KEY..TAG].copy_from_slice(&*wrapped);
    bytes[TAG..TAG + tag.len()].copy_from_slice(&tag);
    let crc = crc32c(&bytes[..CRC]);
    bytes[CRC..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Decode a sector.
pub(super) fn look(store: u128, bytes: &[u8; BYTES]) -> Found {
    if bytes.iter().all(|byte| *byte == 0) {
        return Found::Free;
    }
    if bytes[..8] != *MAGIC || bytes[CRC..] != crc32c(&bytes[..CRC]).to_le_bytes() {
        return Found::Other("damaged");
    }
    if bytes[8..12] != VERSION.to_le_bytes() {
        return Found::Other("later version");
    }
    if bytes[16..32] != store.to_le_bytes() {
        return Found::Other("another store");
    }
    let name = bytes[NAME..].get(..usize::from(bytes[NAME - 1])).filter(|name| name.len() <= DOMAIN_BYTES_MAX);
    let domain = name.and_then(|name| std::str::from_utf8(name).ok()).filter(|name| !name.is_empty());
    let Some(domain) = domain else { return Found::Other("no valid domain name") };
    let mut master = [0; ID_BYTES];
    master.copy_from_slice(&bytes[32..48]);
    Found::Key(Sector { master: KeyId(master), domain: domain.into(), bytes: Box::new(*bytes) })
}

impl Sector {
    /// Unwrap the key; None if authentication fails.
    pub fn open(&self, wrapper: &Wrapper) -> Option<Zeroizing<[u8; KEY_BYTES]>> {
        let field = |at: usize, bytes: usize| &self.bytes[at..at + bytes];
        let nonce = field(NONCE, NONCE_LEN).try_into().ok()?;
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        key.copy_from_slice(field(KEY, KEY_BYTES));
        let tag = field(TAG, 16).try_into().ok()?;
        wrapper.unwrap(nonce, field(0, NONCE), &mut key, tag).then_some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::MasterKey;
    use super::*;

    #[test]
    fn a_key_comes_back_from_its_sector_and_from_no_other() {
        let (wrapper, other) = (MasterKey::of(1).wrapper(9), MasterKey::of(2).wrapper(9));
        let secret = std::array::from_fn(|at| at as u8);
        let bytes = encode(9, "büro", &wrapper, [3; 12], &secret);
        let Found::Key(sector) = look(9, &bytes) else { panic!("{:?}", look(9, &bytes)) };
        assert_eq!((sector.domain.as_str(), sector.master), ("büro", wrapper.id));
        assert_eq!(sector.open(&wrapper).as_deref(), Some(&secret));
        assert_eq!(sector.open(&other), None);
        assert!(!bytes.windows(8).any(|window| window == &secret[..8]), "the key is not stored in plain");
        assert_eq!(look(8, &bytes), Found::Other("another store"));
        assert_eq!(look(9, &[0; BYTES]), Found::Free);
    }

    #[test]
    fn every_flipped_bit_of_a_sector_is_seen() {
        let wrapper = MasterKey::of(1).wrapper(9);
        let bytes = encode(9, "a", &wrapper, [3; 12], &[5; 32]);
        for bit in 0..BYTES * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(look(9, &flipped), Found::Other(_)), "bit {bit}");
            // Also with a recomputed CRC.
            let crc = crc32c(&flipped[..CRC]);
            flipped[CRC..].copy_from_slice(&crc.to_le_bytes());
            if let Found::Key(sector) = look(9, &flipped)
                && bit < (TAG + 16) * 8
            {
                assert_eq!(sector.open(&wrapper), None, "bit {bit}");
            }
        }
    }
}
