//! A tenant's key in memory, and the subkeys that encrypt the tenant's data.

use super::salts::{Salts, Spent};
use super::source::{KEY_BYTES, key};
use super::wiped::Wiped;
use kvtide_format::PageKey;
use ring::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce, Tag};
use ring::hkdf::{HKDF_SHA256, Salt};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use zeroize::Zeroizing;

/// The purpose of a subkey is an input of its derivation, so that a page is never accepted as a record.
const PURPOSES: [&[u8]; 2] = [b"kvtide pages 1", b"kvtide records 1"];
/// Bytes of associated data of a page.
const AAD_BYTES: usize = 40;

/// Purpose of a subkey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Pages,
    Records,
}

/// The key of one domain on one disk.
pub struct TenantKey {
    domain: String,
    salts: Arc<Salts>,
    keys: RwLock<Keys>,
}

struct Keys {
    secret: Zeroizing<[u8; KEY_BYTES]>,
    /// By purpose: subkeys by salt, one for each salt that live blocks use.
    subkeys: [BTreeMap<u32, Arc<Subkey>>; 2],
}

/// Omit all key bytes.
impl std::fmt::Debug for TenantKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TenantKey({})", self.domain)
    }
}

impl TenantKey {
    pub(super) fn new(domain: &str, secret: Zeroizing<[u8; KEY_BYTES]>, salts: Arc<Salts>) -> TenantKey {
        let keys = Keys { secret, subkeys: Default::default() };
        TenantKey { domain: domain.into(), salts, keys: RwLock::new(keys) }
    }

    /// Return the domain that it belongs to.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Take write numbers for `count` pages of a slot. Return the subkey for them, the salt's number and the first write number.
    pub fn take(&self, count: u32, under: u32) -> Result<(Arc<Subkey>, u32, u32), Spent> {
        let (salt, first) = self.salts.take(count, under)?;
        Ok((self.subkey(Purpose::Pages, salt).ok_or(Spent::None)?, salt, first))
    }

    /// Return the subkey of pages under a salt; None if the salt is unknown.
    pub fn pages(&self, salt: u32) -> Option<Arc<Subkey>> {
        self.subkey(Purpose::Pages, salt)
    }

    pub(super) fn subkey(&self, purpose: Purpose, salt: u32) -> Option<Arc<Subkey>> {
        let known = |keys: &Keys| keys.subkeys[purpose as usize].get(&salt).cloned();
        if let Some(subkey) = known(&self.keys.read().unwrap_or_else(PoisonError::into_inner)) {
            return Some(subkey);
        }
        let bytes = self.salts.get(salt)?;
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let prk = Salt::new(HKDF_SHA256, &bytes).extract(&*keys.secret);
        let subkey = Arc::new(Subkey(key(&prk, &[PURPOSES[purpose as usize]])));
        Some(Arc::clone(keys.subkeys[purpose as usize].entry(salt).or_insert(subkey)))
    }
}

/// Encoding of a stored page. The tag covers it, so that a forged length is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Number of the codec.
    pub codec: u8,
    /// Sectors of the coded page; 0: stored unchanged.
    pub sectors: u16,
    /// Bytes of the page.
    pub page_bytes: u32,
}

/// A key for one purpose and one salt.
pub struct Subkey(Wiped<LessSafeKey>);

/// Omit all key bytes.
impl std::fmt::Debug for Subkey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Subkey")
    }
}

impl Subkey {
    /// Encrypt the stored bytes of a page in place; `number` was taken for this page alone. The tag also covers the page's
    /// identity.
    pub fn seal_page(&self, page: &PageKey, number: u32, stored: Stored, bytes: &mut [u8]) -> [u8; 16] {
        self.seal(page_nonce(page, number), &page_aad(page, stored), bytes)
    }

    /// Decrypt the stored bytes of a page in place. Return false if they are not the complete bytes encrypted for this page, number
    /// and tag; `bytes` are then invalid.
    pub fn open_page(&self, page: &PageKey, number: u32, stored: Stored, bytes: &mut [u8], tag: &[u8; 16]) -> bool {
        self.open(page_nonce(page, number), &page_aad(page, stored), bytes, tag)
    }

    pub(super) fn seal(&self, nonce: [u8; NONCE_LEN], associated: &[u8], bytes: &mut [u8]) -> [u8; 16] {
        #[cfg(test)]
        nonces::note(self, nonce);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.0.get().seal_in_place_separate_tag(nonce, Aad::from(associated), bytes);
        tag.expect("pages are shorter than 64 GiB").as_ref().try_into().expect("tags are 16 bytes")
    }

    pub(super) fn open(&self, nonce: [u8; NONCE_LEN], associated: &[u8], bytes: &mut [u8], tag: &[u8; 16]) -> bool {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = self.0.get().open_in_place_separate_tag(nonce, Aad::from(associated), Tag::from(*tag), bytes, 0..);
        opened.is_ok()
    }
}

/// Return the nonce: write number, low 24 bits of region and slot, plane. The write number alone makes it unique (`salts`).
fn page_nonce(page: &PageKey, number: u32) -> [u8; NONCE_LEN] {
    let mut nonce = [0; NONCE_LEN];
    nonce[..4].copy_from_slice(&number.to_le_bytes());
    nonce[4..7].copy_from_slice(&page.region.to_le_bytes()[..3]);
    nonce[7..10].copy_from_slice(&page.slot.to_le_bytes()[..3]);
    nonce[10..].copy_from_slice(&page.plane.to_le_bytes());
    nonce
}

/// Return the associated data: store, region, slot, generation and plane, as in a page's checksum, and the encoding.
fn page_aad(page: &PageKey, stored: Stored) -> [u8; AAD_BYTES] {
    let mut aad = [0; AAD_BYTES];
    aad[..16].copy_from_slice(&page.store.to_le_bytes());
    aad[16..20].copy_from_slice(&page.region.to_le_bytes());
    aad[20..24].copy_from_slice(&page.slot.to_le_bytes());
    aad[24..28].copy_from_slice(&page.generation.to_le_bytes());
    aad[28..30].copy_from_slice(&page.plane.to_le_bytes());
    aad[30..32].copy_from_slice(&stored.sectors.to_le_bytes());
    aad[32..36].copy_from_slice(&stored.page_bytes.to_le_bytes());
    aad[36] = stored.codec;
    aad
}

/// All nonces that a test's thread has used, each with an identifier of its key.
#[cfg(test)]
pub(in crate::code) mod nonces {
    use super::{NONCE_LEN, Nonce, Subkey};
    use ring::aead::Aad;
    use std::cell::RefCell;
    use std::collections::HashSet;

    /// Identifier of the key, and the nonce.
    type Sealed = ([u8; 16], [u8; NONCE_LEN]);

    thread_local! {
        static SEEN: RefCell<Option<HashSet<Sealed>>> = const { RefCell::new(None) };
    }

    /// Record all nonces that this thread uses from now on; panic if one repeats under a key.
    pub fn collect() {
        SEEN.with(|seen| *seen.borrow_mut() = Some(HashSet::new()));
    }

    /// Return the number of nonces recorded.
    pub fn count() -> usize {
        SEEN.with(|seen| seen.borrow().as_ref().map_or(0, HashSet::len))
    }

    pub(super) fn note(subkey: &Subkey, nonce: [u8; NONCE_LEN]) {
        SEEN.with(|seen| {
            let mut seen = seen.borrow_mut();
            let Some(seen) = seen.as_mut() else { return };
            // The tag of a fixed message identifies the key.
            let fixed = Nonce::assume_unique_for_key([0xFF; NONCE_LEN]);
            let tag = subkey.0.get().seal_in_place_separate_tag(fixed, Aad::empty(), &mut [0; 16]).unwrap();
            let key = tag.as_ref().try_into().unwrap();
            assert!(seen.insert((key, nonce)), "nonce {nonce:?} was already used under this key");
        });
    }
}
