//! Checksums of pages where they lie in host memory.

use super::transfer::{Part, Transfer};
use kvtide_tiering::format::PageKey;

/// Whose page a part is.
fn key(store: u128, slot: super::SlotKey, part: &Part) -> PageKey {
    let super::SlotKey { region, slot, generation } = slot;
    PageKey { store, region, slot, generation, plane: part.plane }
}

/// The checksum of a page's bytes as they are now.
fn checksum(key: &PageKey, part: &Part) -> u32 {
    assert!(part.memory.holds(part.offset, part.bytes.into()), "a page beyond its memory");
    // SAFETY: the range was checked to lie in the memory, which the transfer keeps alive. The frame is the transfer's until it ends:
    // no thread of this process writes it meanwhile. An engine that maps it and breaks that rule changes what the checksum comes
    // out as, and nothing else: the function's control flow depends on the length alone.
    let bytes = unsafe { std::slice::from_raw_parts(part.memory.at(part.offset), part.bytes as usize) };
    key.checksum(bytes)
}

/// Pages that were compared with what was stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Canary {
    /// How many.
    pub checked: u64,
    /// Of them, those that are something else.
    pub failed: u64,
}

/// Notes the checksum of every page that is about to be written, and compares those whose digest is known from when they were
/// stored: the page's own checksum follows from the one with its key.
pub(super) fn note(store: u128, transfer: &mut Transfer) -> Canary {
    let mut canary = Canary::default();
    for part in &mut transfer.parts {
        let key = key(store, transfer.key, part);
        part.crc = checksum(&key, part);
        part.ok = true;
        if let Some(digest) = part.digest {
            part.ok = key.digest(part.crc, part.bytes.into()) == digest;
            canary.checked += 1;
            canary.failed += u64::from(!part.ok);
        }
    }
    canary
}

/// Compares every page that was read with its checksum; how many are not what was written.
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
