//! Keys of a space, and names of runs. A name reveals neither the domain, nor the model, nor a block hash: each part is an HMAC.

use ring::hmac;

/// Key that all machines which share a store have in common. With it, runs can be read, forged and named.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedKey([u8; 32]);

impl SharedKey {
    /// Take 32 random bytes as the key.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// HMAC-SHA256 of a label and parts. Each is preceded by its length, so that no two lists of parts give the same input.
    fn mac(&self, label: &str, parts: &[&[u8]]) -> [u8; 32] {
        mac(&hmac::Key::new(hmac::HMAC_SHA256, &self.0), label, parts)
    }
}

fn mac(key: &hmac::Key, label: &str, parts: &[&[u8]]) -> [u8; 32] {
    let mut context = hmac::Context::with_key(key);
    for part in std::iter::once(&label.as_bytes()).chain(parts) {
        context.update(&(part.len() as u64).to_le_bytes());
        context.update(part);
    }
    context.sign().as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Return whether a part of a name has the form of an HMAC.
pub(crate) fn is_tag(part: &str) -> bool {
    part.len() == 64 && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Name of a run in a store: ASCII, at most 208 bytes, usable as a path of files and as a key of Valkey.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunName {
    text: String,
    id: u128,
}

impl RunName {
    /// Return the name as the store knows it.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Return 128 bits of the name's last part. They differ between runs of all spaces that share a key.
    pub fn id(&self) -> u128 {
        self.id
    }
}

impl std::fmt::Display for RunName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Everything derived from the shared key for one space and shard: names, and the keys of the run format.
pub struct SpaceKeys {
    folder: String,
    name: hmac::Key,
    header: hmac::Key,
    cipher: Option<hmac::Key>,
}

impl SpaceKeys {
    /// Derive the keys of a space. `fingerprint` identifies the model and the layout of its KV; `shard` is the rank of the
    /// engine's process among those that hold a part of each block. With `encrypted`, blocks are encrypted in the store.
    pub fn new(shared: &SharedKey, domain: &str, fingerprint: &[u8; 32], shard: u32, encrypted: bool) -> Self {
        let scope: [&[u8]; 3] = [domain.as_bytes(), fingerprint, &shard.to_le_bytes()];
        let key = |label| hmac::Key::new(hmac::HMAC_SHA256, &shared.mac(label, &scope));
        let domain_name = hex(&shared.mac("kvtide v1 domain name", &scope[..1]));
        let space_name = hex(&shared.mac("kvtide v1 space name", &scope[..2]));
        Self {
            folder: format!("v1/{domain_name}/{space_name}/{shard}"),
            // A machine that encrypts and one that does not must not meet under one name.
            name: key(if encrypted { "kvtide v1 key of encrypted run names" } else { "kvtide v1 key of run names" }),
            header: key("kvtide v1 key of run headers"),
            cipher: encrypted.then(|| key("kvtide v1 key of ciphers")),
        }
    }

    /// Return the name of a run, from the index and parent of its first block, and the hashes of its blocks.
    ///
    /// All of them are part of it. Runs of different lengths may end with the same block, and must not take each other's place. A
    /// reader with wrong hashes must find no run, instead of one that fails verification.
    pub fn run_name(&self, (first, parent): (u32, u128), hashes: &[u128]) -> RunName {
        let hashes: Vec<u8> = hashes.iter().flat_map(|hash| hash.to_le_bytes()).collect();
        let tag = mac(&self.name, "run", &[&first.to_le_bytes(), &parent.to_le_bytes(), &hashes]);
        let id = u128::from_be_bytes(*tag.first_chunk().expect("32 bytes"));
        RunName { text: format!("{}/{}", self.folder, hex(&tag)), id }
    }

    /// Key of the HMAC over a run's header.
    pub(crate) fn header_key(&self) -> &hmac::Key {
        &self.header
    }

    /// Return whether blocks are encrypted.
    pub fn encrypted(&self) -> bool {
        self.cipher.is_some()
    }

    /// AES-256 key of one run, or none if blocks are not encrypted.
    pub(crate) fn cipher_key(&self, name: &RunName) -> Option<[u8; 32]> {
        self.cipher.as_ref().map(|key| mac(key, "run", &[name.text.as_bytes()]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(byte: u8, domain: &str, fingerprint: u8, shard: u32) -> SpaceKeys {
        SpaceKeys::new(&SharedKey::new([byte; 32]), domain, &[fingerprint; 32], shard, true)
    }

    fn plain_keys() -> SpaceKeys {
        SpaceKeys::new(&SharedKey::new([1; 32]), "a", &[1; 32], 0, false)
    }

    #[test]
    fn names_have_the_documented_form() {
        let name = keys(1, "production", 0xab, 17).run_name((0, 0), &[0xfeed; 8]);
        let parts: Vec<&str> = name.as_str().split('/').collect();
        assert_eq!((parts.len(), parts[0], parts[3]), (5, "v1", "17"));
        for part in [parts[1], parts[2], parts[4]] {
            assert!(is_tag(part), "{part}");
        }
        assert!(name.as_str().len() <= 208);
        assert!(parts[4].starts_with(&format!("{:032x}", name.id())));
        let largest = keys(1, "production", 0xab, u32::MAX).run_name((u32::MAX, u128::MAX), &[u128::MAX; 64]);
        assert!(largest.as_str().len() <= 208, "{}", largest.as_str().len());
    }

    #[test]
    fn a_name_reveals_no_input() {
        let name = keys(1, "production", 0xab, 0).run_name((0, 0), &[0x00c0_ffee_00c0_ffee; 1]);
        for secret in ["production", "abababab", "c0ffee", &hex(b"production"), "eeffc0"] {
            assert!(!name.as_str().contains(secret), "{name} contains {secret}");
        }
    }

    #[test]
    fn each_input_changes_its_own_parts() {
        let base = keys(1, "a", 1, 0).run_name((0, 0), &[5; 4]);
        let changed = |other: RunName| -> Vec<usize> {
            let pairs = base.as_str().split('/').zip(other.as_str().split('/')).enumerate();
            pairs.filter(|(_, (a, b))| a != b).map(|(i, _)| i).collect()
        };
        assert_eq!(changed(keys(1, "a", 1, 0).run_name((0, 0), &[5; 4])), [0; 0]);
        assert_eq!(changed(keys(2, "a", 1, 0).run_name((0, 0), &[5; 4])), [1, 2, 4], "shared key");
        assert_eq!(changed(keys(1, "b", 1, 0).run_name((0, 0), &[5; 4])), [1, 2, 4], "domain");
        assert_eq!(changed(keys(1, "a", 2, 0).run_name((0, 0), &[5; 4])), [2, 4], "fingerprint");
        assert_eq!(changed(keys(1, "a", 1, 1).run_name((0, 0), &[5; 4])), [3, 4], "shard");
        assert_eq!(changed(keys(1, "a", 1, 0).run_name((0, 0), &[6; 4])), [4], "hashes");
        assert_eq!(changed(keys(1, "a", 1, 0).run_name((4, 0), &[5; 4])), [4], "first index");
        assert_eq!(changed(keys(1, "a", 1, 0).run_name((0, 1), &[5; 4])), [4], "parent");
        assert_eq!(changed(keys(1, "a", 1, 0).run_name((0, 0), &[5; 2])), [4], "length");
        assert_eq!(changed(plain_keys().run_name((0, 0), &[5; 4])), [4], "encryption");
    }

    #[test]
    fn lists_of_parts_do_not_run_into_each_other() {
        let key = SharedKey::new([3; 32]);
        assert_ne!(key.mac("l", &[b"ab", b"c"]), key.mac("l", &[b"a", b"bc"]));
        assert_ne!(key.mac("la", &[b"b"]), key.mac("l", &[b"ab"]));
    }

    #[test]
    fn ciphers_differ_between_runs_and_from_names() {
        let keys = keys(1, "a", 1, 0);
        let (one, two) = (keys.run_name((0, 0), &[1; 1]), keys.run_name((0, 0), &[2; 1]));
        assert_ne!(keys.cipher_key(&one), keys.cipher_key(&two));
        assert!(!one.as_str().contains(&hex(&keys.cipher_key(&one).unwrap())));
    }
}
