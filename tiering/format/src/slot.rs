//! Slot layout: the pages of all planes of one block, packed so that one request transfers the whole block.

use kvtide_types::Plane;

/// Alignment and size unit of slots. 4096 bytes is the largest logical block size of current devices, so direct I/O is always
/// possible in this unit.
pub const SECTOR: u32 = 4096;
/// Smallest logical block size of devices. Pages of a multiple of this size are aligned to it.
const SECTOR_MIN: u32 = 512;
/// Alignment of all other pages: a cache line.
const LINE: u32 = 64;

/// Offset of each plane's page in a slot.
///
/// Pages that are multiples of 4096 bytes come first, aligned to 4096; then multiples of 512 bytes, aligned to 512; then the rest,
/// aligned to 64. Within each group planes keep their order, so planes that a step reads one after the other are adjacent on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotLayout {
    offsets: Vec<u64>,
    bytes: u64,
}

impl SlotLayout {
    /// Compute the layout for the planes of a space.
    #[must_use]
    pub fn new(planes: &[Plane]) -> SlotLayout {
        let align = |plane: &Plane| {
            [SECTOR, SECTOR_MIN].into_iter().find(|a| plane.page_bytes.is_multiple_of(*a)).unwrap_or(LINE)
        };
        let mut offsets = vec![0; planes.len()];
        let mut end = 0u64;
        for kind in [SECTOR, SECTOR_MIN, LINE] {
            for (offset, plane) in offsets.iter_mut().zip(planes).filter(|(_, plane)| align(plane) == kind) {
                *offset = end.next_multiple_of(u64::from(kind));
                end = *offset + u64::from(plane.page_bytes);
            }
        }
        SlotLayout { offsets, bytes: end.next_multiple_of(u64::from(SECTOR)) }
    }

    /// Return the bytes of a slot, a multiple of [`SECTOR`].
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Return the byte offset of the plane's page in the slot, or `None` if there is no such plane.
    #[must_use]
    pub fn offset(&self, plane: u16) -> Option<u64> {
        self.offsets.get(usize::from(plane)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_types::PlaneKind;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pages_stand_apart_and_aligned(sizes in prop::collection::vec(1u32..20_000, 1..40), whole in 0u32..3) {
            let unit = [1, 512, 4096][whole as usize];
            let plane = |i: usize, n: u32| if i.is_multiple_of(2) { n.next_multiple_of(unit) } else { n };
            let planes: Vec<Plane> = sizes.iter().enumerate()
                .map(|(i, &n)| Plane { page_bytes: plane(i, n), kind: PlaneKind::Full }).collect();
            let layout = SlotLayout::new(&planes);
            let mut spans: Vec<(u64, u64)> = planes.iter().enumerate()
                .map(|(i, p)| (layout.offset(i as u16).unwrap(), u64::from(p.page_bytes))).collect();
            for (i, (offset, bytes)) in spans.iter().enumerate() {
                for sector in [4096, 512, 64] {
                    if bytes.is_multiple_of(sector) { prop_assert!(offset.is_multiple_of(sector), "plane {} at {}", i, offset); }
                }
            }
            spans.sort_unstable();
            prop_assert!(spans.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
            let end = spans.last().unwrap();
            prop_assert!(end.0 + end.1 <= layout.bytes() && layout.bytes().is_multiple_of(u64::from(SECTOR)));
            prop_assert_eq!(layout.offset(planes.len() as u16), None);
        }
    }

    #[test]
    fn pages_of_whole_sectors_waste_nothing() {
        let planes = vec![Plane { page_bytes: 32 << 10, kind: PlaneKind::Full }; 6];
        assert_eq!(SlotLayout::new(&planes).bytes(), 6 * (32 << 10));
    }
}
