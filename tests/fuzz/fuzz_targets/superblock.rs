//! Any bytes as the two copies of a superblock, with and without corrected checksums: decoded, or an error text. A decoded
//! superblock encodes to the same bytes, and the areas of its file are in order.
#![no_main]

use kvtide_format::{SUPERBLOCK_BYTES, Superblock};
use libfuzzer_sys::fuzz_target;

const CHECKSUM: usize = SUPERBLOCK_BYTES - 4;

/// Compute CRC-32C bit by bit (reflected Castagnoli polynomial), so that the library is not checked with its own code.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 })
    })
}

/// Return the input's next superblock copy; missing bytes are zero.
fn copy(bytes: &mut &[u8]) -> [u8; SUPERBLOCK_BYTES] {
    let mut copy = [0; SUPERBLOCK_BYTES];
    let Some((&seal, rest)) = bytes.split_first() else { return copy };
    // A short input is the beginning of a copy, because the fields are there.
    let (here, rest) = rest.split_at(rest.len().min(if seal & 2 == 2 { SUPERBLOCK_BYTES } else { 96 }));
    copy[..here.len()].copy_from_slice(here);
    if seal & 1 == 1 {
        let crc = crc32c(&copy[..CHECKSUM]);
        copy[CHECKSUM..].copy_from_slice(&crc.to_le_bytes());
    }
    *bytes = rest;
    copy
}

/// The second field with the number of regions. Earlier builds counted pre-written regions in it.
const AGAIN: std::ops::Range<usize> = 76..80;

/// Return the copy as this build writes it.
fn normal(mut copy: [u8; SUPERBLOCK_BYTES], regions: u32) -> [u8; SUPERBLOCK_BYTES] {
    copy[AGAIN].copy_from_slice(&regions.to_le_bytes());
    let crc = crc32c(&copy[..CHECKSUM]);
    copy[CHECKSUM..].copy_from_slice(&crc.to_le_bytes());
    copy
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes;
    let copies = [copy(&mut bytes), copy(&mut bytes)];
    let mut best = None;
    for copy in &copies {
        match Superblock::decode(copy) {
            Ok(block) => {
                assert_eq!(block.encode(), normal(*copy, block.regions));
                assert!(block.log_offset >= 2 * SUPERBLOCK_BYTES as u64);
                assert!(block.log_offset + block.log_bytes <= block.regions_offset);
                assert!(block.regions_offset < block.file_bytes() && block.file_bytes() <= i64::MAX as u64);
                assert!(block.place() < block.log_offset);
                best = best.max(Some(block.sequence));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    if let Ok(newest) = Superblock::newest(&copies[0], &copies[1]) {
        assert_eq!(Some(newest.sequence), best);
    }
});
