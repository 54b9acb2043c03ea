//! Layout of a lane's page table: `blocks_max × planes` little-endian `u32` entries, indexed by page id, each a tier-0 frame plus
//! one or [`NOT_PRESENT`]. CPU engines and kernels use the same array; for kernels it has a fixed device address.
//!
//! "Not present" is zero so that fresh memory is an empty table: a table of 10^8 entries costs only the pages that are used.

/// Entry of a page that is not readable in tier 0.
pub const NOT_PRESENT: u32 = 0;
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 4;
/// Exclusive upper bound of the frames that an entry can name.
pub const FRAMES_MAX: u32 = u32::MAX;

/// Return the entry that shows a frame below [`FRAMES_MAX`].
#[must_use]
pub const fn encode(frame: u32) -> u32 {
    frame.wrapping_add(1)
}

/// Return the frame that an entry shows.
#[must_use]
pub const fn decode(entry: u32) -> Option<u32> {
    entry.checked_sub(1)
}

/// Return the index of a page's entry; `None` if it does not fit 32 bits.
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

/// Return the entries of a table for `blocks_max` blocks; `None` if they do not fit 32 bits.
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

    #[test]
    fn zeroed_memory_is_an_empty_table() {
        assert_eq!((decode(NOT_PRESENT), encode(0)), (None, 1));
        assert_eq!(decode(encode(FRAMES_MAX - 1)), Some(FRAMES_MAX - 1));
    }
}
