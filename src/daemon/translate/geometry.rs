//! Check the geometry declared by an engine and convert it for the core.

use kvtide_tiering::api::{Plane, PlaneKind};
use kvtide_wire::geometry::{CLASSES_MAX, PLANES_MAX, PlaneKind as WireKind, PlaneSpec};

/// Largest page of a plane: 1 GiB, the largest host segment (design: memfd segments of at most 1 GiB).
const PAGE_BYTES_MAX: u32 = 1 << 30;

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
    /// Unknown kind code.
    #[error("plane {plane}: kind {kind} is unknown, expected 0 (full), 1 (window) or 2 (state)")]
    Kind {
        /// Index of the plane.
        plane: usize,
        /// The declared value.
        kind: u16,
    },
    /// A window size for a kind without window, or none for a kind with one.
    #[error("plane {plane}: window_tokens is {window_tokens}, expected {expected} for this kind")]
    Window {
        /// Index of the plane.
        plane: usize,
        /// The declared value.
        window_tokens: u32,
        /// The values allowed for the kind.
        expected: &'static str,
    },
    /// A reserved field is not zero.
    #[error("plane {plane}: reserved is {reserved}, expected 0")]
    Reserved {
        /// Index of the plane.
        plane: usize,
        /// The declared value.
        reserved: u16,
    },
}

/// Convert one plane; errors contain `index`.
///
/// # Errors
/// The page size, kind, window or reserved field is out of range.
pub fn plane(index: usize, spec: &PlaneSpec) -> Result<Plane, GeometryError> {
    if spec.page_bytes == 0 || spec.page_bytes > PAGE_BYTES_MAX {
        return Err(GeometryError::PageBytes { plane: index, page_bytes: spec.page_bytes });
    }
    if spec.reserved != 0 {
        return Err(GeometryError::Reserved { plane: index, reserved: spec.reserved });
    }
    let window = |expected| GeometryError::Window { plane: index, window_tokens: spec.window_tokens, expected };
    let wire = wire_kind(spec.kind).ok_or(GeometryError::Kind { plane: index, kind: spec.kind })?;
    let kind = match wire {
        WireKind::Window if spec.window_tokens == 0 => return Err(window("at least 1")),
        WireKind::Full | WireKind::State if spec.window_tokens != 0 => return Err(window("0")),
        WireKind::Full => PlaneKind::Full,
        WireKind::Window => PlaneKind::Window { tokens: spec.window_tokens },
        WireKind::State => PlaneKind::State,
    };
    Ok(Plane { page_bytes: spec.page_bytes, kind })
}

/// Convert all planes of a space.
///
/// # Errors
/// The first invalid plane, or too many planes or page sizes.
pub fn planes(specs: &[PlaneSpec]) -> Result<Vec<Plane>, GeometryError> {
    if specs.is_empty() || specs.len() > PLANES_MAX {
        return Err(GeometryError::Planes(specs.len()));
    }
    let planes: Vec<Plane> = specs.iter().enumerate().map(|(i, spec)| plane(i, spec)).collect::<Result<_, _>>()?;
    match classes(&planes).len() {
        count if count > CLASSES_MAX => Err(GeometryError::Classes(count)),
        _ => Ok(planes),
    }
}

/// Return the page bytes of each size class, in order of first appearance.
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

fn wire_kind(code: u16) -> Option<WireKind> {
    [WireKind::Full, WireKind::Window, WireKind::State].into_iter().find(|kind| *kind as u16 == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(page_bytes: u32, kind: u16, window_tokens: u32) -> PlaneSpec {
        PlaneSpec { page_bytes, kind, reserved: 0, window_tokens }
    }

    #[test]
    fn planes_translate_and_classes_follow_first_appearance() {
        let planes = planes(&[spec(4096, 0, 0), spec(1152, 1, 256), spec(4096, 2, 0)]).unwrap();
        assert_eq!(planes[1], Plane { page_bytes: 1152, kind: PlaneKind::Window { tokens: 256 } });
        assert_eq!(planes[2].kind, PlaneKind::State);
        assert_eq!(classes(&planes), [4096, 1152]);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        assert_eq!(planes(&[]), Err(GeometryError::Planes(0)));
        assert_eq!(planes(&vec![spec(1, 0, 0); PLANES_MAX + 1]), Err(GeometryError::Planes(PLANES_MAX + 1)));
        assert_eq!(planes(&[spec(0, 0, 0)]), Err(GeometryError::PageBytes { plane: 0, page_bytes: 0 }));
        assert_eq!(planes(&[spec(8, 3, 0)]), Err(GeometryError::Kind { plane: 0, kind: 3 }));
        assert!(matches!(planes(&[spec(8, 1, 0)]), Err(GeometryError::Window { plane: 0, .. })));
        assert!(matches!(planes(&[spec(8, 0, 0), spec(8, 2, 9)]), Err(GeometryError::Window { plane: 1, .. })));
        let reserved = PlaneSpec { reserved: 1, ..spec(8, 0, 0) };
        assert_eq!(planes(&[reserved]), Err(GeometryError::Reserved { plane: 0, reserved: 1 }));
        let many: Vec<_> = (1..=CLASSES_MAX as u32 + 1).map(|bytes| spec(bytes, 0, 0)).collect();
        assert_eq!(planes(&many), Err(GeometryError::Classes(CLASSES_MAX + 1)));
    }
}
