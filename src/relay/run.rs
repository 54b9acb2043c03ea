//! The format of a run: consecutive blocks of one prefix in one object of a store.
//!
//! ```text
//! 0           32                                   32 + 32 * count      64 + 32 * count
//! ├───────────┼─────────┼─────────┼── … ───────────┼────────────────────┼─────────┼─────────┼── …
//! │ fixed part│ check 0 │ check 1 │                │ HMAC of the header │ block 0 │ block 1 │
//! ```
//!
//! The *fixed part* has magic, version, flags, count, index of the first block, and bytes of a block. A *check* has, without
//! encryption, the CRC-64 of the block; with encryption, the nonce of AES-256-GCM; its tag follows the block.
//! A reader gets the header or some of the blocks by byte range. Numbers are little-endian.
//!
//! **Block hashes and parents are not in a run.** A reader knows the hashes that it asks for. The HMAC of the header covers them, the
//! run's name, the fixed part and all checks.
//!
//! **Protection.** Without encryption this detects: damage by disks, memory and networks, short objects, a run under the name of another, blocks
//! in another order, a run of another prefix, a header made without the shared key. One damaged block in 2^64 passes the CRC.
//! It does not detect a *chosen* change of bytes that keeps the CRC. Against such an operator of the store use encryption, which detects
//! it. The reason for a CRC and an HMAC in place of an HMAC over all bytes is cost: on one core of an AMD EPYC with SHA instructions,
//! CRC-64 takes 54 GB/s, AES-256-GCM 9, and HMAC-SHA256 2.2 (2026-11, 4 MiB in the cache).
//! Neither mode detects an older run put back under its own name: its blocks are still those that the hashes name.
//!
//! **Nonces.** The key is derived for each run from its name, and nonces are random. GCM fails if one key sees a nonce twice: with 2^20 blocks
//! written under one name (1,024 writes of 1,024 blocks) the probability is 2^-57. A nonce derived from the hash would be wrong, because
//! two machines may compute different bytes for one hash.

use crate::name::{RunName, SpaceKeys};
use bytes::{Bytes, BytesMut};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use std::ops::Range;

const MAGIC: [u8; 8] = *b"KVTRUN\x00\x01";
const VERSION: u16 = 1;
const FIXED_BYTES: usize = 32;
const CHECK_BYTES: usize = 32;
const MAC_BYTES: usize = 32;
const TAG_BYTES: usize = 16;

/// One block of a prefix, as its owner knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockKey {
    /// Hash of the tokens of the block and of all before it.
    pub hash: u128,
    /// Hash of the block before it; 0 for the first block of a prefix.
    pub parent: u128,
    /// Place in the prefix, from 0.
    pub index: u32,
}

/// Reason why the bytes of a run cannot be used. To a caller it is a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadRun {
    /// The object is shorter or longer than its blocks need.
    #[error("run has {got} bytes, expected {expected}: it was cut, or another kvtide wrote it; delete it")]
    Length {
        /// Bytes of the object.
        got: u64,
        /// Bytes that its blocks need.
        expected: u64,
    },
    /// The header is of another format, version, mode, or geometry.
    #[error("run header has other {field} than expected: another version or configuration wrote it; delete it")]
    Header {
        /// First field that differs.
        field: &'static str,
    },
    /// The HMAC of the header does not match.
    #[error("run header does not match its HMAC: it is damaged, or of other blocks or another shared key; delete it")]
    Mac,
    /// A block does not match its check.
    #[error("block {place} of the run does not match its checksum or tag: its bytes are damaged; delete the run")]
    Block {
        /// Place of the block in the run, from 0.
        place: u32,
    },
}

/// Return the blocks of a full run: the largest power of two such that they have at most `object_bytes_max` bytes, at least 1. The
/// header and the tags come on top: blocks are often a power of two, and with these counted, objects would be half as large.
pub fn run_blocks(block_bytes: u64, object_bytes_max: u64) -> u32 {
    let fits = |count: u32| u64::from(count).checked_mul(block_bytes).is_some_and(|bytes| bytes <= object_bytes_max);
    (1..31).map(|shift| 1 << shift).take_while(|&count| fits(count)).last().unwrap_or(1)
}

/// Divide the blocks `first .. first + count` of a prefix into runs of at most `run_blocks_max` (a power of two) blocks.
///
/// Return the index of the first block and the blocks of each run. A run's length is a power of two and its first index a multiple of
/// it, so two prefixes that begin with the same blocks have the same runs over them, except for tails.
pub fn runs_of(first: u32, count: u32, run_blocks_max: u32) -> Vec<(u32, u32)> {
    assert!(run_blocks_max.is_power_of_two(), "blocks of a run are a power of two, not {run_blocks_max}");
    let (mut at, end) = (u64::from(first), u64::from(first) + u64::from(count));
    let mut runs = vec![];
    while at < end {
        let aligned = if at == 0 { u64::MAX } else { 1 << at.trailing_zeros() };
        let len = aligned.min(u64::from(run_blocks_max)).min(1 << (end - at).ilog2());
        runs.push((at as u32, len as u32));
        at += len;
    }
    runs
}

/// Where the parts of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Blocks of the run.
    pub count: u32,
    /// Bytes of a block, before encryption.
    pub block_bytes: u64,
    /// True if a tag follows each block.
    pub encrypted: bool,
}

impl Layout {
    /// Return the bytes of the header.
    pub fn header_bytes(&self) -> u64 {
        (FIXED_BYTES + MAC_BYTES) as u64 + CHECK_BYTES as u64 * u64::from(self.count)
    }

    /// Return where the block at `place` (from 0) is in the object, with its tag.
    pub fn block_range(&self, place: u32) -> Range<u64> {
        let stored = self.stored_block_bytes();
        let from = self.header_bytes() + stored * u64::from(place);
        from..from + stored
    }

    /// Return the bytes from the start of the object to the end of its first `count` blocks.
    pub fn first_bytes(&self, count: u32) -> u64 {
        self.header_bytes() + self.stored_block_bytes() * u64::from(count)
    }

    /// Return the bytes of the object.
    pub fn total_bytes(&self) -> u64 {
        self.first_bytes(self.count)
    }

    fn stored_block_bytes(&self) -> u64 {
        self.block_bytes + if self.encrypted { TAG_BYTES as u64 } else { 0 }
    }
}

/// A run that a caller writes or expects: its keys, its blocks, its name.
pub struct Run<'a> {
    keys: &'a SpaceKeys,
    blocks: &'a [BlockKey],
    layout: Layout,
    name: RunName,
}

impl<'a> Run<'a> {
    /// Describe the run of `blocks`, each of `block_bytes` bytes.
    ///
    /// # Panics
    ///
    /// If `blocks` is empty or not consecutive.
    pub fn new(keys: &'a SpaceKeys, blocks: &'a [BlockKey], block_bytes: u64) -> Self {
        assert!(!blocks.is_empty(), "a run has a block");
        let hashes: Vec<u128> = blocks.iter().map(|block| block.hash).collect();
        for pair in blocks.windows(2) {
            assert!(
                pair[1].parent == pair[0].hash && pair[1].index == pair[0].index + 1,
                "blocks of a run are consecutive"
            );
        }
        let count = blocks.len() as u32;
        let layout = Layout { count, block_bytes, encrypted: keys.encrypted() };
        Self { keys, blocks, layout, name: keys.run_name((blocks[0].index, blocks[0].parent), &hashes) }
    }

    /// Return the name of the run in a store.
    pub fn name(&self) -> &RunName {
        &self.name
    }

    /// Return where the parts of the run are.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Encode the run from the bytes of its blocks.
    ///
    /// # Panics
    ///
    /// If the number of blocks or the length of one is not that of the run.
    pub fn encode(&self, bytes: &[&[u8]]) -> Bytes {
        assert_eq!(bytes.len(), self.blocks.len(), "each block has bytes");
        let append = |place: usize, out: &mut BytesMut| {
            out.extend_from_slice(bytes[place]);
            Some(())
        };
        self.encode_from(append).expect("each block has bytes")
    }

    /// Encode the run from blocks that `append` writes one after another, each by its place from 0: a block in several pages is
    /// copied once. Return `None` if `append` does.
    ///
    /// # Panics
    ///
    /// If the length of a block is not that of the run.
    pub fn encode_from(&self, mut append: impl FnMut(usize, &mut BytesMut) -> Option<()>) -> Option<Bytes> {
        let mut out = BytesMut::with_capacity(self.layout.total_bytes() as usize);
        out.extend_from_slice(&self.fixed());
        out.resize(self.layout.header_bytes() as usize, 0);
        let cipher = self.cipher();
        for place in 0..self.blocks.len() {
            let from = out.len();
            append(place, &mut out)?;
            let len = (out.len() - from) as u64;
            assert_eq!(len, self.layout.block_bytes, "blocks of a space have one length");
            let check = match &cipher {
                None => crc(&out[from..]),
                Some(cipher) => {
                    let nonce = random_nonce();
                    let aad = Aad::from(self.associated(place));
                    let tag = cipher
                        .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), aad, &mut out[from..])
                        .expect("a block is shorter than the 64 GiB of AES-GCM");
                    out.extend_from_slice(tag.as_ref());
                    padded(&nonce)
                }
            };
            out[FIXED_BYTES + place * CHECK_BYTES..][..CHECK_BYTES].copy_from_slice(&check);
        }
        let signed = self.layout.header_bytes() as usize - MAC_BYTES;
        let mac = hmac::sign(self.keys.header_key(), &self.signed(&out[..signed]));
        out[signed..signed + MAC_BYTES].copy_from_slice(mac.as_ref());
        Some(out.freeze())
    }

    /// Verify a whole object and return its blocks.
    ///
    /// # Errors
    ///
    /// The first part that is wrong.
    pub fn decode(&self, object: Bytes) -> Result<Vec<Bytes>, BadRun> {
        self.decode_first(self.layout.count, object)
    }

    /// Verify the beginning of an object, up to the end of its first `count` blocks, and return them.
    ///
    /// # Errors
    ///
    /// The first part that is wrong.
    pub fn decode_first(&self, count: u32, object: Bytes) -> Result<Vec<Bytes>, BadRun> {
        self.expect_length(&object, self.layout.first_bytes(count))?;
        let header = self.open_header(&object[..self.layout.header_bytes() as usize])?;
        (0..count)
            .map(|place| {
                let range = self.layout.block_range(place);
                header.open_block(place, object.slice(range.start as usize..range.end as usize))
            })
            .collect()
    }

    /// Verify a header: the first [`Layout::header_bytes`] bytes of the object.
    ///
    /// # Errors
    ///
    /// The mistake in it.
    pub fn open_header(&'a self, header: &[u8]) -> Result<Header<'a>, BadRun> {
        self.expect_length(header, self.layout.header_bytes())?;
        let expected = self.fixed();
        for (field, range) in FIELDS {
            if header[range.clone()] != expected[range] {
                return Err(BadRun::Header { field });
            }
        }
        let (signed, mac) = header.split_at(header.len() - MAC_BYTES);
        hmac::verify(self.keys.header_key(), &self.signed(signed), mac).map_err(|_| BadRun::Mac)?;
        let checks = signed[FIXED_BYTES..].as_chunks().0.to_vec();
        Ok(Header { run: self, checks, cipher: self.cipher() })
    }

    fn expect_length(&self, bytes: &[u8], expected: u64) -> Result<(), BadRun> {
        let got = bytes.len() as u64;
        if got == expected { Ok(()) } else { Err(BadRun::Length { got, expected }) }
    }

    fn fixed(&self) -> [u8; FIXED_BYTES] {
        let mut fixed = [0; FIXED_BYTES];
        fixed[0..8].copy_from_slice(&MAGIC);
        fixed[8..10].copy_from_slice(&VERSION.to_le_bytes());
        fixed[10..12].copy_from_slice(&u16::from(self.layout.encrypted).to_le_bytes());
        fixed[12..16].copy_from_slice(&self.layout.count.to_le_bytes());
        fixed[16..24].copy_from_slice(&u64::from(self.blocks[0].index).to_le_bytes());
        fixed[24..32].copy_from_slice(&self.layout.block_bytes.to_le_bytes());
        fixed
    }

    /// Return the bytes that the HMAC of the header covers: the name, the header, and the hashes, which are not in the header.
    fn signed(&self, header: &[u8]) -> Vec<u8> {
        let mut signed = Vec::with_capacity(256 + header.len() + 32 * self.blocks.len());
        signed.extend_from_slice(&(self.name.as_str().len() as u64).to_le_bytes());
        signed.extend_from_slice(self.name.as_str().as_bytes());
        signed.extend_from_slice(header);
        for block in self.blocks {
            signed.extend_from_slice(&block.hash.to_le_bytes());
            signed.extend_from_slice(&block.parent.to_le_bytes());
        }
        signed
    }

    /// Return the data that the tag of a block covers besides its bytes.
    fn associated(&self, place: usize) -> Vec<u8> {
        let BlockKey { hash, parent, index } = self.blocks[place];
        [self.name.as_str().as_bytes(), &hash.to_le_bytes(), &parent.to_le_bytes(), &index.to_le_bytes()].concat()
    }

    fn cipher(&self) -> Option<LessSafeKey> {
        let key = self.keys.cipher_key(&self.name)?;
        Some(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).expect("AES-256 takes 32 bytes")))
    }
}

/// Fields of the fixed part, with their names in [`BadRun::Header`].
const FIELDS: [(&str, Range<usize>); 6] = [
    ("magic", 0..8),
    ("version", 8..10),
    ("encryption", 10..12),
    ("number of blocks", 12..16),
    ("first index", 16..24),
    ("bytes of a block", 24..32),
];

/// A verified header: it opens the blocks of its run, in any order.
pub struct Header<'a> {
    run: &'a Run<'a>,
    checks: Vec<[u8; CHECK_BYTES]>,
    cipher: Option<LessSafeKey>,
}

impl Header<'_> {
    /// Verify, and decrypt if the run is encrypted, the block at `place` from the bytes at its [`Layout::block_range`].
    /// A plain block is not copied.
    ///
    /// # Errors
    ///
    /// [`BadRun::Length`] or [`BadRun::Block`].
    pub fn open_block(&self, place: u32, stored: Bytes) -> Result<Bytes, BadRun> {
        self.run.expect_length(&stored, self.run.layout.stored_block_bytes())?;
        let check = &self.checks[place as usize];
        let Some(cipher) = &self.cipher else {
            return if crc(&stored) == *check { Ok(stored) } else { Err(BadRun::Block { place }) };
        };
        let nonce = Nonce::assume_unique_for_key(*check.first_chunk::<NONCE_LEN>().expect("a check has 32 bytes"));
        let mut block = BytesMut::from(stored);
        let aad = Aad::from(self.run.associated(place as usize));
        let plain = cipher.open_in_place(nonce, aad, &mut block).map_err(|_| BadRun::Block { place })?.len();
        block.truncate(plain);
        Ok(block.freeze())
    }
}

fn random_nonce() -> [u8; NONCE_LEN] {
    let mut nonce = [0; NONCE_LEN];
    SystemRandom::new().fill(&mut nonce).expect("the kernel gives random bytes");
    nonce
}

fn crc(block: &[u8]) -> [u8; CHECK_BYTES] {
    padded(&crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, block).to_le_bytes())
}

fn padded(bytes: &[u8]) -> [u8; CHECK_BYTES] {
    let mut check = [0; CHECK_BYTES];
    check[..bytes.len()].copy_from_slice(bytes);
    check
}

#[cfg(test)]
mod tests;
