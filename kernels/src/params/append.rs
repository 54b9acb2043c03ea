//! Parameters to append new tokens to their pages.

/// Rows of one kind of a new token (its keys, its values, its latent vector, its rope part) and their position in a page.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppendPart {
    /// The engine's tensor: row of (token, head) at token × token_stride + head × head_stride; 16-byte aligned.
    pub source: u64,
    /// Bytes between two tokens, a multiple of 16.
    pub token_stride: u64,
    /// Bytes between two heads, a multiple of 16.
    pub head_stride: u64,
    /// Heads.
    pub heads: u32,
    /// Bytes of a row, a multiple of 16.
    pub row_bytes: u32,
    /// Offset of the part in the page; a multiple of 16, as the strides below.
    pub page_offset: u32,
    /// Bytes between two heads within the page.
    pub page_head_stride: u32,
    /// Bytes between two tokens within the page.
    pub page_token_stride: u32,
    /// 0.
    pub reserved: u32,
}

/// `append`: writes new tokens' rows to their pages through a lane's table.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AppendParams {
    /// Parts of a token; the second may have no heads.
    pub parts: [AppendPart; 2],
    /// `u32[blocks × planes]`: the table.
    pub table: u64,
    /// `i32[seqs][max_blocks]`: block ids.
    pub block_ids: u64,
    /// `i32[seqs]`: tokens of each sequence, the new ones included: they are its last.
    pub lengths: u64,
    /// `i32[seqs + 1]`: rows `starts[s]..starts[s + 1]` of the sources belong to sequence s; or 0: one row a sequence.
    pub starts: u64,
    /// Address of frame `first_frame`.
    pub pages: u64,
    /// Bytes between two frames.
    pub stride: u64,
    /// `u32`: the lane's status word, or 0. While it is set, nothing is written.
    pub status: u64,
    /// `u32`: counts the rows that were not written because their page is not in the table; or 0.
    pub faults: u64,
    /// Rows of the sources.
    pub rows: u32,
    /// Rows that a CTA writes.
    pub rows_per_cta: u32,
    /// Sequences of the batch.
    pub seqs: u32,
    /// Columns of `block_ids`.
    pub max_blocks: u32,
    /// Blocks of the table.
    pub blocks: u32,
    /// Planes of the table.
    pub planes: u32,
    /// The plane.
    pub plane: u32,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// First frame of the plane's class.
    pub first_frame: u32,
    /// Frames of the class that have memory.
    pub frames: u32,
}
