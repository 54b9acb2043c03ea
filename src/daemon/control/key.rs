//! Identity of a space, within one run of the daemon and across runs.

use kvtide_format::SlotLayout;
use kvtide_format::log::SpaceKey;
use kvtide_wire::geometry::Plane;
use kvtide_wire::hello::Hello;
use sha2::{Digest, Sha256};

/// Version of the digest: the fields that it covers, their encoding, and the page layout in a slot. With another version, all
/// blocks written before belong to unknown spaces.
const VERSION: u32 = 1;

/// Domain, fingerprint and geometry. The name of a space is only for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// Index of the domain.
    pub domain: usize,
    fingerprint: [u8; 32],
    page_tokens: u32,
    planes: Vec<Plane>,
    shards: u16,
}

impl Key {
    /// Return the key of the space that a Hello of this domain belongs to.
    pub fn new(domain: usize, hello: &Hello) -> Key {
        let Hello { fingerprint, page_tokens, shards, .. } = *hello;
        Key { domain, fingerprint, page_tokens, planes: hello.planes.clone(), shards }
    }

    /// Return a key with two planes.
    #[cfg(test)]
    pub fn some() -> Key {
        let planes = vec![Plane::full(4096), Plane::full(1000)];
        Key { domain: 0, fingerprint: [7; 32], page_tokens: 16, planes, shards: 2 }
    }

    /// Return a digest that is equal in later runs. It uses the domain's name, since its index may change, and the offset of each
    /// page in a slot. Every field has a fixed length or is preceded by its length, so different keys never encode alike.
    pub fn digest(&self, domain: &str, layout: &SlotLayout) -> SpaceKey {
        let mut digest = Sha256::new();
        let mut add = |bytes: &[u8]| digest.update(bytes);
        add(b"kvtide space");
        add(&VERSION.to_le_bytes());
        add(&(domain.len() as u64).to_le_bytes());
        add(domain.as_bytes());
        add(&self.fingerprint);
        add(&self.page_tokens.to_le_bytes());
        add(&self.shards.to_le_bytes());
        add(&layout.bytes().to_le_bytes());
        add(&(self.planes.len() as u64).to_le_bytes());
        for (plane, index) in self.planes.iter().zip(0u16..) {
            let (kind, window_tokens) = plane.kind.code();
            add(&plane.page_bytes.to_le_bytes());
            add(&kind.to_le_bytes());
            add(&window_tokens.to_le_bytes());
            // Every plane has an offset in the layout of its own slot.
            add(&layout.offset(index).unwrap_or(u64::MAX).to_le_bytes());
        }
        SpaceKey(digest.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_wire::geometry::PlaneKind;
    use std::collections::BTreeSet;

    fn key() -> Key {
        Key::some()
    }

    fn digest(key: &Key, domain: &str) -> SpaceKey {
        key.digest(domain, &SlotLayout::new(&key.planes))
    }

    #[test]
    fn everything_that_parts_two_spaces_changes_the_digest_and_nothing_else_does() {
        let same = Key { domain: 3, ..key() };
        assert_eq!(digest(&key(), "a"), digest(&same, "a"), "the index of a domain is not part of the digest");
        let mut window = key();
        window.planes[0].kind = PlaneKind::Window { tokens: 64 };
        let mut wider = window.clone();
        wider.planes[0].kind = PlaneKind::Window { tokens: 128 };
        let mut swapped = key();
        swapped.planes.swap(0, 1);
        let others = [
            key(),
            Key { fingerprint: [8; 32], ..key() },
            Key { page_tokens: 32, ..key() },
            Key { shards: 1, ..key() },
            Key { planes: key().planes[..1].to_vec(), ..key() },
            window,
            wider,
            swapped,
        ];
        let mut digests: BTreeSet<SpaceKey> = others.iter().map(|other| digest(other, "a")).collect();
        digests.insert(digest(&key(), "b"));
        assert_eq!(digests.len(), others.len() + 1);
    }

    #[test]
    fn the_digest_of_a_version_never_changes() {
        let SpaceKey(bytes) = digest(&key(), "default");
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex, "67fcf4c37838bb1e0827cfeb3960c4e3ce854ebd813be6deea5efe1a2d4a2a6f",
            "blocks of earlier runs are found by this digest: if it changes, VERSION must change"
        );
    }
}
