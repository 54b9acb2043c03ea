//! Layout of a page of the demo's KV: f32, so that storing is lossless and every difference is visible.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{HEAD_DIM, KV_HEADS, PAGE_TOKENS, TILE};

/// [`PAGE_TOKENS`] tokens of one plane: 32 KiB. Slots after the last written token are undefined. Aligned like the frames of all
/// tiers, so that a plain array of pages is read equally fast.
#[repr(C, align(64))]
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Page {
    /// One part for each KV head.
    pub heads: Heads,
}

/// A page's part for one KV head, in tiles of [`TILE`] floats, in the order in which [`super::split()`] reads them.
#[repr(C)]
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct HeadPage {
    /// Keys after RoPE: tiles of [`TILE`] neighbouring tokens, channel by channel.
    pub keys: [[[f32; TILE]; HEAD_DIM]; PAGE_TOKENS / TILE],
    /// Values: tiles of [`TILE`] neighbouring channels, token by token.
    pub values: [[[f32; TILE]; PAGE_TOKENS]; HEAD_DIM / TILE],
}

/// The content of a page, for memory that is not aligned like [`Page`].
pub type Heads = [HeadPage; KV_HEADS];

/// Write the keys and values of one token, each `[KV_HEADS × HEAD_DIM]`, into its slot.
pub fn write(heads: &mut Heads, slot: usize, keys: &[f32], values: &[f32]) {
    for (h, head) in heads.iter_mut().enumerate() {
        let channels = h * HEAD_DIM..(h + 1) * HEAD_DIM;
        for (channel, key) in head.keys[slot / TILE].iter_mut().zip(&keys[channels.clone()]) {
            channel[slot % TILE] = *key;
        }
        for (tile, values) in head.values.iter_mut().zip(values[channels].chunks_exact(TILE)) {
            tile[slot].copy_from_slice(values);
        }
    }
}

impl Page {
    /// Bytes of a page.
    pub const BYTES: usize = size_of::<Page>();

    /// Write the keys and values of one token, each `[KV_HEADS × HEAD_DIM]`, into its slot.
    pub fn write(&mut self, slot: usize, keys: &[f32], values: &[f32]) {
        write(&mut self.heads, slot, keys, values);
    }
}

#[cfg(test)]
impl HeadPage {
    /// Return a channel of a key.
    pub(crate) fn key(&self, slot: usize, channel: usize) -> f32 {
        self.keys[slot / TILE][channel][slot % TILE]
    }

    /// Return a channel of a value.
    pub(crate) fn value(&self, slot: usize, channel: usize) -> f32 {
        self.values[channel / TILE][slot][channel % TILE]
    }

    /// Flip bits of a channel of a key.
    pub(crate) fn flip(&mut self, slot: usize, channel: usize, bits: u32) {
        let key = &mut self.keys[slot / TILE][channel][slot % TILE];
        *key = f32::from_bits(key.to_bits() ^ bits);
    }
}
