//! Copies by the multiprocessors: lists of fragments, blocks between layouts.

/// One piece of memory to copy.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyFragment {
    /// Source: an address that the device can read.
    pub from: u64,
    /// Target: an address that the device can write.
    pub to: u64,
    /// Length.
    pub bytes: u32,
    /// 0.
    pub reserved: u32,
}

/// `copy_list`: copies a list of fragments between device and registered host memory. Fragments of a launch do not overlap.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyListParams {
    /// `CopyFragment[count]`, 8-byte aligned, on the device or in host memory.
    pub fragments: u64,
    /// Number of fragments.
    pub count: u32,
    /// Pieces of 4 KiB of the longest fragment.
    pub pieces: u32,
}

/// Layout of the rows of a KV block: row (layer, part, head, token) of an item is at `bases[layer × parts + part] + offset + head ×
/// head_stride + token × token_stride`, modulo 2^64.
///
/// This covers layers first, pages first, K and V separate or together, heads or tokens first. For a page of kvtide `bases` are the
/// offsets of layers and parts in the page, and the offset is its address.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatherLayout {
    /// `u64[layers × parts]`, on the device or in host memory.
    pub bases: u64,
    /// Bytes between two heads.
    pub head_stride: u64,
    /// Bytes between two tokens.
    pub token_stride: u64,
}

/// A block to copy: its offset on either side.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatherItem {
    /// Added to the bases of `from`.
    pub from: u64,
    /// Added to the bases of `to`.
    pub to: u64,
}

/// `gather`: copies blocks from one layout into another, row by row.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GatherParams {
    /// Layout of the source rows.
    pub from: GatherLayout,
    /// Layout of the target rows.
    pub to: GatherLayout,
    /// `GatherItem[count]`, 16-byte aligned, on the device or in host memory.
    pub items: u64,
    /// `u32`: the lane's status word, or 0. While it is set, nothing is written.
    pub status: u64,
    /// Blocks.
    pub count: u32,
    /// Layers of a block.
    pub layers: u32,
    /// Parts of a layer: 2 (K and V) or 1.
    pub parts: u32,
    /// Heads.
    pub heads: u32,
    /// Tokens of a block.
    pub tokens: u32,
    /// Bytes of a row, a multiple of 16.
    pub row_bytes: u32,
    /// 1: neighbouring heads are processed first, 0: neighbouring tokens.
    pub heads_inner: u32,
    /// 0.
    pub reserved: u32,
}
