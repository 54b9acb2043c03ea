//! The master key: its source, and wrapping of tenant keys.

use super::error::KeyError;
use super::wiped::Wiped;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use zeroize::{Zeroize, Zeroizing};

/// Bytes of a key.
pub(super) const KEY_BYTES: usize = 32;
/// Bytes of a key id.
pub(super) const ID_BYTES: usize = 16;
/// Permission bits that a key file must not have: any for others, write for the group. Reading by the group is allowed: a service
/// that does not run as root reads root's files through its group.
const FORBIDDEN_MODE: u32 = 0o027;
/// The purpose of a subkey is an input of its derivation.
const WRAP: &[u8] = b"kvtide wrap tenant keys 1";
const ID: &[u8] = b"kvtide master key id 1";

/// Source of the master key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KeySource {
    /// No key; slabs are not encrypted.
    #[default]
    Off,
    /// A file of 32 bytes or 64 hexadecimal digits.
    File(PathBuf),
    /// A systemd credential of this name, in the same format.
    Credential(String),
    /// No master key; tenant keys are created at each start and not saved, so data of earlier starts cannot be read.
    Ephemeral,
}

/// Encryption settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encryption {
    /// The master key.
    pub source: KeySource,
    /// Encrypt new slabs. If false, the key is only used to read existing ones.
    pub new_slabs: bool,
}

impl Default for Encryption {
    fn default() -> Encryption {
        Encryption { source: KeySource::Off, new_slabs: true }
    }
}

impl Encryption {
    /// Return true if new slabs are encrypted.
    pub fn encrypts(&self) -> bool {
        self.new_slabs && self.source != KeySource::Off
    }
}

/// A master key in memory.
pub struct MasterKey(Zeroizing<[u8; KEY_BYTES]>);

/// Omit all key bytes.
impl std::fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MasterKey")
    }
}

impl MasterKey {
    /// Load the configured key; None if there is none, or if keys are not saved.
    ///
    /// # Errors
    /// It cannot be read, other users can read it, or its format is invalid.
    pub fn load(source: &KeySource) -> Result<Option<MasterKey>, KeyError> {
        match source {
            KeySource::Off | KeySource::Ephemeral => Ok(None),
            KeySource::File(path) => read(path).map(Some),
            KeySource::Credential(name) => {
                read(&credential(name, std::env::var_os("CREDENTIALS_DIRECTORY"))?).map(Some)
            }
        }
    }

    /// Return a wrapper for the tenant keys of one store.
    pub(super) fn wrapper(&self, store: u128) -> Wrapper {
        let prk = Salt::new(HKDF_SHA256, &store.to_le_bytes()).extract(&*self.0);
        let mut id = [0; ID_BYTES];
        derive(&prk, ID, &mut id);
        Wrapper { key: key(&prk, &[WRAP]), id: KeyId(id) }
    }
}

/// Id of a master key: equal for the same key and store; reveals nothing about the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyId(pub [u8; ID_BYTES]);

impl std::fmt::Display for KeyId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Wrapper of the tenant keys of one store.
pub(super) struct Wrapper {
    key: Wiped<LessSafeKey>,
    /// Id of the master key.
    pub id: KeyId,
}

impl Wrapper {
    /// Encrypt in place. The nonce is random: a master key wraps only some hundred keys in its lifetime.
    pub fn wrap(&self, nonce: [u8; NONCE_LEN], associated: &[u8], key: &mut [u8; KEY_BYTES]) -> [u8; 16] {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.key.get().seal_in_place_separate_tag(nonce, Aad::from(associated), key);
        tag.expect("a key is shorter than the cipher's limit").as_ref().try_into().expect("tags are 16 bytes")
    }

    /// Decrypt in place. Return false if authentication fails; `key` is then invalid.
    pub fn unwrap(&self, nonce: [u8; NONCE_LEN], associated: &[u8], key: &mut [u8; KEY_BYTES], tag: [u8; 16]) -> bool {
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key.get().open_in_place_separate_tag(nonce, Aad::from(associated), Tag::from(tag), key, 0..).is_ok()
    }
}

/// Derive an AES key for a purpose.
pub(super) fn key(prk: &Prk, purpose: &[&[u8]]) -> Wiped<LessSafeKey> {
    let okm = prk.expand(purpose, &AES_256_GCM).expect("32 bytes are fewer than 255 hashes");
    Wiped::new(LessSafeKey::new(okm.into()))
}

fn derive(prk: &Prk, purpose: &[u8], into: &mut [u8]) {
    struct Length(usize);
    impl KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    let purpose = [purpose];
    let okm = prk.expand(&purpose, Length(into.len()));
    okm.and_then(|okm| okm.fill(into)).expect("16 bytes are fewer than 255 hashes");
}

/// Return the path of a systemd credential.
fn credential(name: &str, dir: Option<std::ffi::OsString>) -> Result<PathBuf, KeyError> {
    let failed = |why| KeyError::Credential { name: name.into(), why };
    let plain = !name.is_empty() && !name.contains('/') && name != "." && name != "..";
    if !plain {
        return Err(failed("the name must be a plain file name"));
    }
    let dir = dir.ok_or_else(|| failed("CREDENTIALS_DIRECTORY is not set; add LoadCredential= to the unit"))?;
    Ok(Path::new(&dir).join(name))
}

/// Read a key file, if only root, the daemon's user and the file's group can read or write it.
fn read(path: &Path) -> Result<MasterKey, KeyError> {
    let failed = |source: io::Error| KeyError::Read { path: path.into(), source };
    let refused = |why: String| KeyError::Refused { path: path.into(), why };
    // Check the opened file, since the path may name another file by now. NONBLOCK: opening a FIFO must not block the daemon.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?);
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(refused("not a regular file".into()));
    }
    let (owner, us) = (found.uid(), rustix::process::geteuid().as_raw());
    if owner != 0 && owner != us {
        return Err(refused(format!("owned by uid {owner}; must be owned by root or the daemon's user ({us})")));
    }
    if found.mode() & FORBIDDEN_MODE != 0 {
        let mode = found.mode() & 0o777;
        return Err(refused(format!(
            "mode {mode:04o} gives access to other users or write access to the group. Run: chmod 0640 {}",
            path.display()
        )));
    }
    // One byte more than the longest valid form, to detect longer files. On the stack, so that no copy of the key is left by a
    // reallocation.
    let mut bytes = Zeroizing::new([0; 2 * KEY_BYTES + 2]);
    let mut len = 0;
    while len < bytes.len() {
        match file.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(count) => len += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
    parse(&bytes[..len]).map_err(|why| refused(why.into()))
}

/// Parse 32 bytes, or 64 hexadecimal digits with an optional newline.
fn parse(bytes: &[u8]) -> Result<MasterKey, &'static str> {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    let digits = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    if bytes.len() == KEY_BYTES {
        key.copy_from_slice(bytes);
    } else if digits.len() == 2 * KEY_BYTES {
        let (pairs, _) = digits.as_chunks::<2>();
        for (byte, [high, low]) in key.iter_mut().zip(pairs) {
            let digit = |digit: &u8| char::from(*digit).to_digit(16).ok_or("64 bytes must be hexadecimal digits");
            *byte = (digit(high)? << 4 | digit(low)?) as u8;
        }
    } else {
        return Err("expected 32 bytes or 64 hexadecimal digits");
    }
    if key.iter().all(|byte| *byte == key[0]) {
        key.zeroize();
        return Err("all bytes are equal");
    }
    Ok(MasterKey(key))
}

#[cfg(test)]
impl MasterKey {
    /// Return a key for tests.
    pub fn of(seed: u8) -> MasterKey {
        MasterKey(Zeroizing::new(std::array::from_fn(|at| seed.wrapping_add(at as u8))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    fn parsed(bytes: &[u8]) -> Result<[u8; KEY_BYTES], &'static str> {
        parse(bytes).map(|key| *key.0)
    }

    #[test]
    fn bytes_and_digits_make_a_key_and_nothing_else_does() {
        let raw: [u8; 32] = std::array::from_fn(|at| at as u8 * 7);
        let digits: String = raw.iter().map(|byte| format!("{byte:02X}")).collect();
        assert_eq!(parsed(&raw), Ok(raw));
        assert_eq!(parsed(digits.as_bytes()), Ok(raw));
        assert_eq!(parsed(format!("{}\n", digits.to_lowercase()).as_bytes()), Ok(raw));
        let wrong: [&[u8]; 6] = [b"", &raw[1..], &[raw[0]; 33], &digits.as_bytes()[1..], &[b'g'; 64], &[0; 32]];
        for wrong in wrong {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
        assert!(parsed(format!("{digits}\n\n").as_bytes()).is_err());
    }

    #[test]
    fn a_key_that_others_could_have_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let source = KeySource::File(path.clone());
        assert!(matches!(MasterKey::load(&source), Err(KeyError::Read { .. })), "no such file");
        fs::write(&path, [1u8, 2].repeat(16)).unwrap();
        for (mode, good) in
            [(0o400, true), (0o600, true), (0o640, true), (0o660, false), (0o604, false), (0o644, false)]
        {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let loaded = MasterKey::load(&source);
            assert_eq!(loaded.is_ok(), good, "{mode:o}: {loaded:?}");
        }
        let owner = fs::metadata(&path).unwrap().uid();
        assert_eq!(owner, rustix::process::geteuid().as_raw());
        let dir = MasterKey::load(&KeySource::File("/".into()));
        assert!(matches!(dir, Err(KeyError::Refused { .. })), "{dir:?}");
    }

    #[test]
    fn a_credential_is_a_file_in_systemds_directory() {
        let dir = || Some("/run/credentials/kvtide".into());
        assert_eq!(credential("kv.key", dir()).unwrap(), Path::new("/run/credentials/kvtide/kv.key"));
        for name in ["", "..", "a/b", "/etc/passwd"] {
            assert!(matches!(credential(name, dir()), Err(KeyError::Credential { .. })), "{name}");
        }
        assert!(matches!(credential("kv.key", None), Err(KeyError::Credential { .. })));
    }

    #[test]
    fn keys_of_two_stores_have_nothing_in_common() {
        let master = MasterKey::of(1);
        let (one, same, other) = (master.wrapper(1), master.wrapper(1), master.wrapper(2));
        assert!(one.id == same.id && one.id != other.id && one.id != MasterKey::of(2).wrapper(1).id);
        let mut key = [7; KEY_BYTES];
        let tag = one.wrap([1; 12], b"whose", &mut key);
        let opens = |wrapper: &Wrapper, nonce, associated: &[u8], tag| {
            let mut key = key;
            wrapper.unwrap([nonce; 12], associated, &mut key, tag) && key == [7; KEY_BYTES]
        };
        assert!(opens(&same, 1, b"whose", tag));
        assert!(!opens(&other, 1, b"whose", tag) && !opens(&one, 2, b"whose", tag) && !opens(&one, 1, b"else", tag));
    }
}
