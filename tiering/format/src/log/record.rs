//! Encoding of the records in a batch. Each is a multiple of 8 bytes and begins with the same fields:
//!
//! ```text
//! offset  bytes  field
//!      0      4  CRC-32C of the bytes from 4 to the end of the record, XOR the CRC-32C of store id and epoch
//!      4      2  bytes of the record
//!      6      1  kind
//!      7      1  flags
//! ```
//! The checksum includes store id and epoch, so old bytes of another store or epoch are not accepted as records.

use super::blocks::Shape;
use super::bytes::{u16_at, u32_at, u64_at, u128_at};
use super::cipher::{NONCE_BYTES, TAG_BYTES};
use super::types::{DOMAIN_BYTES_MAX, Put, Salt, SlabHeader, SpaceKey};
use crate::crc32c;

const HEAD: usize = 8;
const SLAB: u8 = 1;
const FREED: u8 = 2;
const PUT: u8 = 3;
const ERASED: u8 = 4;
const SALT: u8 = 5;
/// Flag of a put: the body is encrypted.
const SEALED: u8 = 1;
/// Flag of a put: a start copied the record without proof that a device flush had covered it.
const UNSURE: u8 = 2;
/// Offset of the body of an unencrypted put.
const PUT_BODY: usize = 32;
/// Bytes of salt number, nonce and tag before an encrypted body.
const SEAL: usize = 4 + NONCE_BYTES + TAG_BYTES;
const SLAB_PLANES: usize = 136;
pub(super) const FREED_BYTES: usize = 24;
pub(super) const ERASED_BYTES: usize = 32;
pub(super) const SALT_BYTES: usize = 48;

/// CRC-32C of store id and epoch, XORed into the record checksums of a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seed(u32);

impl Seed {
    pub fn new(store: u128, epoch: u64) -> Seed {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&store.to_le_bytes());
        bytes[16..].copy_from_slice(&epoch.to_le_bytes());
        Seed(crc32c(&bytes))
    }

    /// Write the checksum of a record.
    pub fn seal(self, record: &mut [u8]) {
        let crc = crc32c(&record[4..]) ^ self.0;
        record[..4].copy_from_slice(&crc.to_le_bytes());
    }

    fn holds(self, record: &[u8]) -> bool {
        crc32c(&record[4..]) ^ self.0 == u32_at(record, 0)
    }
}

/// A decoded record.
#[derive(Debug)]
pub(super) enum Record<'a> {
    Slab(SlabHeader),
    Freed { region: u32 },
    Put(PutRecord<'a>),
    Erased { region: u32, slot: u32, generation: u32 },
    Salt(Salt),
}

/// Return the bytes of a slab record.
pub(super) fn slab_bytes(slab: &SlabHeader) -> usize {
    (SLAB_PLANES + 4 * slab.page_bytes.len()).next_multiple_of(8)
}

/// Return the bytes of a put record.
pub(super) fn put_bytes(shape: Shape) -> usize {
    let seal = if shape.tags > 0 { SEAL } else { 0 };
    (PUT_BODY + seal + body_bytes(shape)).next_multiple_of(8)
}

fn body_bytes(shape: Shape) -> usize {
    32 + 4 * (shape.words + shape.planes) + 2 * shape.sectors + 16 * shape.tags
}

fn head(record: &mut [u8], kind: u8) {
    let bytes = record.len() as u16;
    record[4..6].copy_from_slice(&bytes.to_le_bytes());
    record[6] = kind;
}

fn fill<const N: usize>(record: &mut [u8], at: &mut usize, field: [u8; N]) {
    record[*at..*at + N].copy_from_slice(&field);
    *at += N;
}

/// Encode a slab record, except its checksum.
pub(super) fn encode_slab(slab: &SlabHeader, record: &mut [u8]) {
    head(record, SLAB);
    record[7] = u8::from(slab.encrypted);
    let mut at = HEAD;
    fill(record, &mut at, slab.grant.to_le_bytes());
    fill(record, &mut at, slab.slot_bytes.to_le_bytes());
    fill(record, &mut at, slab.region.to_le_bytes());
    fill(record, &mut at, slab.planes().to_le_bytes());
    fill(record, &mut at, slab.shards.to_le_bytes());
    fill(record, &mut at, [slab.codec, slab.domain.len() as u8, 0, 0, 0, 0, 0, 0]);
    fill(record, &mut at, slab.key.0);
    record[at..at + slab.domain.len()].copy_from_slice(slab.domain.as_bytes());
    at += DOMAIN_BYTES_MAX;
    debug_assert_eq!(at, SLAB_PLANES);
    for bytes in &slab.page_bytes {
        fill(record, &mut at, bytes.to_le_bytes());
    }
}

/// Encode the record of a freed region.
pub(super) fn encode_freed(region: u32, grant: u64, record: &mut [u8]) {
    head(record, FREED);
    let mut at = HEAD;
    fill(record, &mut at, grant.to_le_bytes());
    fill(record, &mut at, region.to_le_bytes());
}

/// Encode the record of an erased block.
pub(super) fn encode_erased(region: u32, grant: u64, slot: u32, generation: u32, record: &mut [u8]) {
    head(record, ERASED);
    let mut at = HEAD;
    fill(record, &mut at, grant.to_le_bytes());
    fill(record, &mut at, region.to_le_bytes());
    fill(record, &mut at, slot.to_le_bytes());
    fill(record, &mut at, generation.to_le_bytes());
}

/// Encode a salt record.
pub(super) fn encode_salt(salt: &Salt, record: &mut [u8]) {
    head(record, SALT);
    let mut at = HEAD;
    fill(record, &mut at, salt.number.to_le_bytes());
    fill(record, &mut at, [0; 4]);
    fill(record, &mut at, salt.bytes);
}

/// Encode a put record, still unencrypted. The slices must have the lengths given by `shape`.
pub(super) fn encode_put(put: &Put<'_>, grant: u64, shape: Shape, record: &mut [u8]) {
    head(record, PUT);
    let mut at = HEAD;
    fill(record, &mut at, grant.to_le_bytes());
    fill(record, &mut at, put.region.to_le_bytes());
    fill(record, &mut at, put.slot.to_le_bytes());
    fill(record, &mut at, put.generation.to_le_bytes());
    fill(record, &mut at, put.shard.to_le_bytes());
    fill(record, &mut at, (shape.planes as u16).to_le_bytes());
    if shape.tags > 0 {
        record[7] |= SEALED;
        fill(record, &mut at, put.salt.to_le_bytes());
        at += NONCE_BYTES + TAG_BYTES;
    }
    fill(record, &mut at, put.hash.to_le_bytes());
    fill(record, &mut at, put.parent.to_le_bytes());
    for (index, word) in put.present.iter().enumerate() {
        // Clear the bits beyond the last plane, so that equal blocks have equal records.
        let planes = shape.planes - index * 32;
        let word = if planes >= 32 { *word } else { word & ((1 << planes) - 1) };
        fill(record, &mut at, word.to_le_bytes());
    }
    let present = |plane: usize| put.present[plane / 32] & 1 << (plane % 32) != 0;
    for (plane, crc) in put.crcs.iter().enumerate() {
        fill(record, &mut at, if present(plane) { *crc } else { 0 }.to_le_bytes());
    }
    for (plane, sectors) in put.sectors.iter().enumerate() {
        fill(record, &mut at, if present(plane) { *sectors } else { 0 }.to_le_bytes());
    }
    for (plane, tag) in put.tags.iter().enumerate() {
        fill(record, &mut at, if present(plane) { *tag } else { [0; 16] });
    }
}

/// Parts of an encrypted put record that the cipher needs.
pub(super) struct Seal<'a> {
    /// Associated data, authenticated with the body.
    pub associated: [u8; PUT_BODY - HEAD],
    pub nonce: &'a mut [u8],
    pub tag: &'a mut [u8],
    pub body: &'a mut [u8],
}

/// Split an encrypted put record into its parts.
pub(super) fn seal_parts(record: &mut [u8], shape: Shape) -> Seal<'_> {
    let mut associated = [0; PUT_BODY - HEAD];
    associated.copy_from_slice(&record[HEAD..PUT_BODY]);
    let (_, rest) = record.split_at_mut(PUT_BODY + 4);
    let (nonce, rest) = rest.split_at_mut(NONCE_BYTES);
    let (tag, rest) = rest.split_at_mut(TAG_BYTES);
    Seal { associated, nonce, tag, body: &mut rest[..body_bytes(shape)] }
}

/// Set the flag that a device flush may not have covered the put.
pub(super) fn mark_unsure(record: &mut [u8]) {
    record[7] |= UNSURE;
}

/// A put record, not yet decoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct PutRecord<'a>(&'a [u8]);

impl<'a> PutRecord<'a> {
    pub fn grant(&self) -> u64 {
        u64_at(self.0, 8)
    }

    pub fn region(&self) -> u32 {
        u32_at(self.0, 16)
    }

    pub fn slot(&self) -> u32 {
        u32_at(self.0, 20)
    }

    pub fn generation(&self) -> u32 {
        u32_at(self.0, 24)
    }

    pub fn shard(&self) -> u16 {
        u16_at(self.0, 28)
    }

    pub fn unsure(&self) -> bool {
        self.0[7] & UNSURE != 0
    }

    /// Return whether the record has the shape of its slab's blocks.
    pub fn fits(&self, shape: Shape) -> bool {
        usize::from(u16_at(self.0, 30)) == shape.planes
            && self.0.len() == put_bytes(shape)
            && (self.0[7] & SEALED != 0) == (shape.tags > 0)
    }

    /// Return the number of the salt, or 0 if the record is not encrypted.
    pub fn salt(&self) -> u32 {
        if self.0[7] & SEALED != 0 { u32_at(self.0, PUT_BODY) } else { 0 }
    }

    /// Return the associated data, authenticated with an encrypted body.
    pub fn associated(&self) -> &'a [u8] {
        &self.0[HEAD..PUT_BODY]
    }

    pub fn nonce(&self) -> &'a [u8] {
        &self.0[PUT_BODY + 4..PUT_BODY + 4 + NONCE_BYTES]
    }

    pub fn tag(&self) -> &'a [u8] {
        &self.0[PUT_BODY + 4 + NONCE_BYTES..PUT_BODY + SEAL]
    }

    /// Return the body as stored, encrypted or not.
    pub fn body(&self, shape: Shape) -> &'a [u8] {
        let at = if shape.tags > 0 { PUT_BODY + SEAL } else { PUT_BODY };
        &self.0[at..at + body_bytes(shape)]
    }
}

/// Return hash and parent hash from a decrypted body.
pub(super) fn hashes(body: &[u8]) -> (u128, u128) {
    (u128_at(body, 0), u128_at(body, 16))
}

/// Return the bytes of present planes, checksums, sectors and tags from a decrypted body.
pub(super) fn columns(body: &[u8], shape: Shape) -> [&[u8]; 4] {
    let (present, rest) = body[32..].split_at(4 * shape.words);
    let (crcs, rest) = rest.split_at(4 * shape.planes);
    let (sectors, tags) = rest.split_at(2 * shape.sectors);
    [present, crcs, sectors, &tags[..16 * shape.tags]]
}

/// Iterator over the records of a batch.
pub(super) struct Records<'a> {
    seed: Seed,
    rest: &'a [u8],
}

/// Bytes that are not a valid record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bad;

impl<'a> Records<'a> {
    pub fn new(seed: Seed, bytes: &'a [u8]) -> Records<'a> {
        Records { seed, rest: bytes }
    }
}

impl<'a> Iterator for Records<'a> {
    /// The bytes of a record, and the decoded record.
    type Item = Result<(&'a [u8], Record<'a>), Bad>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let bytes = if self.rest.len() < HEAD { 0 } else { usize::from(u16_at(self.rest, 4)) };
        if bytes < HEAD || bytes > self.rest.len() {
            // Without a valid length the next record cannot be located.
            self.rest = &[];
            return Some(Err(Bad));
        }
        let (record, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        let decoded = if self.seed.holds(record) { decode(record) } else { None };
        Some(decoded.map(|decoded| (record, decoded)).ok_or(Bad))
    }
}

/// Decode a record with a valid checksum. Its fields are not trusted and are checked.
fn decode(record: &[u8]) -> Option<Record<'_>> {
    let long = |bytes| (record.len() == bytes).then_some(());
    match record[6] {
        SLAB => decode_slab(record).map(Record::Slab),
        FREED => long(FREED_BYTES).map(|()| Record::Freed { region: u32_at(record, 16) }),
        PUT => {
            let least = if record[7] & SEALED != 0 { PUT_BODY + SEAL } else { PUT_BODY };
            (record.len() >= least && record[7] & !(SEALED | UNSURE) == 0).then_some(Record::Put(PutRecord(record)))
        }
        ERASED => long(ERASED_BYTES).map(|()| Record::Erased {
            region: u32_at(record, 16),
            slot: u32_at(record, 20),
            generation: u32_at(record, 24),
        }),
        SALT => {
            long(SALT_BYTES)?;
            let mut bytes = [0; 32];
            bytes.copy_from_slice(&record[16..48]);
            Some(Record::Salt(Salt { number: u32_at(record, 8), bytes }))
        }
        _ => None,
    }
}

fn decode_slab(record: &[u8]) -> Option<SlabHeader> {
    if record.len() < SLAB_PLANES || record[7] > 1 {
        return None;
    }
    let planes = usize::from(u16_at(record, 28));
    let domain = record.get(72..72 + usize::from(record[33]).min(DOMAIN_BYTES_MAX))?;
    let mut key = [0; 32];
    key.copy_from_slice(&record[40..72]);
    let end = SLAB_PLANES + 4 * planes;
    if record.len() != end.next_multiple_of(8) {
        return None;
    }
    let page_bytes = record[SLAB_PLANES..end].chunks_exact(4).map(|word| u32_at(word, 0)).collect();
    let slab = SlabHeader {
        region: u32_at(record, 24),
        grant: u64_at(record, 8),
        key: SpaceKey(key),
        domain: std::str::from_utf8(domain).ok()?.into(),
        slot_bytes: u64_at(record, 16),
        shards: u16_at(record, 30),
        codec: record[32],
        encrypted: record[7] == 1,
        page_bytes,
    };
    slab.check().is_ok().then_some(slab)
}
