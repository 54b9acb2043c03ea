//! Checksums of pages in host memory.

use super::transfer::{Part, Transfer};
use kvtide_format::PageKey;

/// Return the key of a page: it identifies store, slot, generation and plane.
fn key(store: u128, slot: super::SlotKey, part: &Part) -> PageKey {
    let super::SlotKey { region, slot, generation } = slot;
    PageKey { store, region, slot, generation, plane: part.plane }
}

/// Return the checksum of a page's current bytes.
fn checksum(key: &PageKey, part: &Part) -> u32 {
    assert!(part.memory.holds(part.offset, part.bytes.into()), "the page exceeds its memory");
    // SAFETY: the range was checked to lie in the memory, which the transfer keeps alive. The frame belongs to the transfer until
    // it ends: no thread of this process writes it meanwhile. An engine that maps it and breaks this rule changes only the
    // resulting checksum: the function's control flow depends only on the length.
    let bytes = unsafe { std::slice::from_raw_parts(part.memory.at(part.offset), part.bytes as usize) };
    key.checksum(bytes)
}

/// Result of comparing pages with their sampled digests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SampleCounts {
    /// Pages compared.
    pub checked: u64,
    /// Pages that differ.
    pub failed: u64,
}

/// Compute the checksum of every page of a write. If a page's digest is known from its store, compare: the digest is derived from
/// the page's keyed checksum.
pub(super) fn note(store: u128, transfer: &mut Transfer) -> SampleCounts {
    let mut counts = SampleCounts::default();
    for part in &mut transfer.parts {
        let key = key(store, transfer.key, part);
        part.crc = checksum(&key, part);
        part.ok = true;
        if let Some(digest) = part.digest {
            part.ok = key.digest(part.crc, part.bytes.into()) == digest;
            counts.checked += 1;
            counts.failed += u64::from(!part.ok);
        }
    }
    counts
}

/// Compare every page that was read with its checksum; return how many differ.
pub(super) fn compare(store: u128, transfer: &mut Transfer) -> u64 {
    let mut bad = 0;
    for part in &mut transfer.parts {
        let key = key(store, transfer.key, part);
        part.ok = checksum(&key, part) == part.crc;
        part.digest = (part.ok && part.sampled).then(|| key.digest(part.crc, part.bytes.into()));
        bad += u64::from(!part.ok);
    }
    bad
}
