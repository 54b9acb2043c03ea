//! Geometry of a space, computed the same way by both sides: planes, page sizes, size classes, and the pages that a step reads.

use alloc::vec::Vec;

/// Maximum planes of a space (layers or layer groups).
pub const PLANES_MAX: usize = 512;
/// Maximum number of distinct page sizes of a space.
pub const CLASSES_MAX: usize = 8;
/// Maximum bytes of a page: 1 GiB, the largest host segment.
pub const PAGE_BYTES_MAX: u32 = 1 << 30;
/// Frames of every tier are aligned to this many bytes; a page's stride is its size rounded up to it.
pub const FRAME_ALIGN: u32 = 64;

/// Contents of a plane's pages, and the pages that a step reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum PlaneKind {
    /// Attention over all tokens (MHA, GQA, MQA; MLA latent vectors).
    Full,
    /// Attention over the last `tokens` tokens.
    Window {
        /// Width of the window, at least 1.
        tokens: u32,
    },
    /// Recurrent state: the page at index i is the snapshot after its last token; a step reads only the newest.
    State,
}

impl PlaneKind {
    /// Code of [`PlaneKind::Full`].
    pub const FULL: u16 = 0;
    /// Code of [`PlaneKind::Window`].
    pub const WINDOW: u16 = 1;
    /// Code of [`PlaneKind::State`].
    pub const STATE: u16 = 2;

    /// Return its code, as in the C ABI, and its window in tokens, 0 if it has none.
    #[must_use]
    pub const fn code(self) -> (u16, u32) {
        match self {
            PlaneKind::Full => (PlaneKind::FULL, 0),
            PlaneKind::Window { tokens } => (PlaneKind::WINDOW, tokens),
            PlaneKind::State => (PlaneKind::STATE, 0),
        }
    }

    /// Return the kind with this code and window; `None` for an unknown code. The window of a kind without one is ignored.
    #[must_use]
    pub const fn from_code(code: u16, window_tokens: u32) -> Option<PlaneKind> {
        match code {
            PlaneKind::FULL => Some(PlaneKind::Full),
            PlaneKind::WINDOW => Some(PlaneKind::Window { tokens: window_tokens }),
            PlaneKind::STATE => Some(PlaneKind::State),
            _ => None,
        }
    }

    /// Return the first block index that a read at length `tokens`, the current token included, needs in such a plane. All blocks from
    /// there to the last are needed.
    #[must_use]
    pub fn first_needed(self, tokens: u64, page_tokens: u64) -> u64 {
        match self {
            PlaneKind::Full => 0,
            PlaneKind::Window { tokens: window } => tokens.saturating_sub(u64::from(window)) / page_tokens,
            PlaneKind::State => tokens.saturating_sub(1) / page_tokens,
        }
    }
}

/// One plane of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Plane {
    /// Bytes of one page of this plane in one shard: any number from 1 to 1 GiB.
    pub page_bytes: u32,
    /// Contents, and the pages that a step reads.
    pub kind: PlaneKind,
}

impl Plane {
    /// Create a plane with attention over all tokens.
    #[must_use]
    pub const fn full(page_bytes: u32) -> Plane {
        Plane { page_bytes, kind: PlaneKind::Full }
    }
}

/// Reason why a geometry is rejected; the text goes to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// No plane, or more than [`PLANES_MAX`].
    #[error("{0} planes, expected 1 to {PLANES_MAX}")]
    Planes(usize),
    /// More page sizes than size classes.
    #[error("{0} different page sizes, at most {CLASSES_MAX} are supported")]
    Classes(usize),
    /// Page size out of range.
    #[error("plane {plane}: page_bytes is {page_bytes}, expected 1 to {PAGE_BYTES_MAX}")]
    PageBytes {
        /// Index of the plane.
        plane: usize,
        /// The declared value.
        page_bytes: u32,
    },
    /// A window without tokens.
    #[error("plane {plane}: the window has 0 tokens, expected at least 1")]
    Window {
        /// Index of the plane.
        plane: usize,
    },
}

/// Return the distance in bytes between two frames for pages of `page_bytes`.
#[must_use]
pub const fn stride(page_bytes: u32) -> u32 {
    page_bytes.next_multiple_of(FRAME_ALIGN)
}

/// Check the planes of a space: their number, page sizes and windows.
///
/// # Errors
/// The first plane that is wrong, or too many planes or page sizes.
pub fn check(planes: &[Plane]) -> Result<(), GeometryError> {
    if planes.is_empty() || planes.len() > PLANES_MAX {
        return Err(GeometryError::Planes(planes.len()));
    }
    for (index, &Plane { page_bytes, kind }) in planes.iter().enumerate() {
        if page_bytes == 0 || page_bytes > PAGE_BYTES_MAX {
            return Err(GeometryError::PageBytes { plane: index, page_bytes });
        }
        if kind == (PlaneKind::Window { tokens: 0 }) {
            return Err(GeometryError::Window { plane: index });
        }
    }
    match classes(planes).len() {
        count if count > CLASSES_MAX => Err(GeometryError::Classes(count)),
        _ => Ok(()),
    }
}

/// Return the page bytes of each size class. Planes with equal `page_bytes` form a class; classes are numbered in the order in which
/// their first plane appears.
#[must_use]
pub fn classes(planes: &[Plane]) -> Vec<u32> {
    let mut classes = Vec::new();
    for plane in planes {
        if !classes.contains(&plane.page_bytes) {
            classes.push(plane.page_bytes);
        }
    }
    classes
}

/// Return the size class of each plane.
#[must_use]
pub fn class_of(planes: &[Plane]) -> Vec<u8> {
    let classes = classes(planes);
    let class = |plane: &Plane| classes.iter().take_while(|&&bytes| bytes != plane.page_bytes).count() as u8;
    planes.iter().map(class).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_first_appearance() {
        let window = Plane { page_bytes: 1152, kind: PlaneKind::Window { tokens: 256 } };
        let planes = [Plane::full(4096), window, Plane { kind: PlaneKind::State, ..Plane::full(4096) }];
        assert_eq!(check(&planes), Ok(()));
        assert_eq!(classes(&planes), [4096, 1152]);
        assert_eq!(class_of(&planes), [0, 1, 0]);
    }

    #[test]
    fn wrong_planes_are_refused_by_name() {
        assert_eq!(check(&[]), Err(GeometryError::Planes(0)));
        assert_eq!(check(&[Plane::full(1); PLANES_MAX + 1]), Err(GeometryError::Planes(PLANES_MAX + 1)));
        assert_eq!(check(&[Plane::full(0)]), Err(GeometryError::PageBytes { plane: 0, page_bytes: 0 }));
        let window = Plane { page_bytes: 8, kind: PlaneKind::Window { tokens: 0 } };
        assert_eq!(check(&[Plane::full(8), window]), Err(GeometryError::Window { plane: 1 }));
        let many: Vec<_> = (1..=CLASSES_MAX as u32 + 1).map(Plane::full).collect();
        assert_eq!(check(&many), Err(GeometryError::Classes(CLASSES_MAX + 1)));
    }

    #[test]
    fn a_step_reads_from_the_window_on() {
        let needed = |kind, tokens| PlaneKind::first_needed(kind, tokens, 16);
        assert_eq!(needed(PlaneKind::Full, 100), 0);
        assert_eq!([31, 32, 47, 48].map(|tokens| needed(PlaneKind::Window { tokens: 16 }, tokens)), [0, 1, 1, 2]);
        assert_eq!([0, 1, 16, 17].map(|tokens| needed(PlaneKind::State, tokens)), [0, 0, 0, 1]);
    }
}
