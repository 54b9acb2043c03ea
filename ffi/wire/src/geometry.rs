//! Geometry of a space: the shared types, and a plane as encoded in the attach message.

pub use kvtide_types::geometry::{
    CLASSES_MAX, FRAME_ALIGN, GeometryError, PAGE_BYTES_MAX, PLANES_MAX, Plane, PlaneKind, check, class_of, classes,
    stride,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// One plane of a shard, as encoded in the attach message.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct PlaneSpec {
    /// Bytes of one page of this plane in one shard: any number from 1 to 1 GiB.
    pub page_bytes: u32,
    /// [`PlaneKind::code`].
    pub kind: u16,
    /// Zero.
    pub reserved: u16,
    /// Window of a plane with one in tokens, otherwise 0.
    pub window_tokens: u32,
}

const _: () = assert!(size_of::<PlaneSpec>() == 12 && align_of::<PlaneSpec>() == 4);

impl From<Plane> for PlaneSpec {
    fn from(plane: Plane) -> PlaneSpec {
        let (kind, window_tokens) = plane.kind.code();
        PlaneSpec { page_bytes: plane.page_bytes, kind, reserved: 0, window_tokens }
    }
}

impl PlaneSpec {
    /// Return the plane; `None` for an unknown kind. `reserved`, and the window of a kind without one, are not checked.
    #[must_use]
    pub fn plane(&self) -> Option<Plane> {
        let kind = PlaneKind::from_code(self.kind, self.window_tokens)?;
        Some(Plane { page_bytes: self.page_bytes, kind })
    }
}
