//! Geometry of a space as both sides compute it: planes, page sizes, size classes, and which pages a step reads.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most planes of a space (layers or layer groups).
pub const PLANES_MAX: usize = 512;
/// Most distinct page sizes of a space.
pub const CLASSES_MAX: usize = 8;
/// Frames of every tier are aligned to this many bytes; a page's stride is its size rounded up to it.
pub const FRAME_ALIGN: u32 = 64;

/// What a plane's pages hold and which of them a step reads.
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

/// One plane of a shard, as it stands in the attach message.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct PlaneSpec {
    /// Bytes of one page of this plane in one shard; any number from 1 to 1 GiB, no multiple of anything.
    pub page_bytes: u32,
    /// [`PlaneKind`] code.
    pub kind: u16,
    /// Zero.
    pub reserved: u16,
    /// Window of a [`PlaneKind::Window`] plane in tokens, else 0.
    pub window_tokens: u32,
}

const _: () = assert!(size_of::<PlaneSpec>() == 12 && align_of::<PlaneSpec>() == 4);

/// Bytes from one frame to the next for pages of `page_bytes`.
#[must_use]
pub const fn stride(page_bytes: u32) -> u32 {
    page_bytes.next_multiple_of(FRAME_ALIGN)
}

impl PlaneSpec {
    /// The first block index that a read at length `tokens` needs in this plane; blocks from it to the last are needed.
    ///
    /// `tokens` counts those that attention covers, the current one included.
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
