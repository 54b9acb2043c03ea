//! What a page of the demo's KV looks like: f32, so that storing loses nothing and every difference is visible.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{HEAD_DIM, KV_HEADS, PAGE_TOKENS};

/// [`PAGE_TOKENS`] tokens of one plane: 32 KiB. Slots past the last written token hold anything at all.
#[repr(C)]
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Page {
    /// One part for each KV head.
    pub heads: [HeadPage; KV_HEADS],
}

/// One KV head's part of a page.
#[repr(C)]
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct HeadPage {
    /// Keys after RoPE, channel by channel: scores are computed for neighbouring tokens at once.
    pub keys: [[f32; PAGE_TOKENS]; HEAD_DIM],
    /// Values, token by token: outputs are computed for neighbouring channels at once.
    pub values: [[f32; HEAD_DIM]; PAGE_TOKENS],
}

impl Page {
    /// Bytes of a page.
    pub const BYTES: usize = size_of::<Page>();

    /// Writes one token's keys and values, each `[KV_HEADS × HEAD_DIM]`, into its slot.
    pub fn write(&mut self, slot: usize, keys: &[f32], values: &[f32]) {
        for (h, head) in self.heads.iter_mut().enumerate() {
            let channels = h * HEAD_DIM..(h + 1) * HEAD_DIM;
            for (row, key) in head.keys.iter_mut().zip(&keys[channels.clone()]) {
                row[slot] = *key;
            }
            head.values[slot].copy_from_slice(&values[channels]);
        }
    }
}
