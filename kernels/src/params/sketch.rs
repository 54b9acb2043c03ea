//! Sketches of sealed pages, and the shares that they predict for queries.

/// Instead of a slot: the page is not sealed, and has no share.
pub const SKETCH_OPEN: u32 = 0xffff_ffff;
/// Instead of a slot: the page has no estimate.
pub const SKETCH_UNKNOWN: u32 = 0xffff_fffe;

/// A sealed page that needs a sketch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SketchItem {
    /// Added to `SketchBuildParams::keys`: the page.
    pub page: u64,
    /// Slot of its sketch.
    pub slot: u32,
    /// Its tokens, 1 to 128.
    pub tokens: u32,
}

/// `sketch_build_*`: sketches of sealed pages, byte by byte those of `kvtide_wire::digest::sketch::build`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SketchBuildParams {
    /// Key of (head, token) at keys + page + head × head_stride + token / tile_tokens × tile_stride + token % tile_tokens ×
    /// token_stride, 16-byte aligned.
    pub keys: u64,
    /// Bytes between two heads.
    pub head_stride: u64,
    /// Bytes between two tiles of tokens.
    pub tile_stride: u64,
    /// Bytes between two tokens within a tile.
    pub token_stride: u64,
    /// `SketchItem[count]`, 16-byte aligned, on the device or in host memory.
    pub items: u64,
    /// Out, `[slots][heads][groups][2 + ⌈3 × channels / 8⌉]` bytes.
    pub sketches: u64,
    /// `u32`: the lane's status word, or 0. While it is set, nothing is written.
    pub status: u64,
    /// Pages.
    pub count: u32,
    /// KV heads.
    pub heads: u32,
    /// Channels of a head, a multiple of 8, at most 1024.
    pub channels: u32,
    /// Groups of a sketch, at most 32.
    pub groups: u32,
    /// Tokens of a tile.
    pub tile_tokens: u32,
    /// Slots in `sketches`. An item beyond them is not built.
    pub slots: u32,
}

/// `sketch_scores` and `sketch_shares`: the share of attention of one query that each page of a sequence would get, averaged over
/// heads, as `kvtide_wire::digest::sketch` estimates it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SketchScoresParams {
    /// `f32[kv_heads × group][channels]`.
    pub queries: u64,
    /// `[slots][kv_heads][groups][2 + ⌈3 × channels / 8⌉]` bytes.
    pub sketches: u64,
    /// `u32[pages]`: the slot of each page, [`SKETCH_OPEN`] or [`SKETCH_UNKNOWN`].
    pub places: u64,
    /// `f32[kv_heads × group][pages]`: workspace of both kernels, logarithms of sums.
    pub sums: u64,
    /// Out, `f32[pages]`: shares.
    pub shares: u64,
    /// `u32`: the lane's status word, or 0. While it is set, nothing is written.
    pub status: u64,
    /// Pages.
    pub pages: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Query heads of a KV head.
    pub group: u32,
    /// Channels of a head, a multiple of 8, at most 1024.
    pub channels: u32,
    /// Groups of a sketch, at most 32.
    pub groups: u32,
    /// Slots in `sketches`.
    pub slots: u32,
    /// Factor of products before the softmax, positive.
    pub scale: f32,
    /// 0.
    pub reserved: u32,
}
