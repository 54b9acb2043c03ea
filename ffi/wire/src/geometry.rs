//! Geometry of a space, computed the same way by both sides: planes, page sizes, size classes, and the pages that a step reads.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Maximum planes of a space (layers or layer groups).
pub const PLANES_MAX: usize = 512;
/// Maximum number of distinct page sizes of a space.
pub const CLASSES_MAX: usize = 8;
/// Frames of every tier are aligned to this many bytes; a page's stride is its size rounded up to it.
pub const FRAME_ALIGN: u32 = 64;

/// Type of a plane: the content of its pages and which of them a step reads.
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlaneKind {
    /// Attention over all tokens (MHA, GQA, MQA; MLA latent vectors).
    Full = 0,
    /// Attention over the last `window_tokens` tokens.
    Window = 1,
    /// Recurrent state: the page at index i is the snapshot after its last token; a step reads only the newest.
    State = 2,
}

/// One plane of a shard, as encoded in the attach message.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct PlaneSpec {
    /// Bytes of one page of this plane in one shard: any number from 1 to 1 GiB.
    pub page_bytes: u32,
    /// [`PlaneKind`] code.
    pub kind: u16,
    /// Zero.
    pub reserved: u16,
    /// Window of a [`PlaneKind::Window`] plane in tokens, otherwise 0.
    pub window_tokens: u32,
}

const _: () = assert!(size_of::<PlaneSpec>() == 12 && align_of::<PlaneSpec>() == 4);

/// Return the distance in bytes between two frames for pages of `page_bytes`.
#[must_use]
pub const fn stride(page_bytes: u32) -> u32 {
    page_bytes.next_multiple_of(FRAME_ALIGN)
}

impl PlaneSpec {
    /// Return the first block index that a read at length `tokens` needs in this plane. All blocks from there to the last are
    /// needed.
    ///
    /// `tokens` includes the current token.
    #[must_use]
    pub fn first_needed(&self, tokens: u64, page_tokens: u32) -> u64 {
        let last = tokens.saturating_sub(1) / u64::from(page_tokens);
        match self.kind {
            k if k == PlaneKind::Window as u16 => {
                tokens.saturating_sub(u64::from(self.window_tokens)) / u64::from(page_tokens)
            }
            k if k == PlaneKind::State as u16 => last,
            _ => 0,
        }
    }
}
