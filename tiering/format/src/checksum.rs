//! Page checksum: CRC-32C over the page's location and its bytes.

use crc_fast::{CrcAlgorithm, Digest, checksum_combine};

/// Identity of a stored page. It is part of the checksum, so bytes of another store, slot, generation or plane fail the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageKey {
    /// The store's id (superblock).
    pub store: u128,
    /// Region of the store.
    pub region: u32,
    /// Slot in the region.
    pub slot: u32,
    /// Generation of the slot: different for every block that the slot ever holds.
    pub generation: u32,
    /// Plane of the page.
    pub plane: u16,
}

/// Bytes of an encoded key, the prefix of the checksummed bytes.
const KEY_BYTES: usize = 32;

impl PageKey {
    /// Encode the fields in order, little-endian; the last two bytes are zero.
    fn encode(&self) -> [u8; KEY_BYTES] {
        let mut bytes = [0; KEY_BYTES];
        bytes[..16].copy_from_slice(&self.store.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.region.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.slot.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.generation.to_le_bytes());
        bytes[28..30].copy_from_slice(&self.plane.to_le_bytes());
        bytes
    }

    /// Return the CRC-32C (Castagnoli) of the key followed by the page.
    #[must_use]
    pub fn checksum(&self, page: &[u8]) -> u32 {
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        digest.update(&self.encode());
        digest.update(page);
        digest.finalize() as u32
    }

    /// Return the CRC-32C of the page alone, derived from its keyed `checksum` and its length without reading the page.
    #[must_use]
    pub fn digest(&self, checksum: u32, page_bytes: u64) -> u32 {
        // crc(key ‖ page) = crc(key extended by `page_bytes` zeros) ^ crc(page).
        let key = crc32c(&self.encode()).into();
        checksum ^ checksum_combine(CrcAlgorithm::Crc32Iscsi, key, 0, page_bytes) as u32
    }
}

/// Return the CRC-32C (Castagnoli) of `bytes`. For structures that contain their own identity, unlike pages.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_crc_32c() {
        assert_eq!(
            crc32c(b"123456789"),
            0xE306_9283,
            "the check value in the catalogue of parametrised CRC algorithms"
        );
        let key = PageKey { store: 1 << 100, region: 2, slot: 3, generation: 4, plane: 5 };
        assert_eq!(key.checksum(b"page"), crc32c(&[&key.encode()[..], b"page"].concat()));
    }

    #[test]
    fn the_plain_checksum_follows_from_the_keyed_one() {
        let key = PageKey { store: 1 << 100, region: 2, slot: 3, generation: 4, plane: 5 };
        for bytes in [1, 7, 64, 4096, 100_003] {
            let page: Vec<u8> = (0..bytes).map(|at: u32| ((at * 31) >> 3) as u8).collect();
            assert_eq!(key.digest(key.checksum(&page), page.len() as u64), crc32c(&page), "{bytes} bytes");
        }
    }

    #[test]
    fn every_part_of_the_key_and_every_bit_of_the_page_counts() {
        let key = PageKey { store: 7, region: 2, slot: 3, generation: 4, plane: 5 };
        let mut page = vec![0xA5; 4096];
        let good = key.checksum(&page);
        for other in [
            PageKey { store: 8, ..key },
            PageKey { region: 3, ..key },
            PageKey { slot: 2, ..key },
            PageKey { generation: 5, ..key },
            PageKey { plane: 4, ..key },
        ] {
            assert_ne!(other.checksum(&page), good, "{other:?}");
        }
        for bit in [0, 1, 7, 4095 * 8, 2048 * 8 + 3] {
            page[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(key.checksum(&page), good);
            page[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(key.checksum(&page), good);
    }
}
