//! Codecs of the device.

use super::GatherLayout;

/// A block to quantise or to dequantise.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuantItem {
    /// Added to the bases of the layout of the 16-bit rows.
    pub rows: u64,
    /// Address of the quantised block, 16-byte aligned.
    pub image: u64,
    /// Tokens that count; codes of the others are 0 and their rows are not accessed.
    pub tokens: u32,
    /// 0.
    pub reserved: u32,
}

/// `quantize_*` and `dequantize_*`: convert between 16-bit rows in any layout and quantised blocks (`reference::quant::Image`
/// describes their layout).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct QuantParams {
    /// Layout of the 16-bit rows.
    pub layout: GatherLayout,
    /// `QuantItem[count]`, 8-byte aligned, on the device or in host memory.
    pub items: u64,
    /// Out of `quantize_*`, `u32[count]` on the device: 1 if a block cannot be represented in this codec (a value that is not
    /// finite, or a range beyond the scale's); its image is then meaningless.
    pub refused: u64,
    /// `u32`: the lane's status word, or 0. While it is set, nothing is written.
    pub status: u64,
    /// Bytes of one layer's image.
    pub image_stride: u64,
    /// Blocks.
    pub count: u32,
    /// Layers of a block.
    pub layers: u32,
    /// Parts of a layer: 2 (keys, then values) or 1 (keys).
    pub parts: u32,
    /// Heads.
    pub heads: u32,
    /// Tokens of a block, at most 128.
    pub page_tokens: u32,
    /// Channels of a head: 32 or a multiple of 64; with values 32, 64, 128 or 256.
    pub channels: u32,
    /// 0: fp8 e4m3, 1: int8, 2: int4.
    pub codec: u32,
    /// 0.
    pub reserved: u32,
}
