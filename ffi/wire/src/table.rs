//! Layout of a lane's page table: `blocks_max × planes` little-endian `u32` entries, indexed by page id, each a tier-0 frame or
//! [`NOT_PRESENT`]. The same array for CPU engines and, at a fixed device address, for kernels.

use crate::entry::NONE_U32;

/// The entry of a page that is not readable in tier 0 now.
pub const NOT_PRESENT: u32 = NONE_U32;
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 4;

/// Index of a page's entry; `None` if it does not fit 32 bits.
#[must_use]
pub const fn page_id(block: u32, plane: u16, planes: u16) -> Option<u32> {
    if plane >= planes {
        return None;
    }
    match block.checked_mul(planes as u32) {
        Some(first) => first.checked_add(plane as u32),
        None => None,
    }
}

/// Entries of a table for so many blocks; `None` if the last page id does not fit 32 bits (the all-ones id is not used).
#[must_use]
pub const fn entries(blocks_max: u32, planes: u16) -> Option<usize> {
    match blocks_max.checked_mul(planes as u32) {
        Some(n) => Some(n as usize),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_ids_are_dense_and_checked() {
        assert_eq!(page_id(0, 0, 6), Some(0));
        assert_eq!(page_id(7, 5, 6), Some(47));
        assert_eq!(page_id(7, 6, 6), None);
        assert_eq!(page_id(u32::MAX, 0, 2), None);
        assert_eq!(entries(100, 6), Some(600));
        assert_eq!(entries(u32::MAX, 2), None);
    }
}
