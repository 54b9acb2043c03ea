//! Checksums of pages where they lie in host memory.

use super::transfer::{Part, Transfer};
use kvtide_tiering::format::PageKey;

/// The checksum of a page's bytes as they are now.
fn checksum(store: u128, transfer_key: super::SlotKey, part: &Part) -> u32 {
    let super::SlotKey { region, slot, generation } = transfer_key;
    let key = PageKey { store, region, slot, generation, plane: part.plane };
    assert!(part.memory.holds(part.offset, part.bytes.into()), "a page beyond its memory");
    // SAFETY: the range was checked to lie in the memory, which the transfer keeps alive. The frame is the transfer's until it ends:
    // no thread of this process writes it meanwhile. An engine that maps it and breaks that rule changes what the checksum comes
    // out as, and nothing else: the function's control flow depends on the length alone.
    let bytes = unsafe { std::slice::from_raw_parts(part.memory.at(part.offset), part.bytes as usize) };
    key.checksum(bytes)
}

/// Notes the checksum of every page that is about to be written.
pub(super) fn note(store: u128, transfer: &mut Transfer) {
    let key = transfer.key;
    for part in &mut transfer.parts {
        part.crc = checksum(store, key, part);
    }
}

/// Compares every page that was read with its checksum; how many are not what was written.
pub(super) fn compare(store: u128, transfer: &mut Transfer) -> u64 {
    let key = transfer.key;
    let mut bad = 0;
    for part in &mut transfer.parts {
        part.ok = checksum(store, key, part) == part.crc;
        bad += u64::from(!part.ok);
    }
    bad
}
