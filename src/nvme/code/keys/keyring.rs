//! All keys of a disk: tenant keys by domain, their sectors in the key area, and the salts.

use super::error::KeyError;
use super::salts::Salts;
use super::sector::{self, Found};
use super::source::{Encryption, KEY_BYTES, KeySource, MasterKey, Wrapper};
use super::tenant::{Purpose, Subkey, TenantKey};
use crate::code::{Codec, SlabCode};
use kvtide_format::log::{Cipher, CipherError, DOMAIN_BYTES_MAX, NONCE_BYTES, Salt, SlabHeader, Storage, TAG_BYTES};
use kvtide_format::{KEY_SECTORS, KEYS_OFFSET, SECTOR};
use ring::aead::NONCE_LEN;
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zeroize::Zeroizing;

/// Keys of a disk. The lock is held while a sector is written, by the log thread at a grant.
pub struct Keyring {
    store: u128,
    /// None without a master key: tenant keys then stay in memory.
    wrapper: Option<Wrapper>,
    encryption: Encryption,
    salts: Arc<Salts>,
    tenants: Mutex<Tenants>,
}

#[derive(Default)]
struct Tenants {
    /// Each with its sector number, if it has one.
    keys: Vec<(Option<u32>, Arc<TenantKey>)>,
    free: Vec<u32>,
}

/// Omit all key bytes.
impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keyring({} tenants)", self.tenants().keys.len())
    }
}

impl Keyring {
    /// Read the keys from the bytes of the key area. Nothing is written.
    ///
    /// # Errors
    /// Keys in the area are wrapped with another master key.
    pub fn open(
        store: u128,
        encryption: &Encryption,
        master: Option<&MasterKey>,
        area: &[u8],
    ) -> Result<Keyring, KeyError> {
        let wrapper = master.map(|master| master.wrapper(store));
        let salts = Arc::new(Salts::default());
        let mut tenants = Tenants::default();
        for (number, bytes) in (0..).zip(area.as_chunks::<{ sector::BYTES }>().0) {
            let found = match sector::look(store, bytes) {
                Found::Free => {
                    tenants.free.push(number);
                    continue;
                }
                Found::Key(found) => found,
                Found::Other(what) => {
                    tracing::warn!("sector {number} of the key area holds no key of this store; skipped: {what}");
                    continue;
                }
            };
            let Some(wrapper) = &wrapper else { return Err(KeyError::Missing { found: found.master.to_string() }) };
            if found.master != wrapper.id {
                let (found, configured) = (found.master.to_string(), wrapper.id.to_string());
                return Err(KeyError::Wrong { found, configured });
            }
            match found.open(wrapper) {
                Some(secret) => {
                    let key = TenantKey::new(&found.domain, secret, Arc::clone(&salts));
                    tenants.keys.push((Some(number), Arc::new(key)));
                }
                None => tracing::error!(
                    "the key of domain {:?} (sector {number} of the key area) is damaged; data encrypted with it cannot be read",
                    found.domain
                ),
            }
        }
        // Sectors are taken from the end: lowest number first.
        tenants.free.reverse();
        let encryption = encryption.clone();
        Ok(Keyring { store, wrapper, encryption, salts, tenants: Mutex::new(tenants) })
    }

    fn tenants(&self) -> MutexGuard<'_, Tenants> {
        // A poisoned lock is safe to use: a panic between the steps leaves at most an unused key.
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Return true if new slabs are encrypted.
    pub fn encrypts(&self) -> bool {
        self.encryption.encrypts()
    }

    /// Create the salt for the start with this number (`log::Recovered::run`). Call it after the log has reported the salts of its
    /// records. The log thread records the new salt ([`Keyring::unrecorded`]).
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn begin(&self, run: u32) -> Result<(), KeyError> {
        if self.encryption.source == KeySource::Off { Ok(()) } else { self.salts.begin(run) }
    }

    /// Return a salt that must be recorded in the log before the next block record. Call until it returns None.
    pub fn unrecorded(&self) -> Option<Salt> {
        self.salts.unrecorded()
    }

    /// Return a cipher for the log.
    pub fn cipher(self: &Arc<Keyring>) -> Box<dyn Cipher> {
        Box::new(Records { keyring: Arc::clone(self), last: None })
    }

    fn tenant(&self, domain: &str) -> Option<Arc<TenantKey>> {
        self.tenants().keys.iter().find(|(_, key)| key.domain() == domain).map(|(_, key)| Arc::clone(key))
    }

    /// Return the encoding of a slab; None if its pages are stored unchanged.
    ///
    /// # Errors
    /// The slab is encrypted and its domain has no key here, or its codec is unknown.
    pub fn code(&self, slab: &SlabHeader) -> Result<Option<Arc<SlabCode>>, KeyError> {
        let unknown = KeyError::Codec { region: slab.region, codec: slab.codec };
        let codec = Codec::from_code(slab.codec).ok_or(unknown)?;
        if codec == Codec::None && !slab.encrypted {
            return Ok(None);
        }
        let domain = &slab.domain;
        let key = if slab.encrypted {
            let unknown = || match self.encryption.source {
                KeySource::Ephemeral => KeyError::Forgotten { domain: domain.clone() },
                _ => KeyError::Unknown { domain: domain.clone() },
            };
            Some(self.tenant(domain).ok_or_else(unknown)?)
        } else {
            None
        };
        Ok(Some(Arc::new(SlabCode { store: self.store, codec, key })))
    }

    /// As [`Keyring::code`], for a slab that is being granted. A domain without a key gets one, which is written and flushed before
    /// it encrypts anything.
    ///
    /// # Errors
    /// As there; also if the key cannot be written or there is no room for it.
    pub fn grant(&self, slab: &SlabHeader, storage: &mut dyn Storage) -> Result<Option<Arc<SlabCode>>, KeyError> {
        if slab.encrypted && self.tenant(&slab.domain).is_none() {
            self.make(&slab.domain, storage)?;
        }
        self.code(slab)
    }

    /// Erase all keys of a domain, on the disk and here. The next grant to the domain makes a new one. Only the log thread makes and
    /// erases keys.
    ///
    /// # Errors
    /// A sector cannot be read, written or flushed: a key may still be on the disk.
    pub fn erase(&self, domain: &str, storage: &mut dyn Storage) -> Result<u32, KeyError> {
        let (sectors, _) = erase_sectors(self.store, domain, storage)?;
        let mut tenants = self.tenants();
        let before = tenants.keys.len();
        tenants.keys.retain(|(_, key)| key.domain() != domain);
        let in_memory = before - tenants.keys.len();
        tenants.free.extend(&sectors);
        Ok(sectors.len().max(in_memory) as u32)
    }

    fn make(&self, domain: &str, storage: &mut dyn Storage) -> Result<(), KeyError> {
        if domain.is_empty() || domain.len() > DOMAIN_BYTES_MAX {
            return Err(KeyError::Name { domain: domain.into(), most: DOMAIN_BYTES_MAX });
        }
        if self.encryption.source == KeySource::Off {
            return Err(KeyError::Unknown { domain: domain.into() });
        }
        let (mut secret, mut nonce) = (Zeroizing::new([0; KEY_BYTES]), [0; NONCE_LEN]);
        let random = SystemRandom::new();
        random.fill(&mut *secret).and_then(|()| random.fill(&mut nonce)).map_err(|_| KeyError::Random)?;
        let mut tenants = self.tenants();
        let number = if let Some(wrapper) = &self.wrapper {
            let kept = tenants.keys.len();
            let number = *tenants.free.last().ok_or_else(|| KeyError::Full { domain: domain.into(), tenants: kept })?;
            write(storage, number, &sector::encode(self.store, domain, wrapper, nonce, &secret))?;
            tenants.free.pop()
        } else {
            None
        };
        tenants.keys.push((number, Arc::new(TenantKey::new(domain, secret, Arc::clone(&self.salts)))));
        Ok(())
    }
}

#[cfg(test)]
impl Keyring {
    /// Continue as if only `numbers` write numbers were left under the salt.
    pub fn leave(&self, numbers: u64) {
        self.salts.leave(numbers);
    }

    /// Return the salt used for writing.
    pub fn current(&self) -> u32 {
        self.salts.current()
    }
}

/// Overwrite the sectors that hold keys of a domain, and flush. Also return all domains that had keys. Needs no master key.
pub fn erase_sectors(
    store: u128,
    domain: &str,
    storage: &mut dyn Storage,
) -> Result<(Vec<u32>, BTreeSet<String>), KeyError> {
    let mut area = vec![0; usize::from(KEY_SECTORS) * sector::BYTES];
    let failed = |source| KeyError::Io { tried: "read", offset: KEYS_OFFSET, source };
    storage.read(KEYS_OFFSET, &mut area).map_err(failed)?;
    let (mut erased, mut domains) = (Vec::new(), BTreeSet::new());
    for (number, bytes) in (0..).zip(area.as_chunks::<{ sector::BYTES }>().0) {
        let Found::Key(found) = sector::look(store, bytes) else { continue };
        if found.domain == domain {
            write(storage, number, &[0; sector::BYTES])?;
            erased.push(number);
        }
        domains.insert(found.domain);
    }
    // Flush even if no key was found: an earlier attempt may have erased it without flushing.
    let failed = |source| KeyError::Io { tried: "flush", offset: KEYS_OFFSET, source };
    storage.flush().map_err(failed)?;
    Ok((erased, domains))
}

/// Write and flush a sector of the key area.
fn write(storage: &mut dyn Storage, number: u32, bytes: &[u8; sector::BYTES]) -> Result<(), KeyError> {
    let offset = KEYS_OFFSET + u64::from(number) * u64::from(SECTOR);
    let failed = |tried| move |source| KeyError::Io { tried, offset, source };
    storage.write(offset, bytes).map_err(failed("write"))?;
    storage.flush().map_err(failed("flush"))
}

/// Cipher for the records of encrypted slabs.
struct Records {
    keyring: Arc<Keyring>,
    /// Last subkey used: records of a slab come in sequence.
    last: Option<Last>,
}

struct Last {
    grant: u64,
    salt: u32,
    subkey: Arc<Subkey>,
}

impl Records {
    fn subkey(&mut self, slab: &SlabHeader, salt: u32) -> Result<&Subkey, CipherError> {
        let good = |last: &Last| last.grant == slab.grant && last.salt == salt;
        if !self.last.as_ref().is_some_and(good) {
            self.last = None;
            let tenant = self.keyring.tenant(&slab.domain).ok_or(CipherError::NoKey)?;
            let subkey = tenant.subkey(Purpose::Records, salt).ok_or(CipherError::NoKey)?;
            self.last = Some(Last { grant: slab.grant, salt, subkey });
        }
        self.last.as_ref().map(|last| &*last.subkey).ok_or(CipherError::NoKey)
    }
}

impl Cipher for Records {
    fn learn(&mut self, salt: &Salt) {
        self.keyring.salts.learn(salt);
    }

    fn seal(
        &mut self,
        slab: &SlabHeader,
        salt: u32,
        nonce: &[u8; NONCE_BYTES],
        associated: &[u8],
        body: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], CipherError> {
        Ok(self.subkey(slab, salt)?.seal(*nonce, associated, body))
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
        let opened = self.subkey(slab, salt)?.open(*nonce, associated, body, tag);
        if opened { Ok(()) } else { Err(CipherError::Forged) }
    }
}
