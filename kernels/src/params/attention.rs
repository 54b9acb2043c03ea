//! Paged attention: one struct for all kernels of the family.

/// Paged attention: all kernels of the family take this one struct.
///
/// Rows of a KV head are numbered `query token · group + head of the group`; `rows = q_tokens · group`. A row tile is 8 or 16 of
/// them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionParams {
    /// Queries, `[tokens][kv_heads · group][head_dim]`, 16-byte aligned.
    pub q: u64,
    /// Out, `[tokens][kv_heads · group][head_dim (MLA: latent)]`, 16-byte aligned.
    pub out: u64,
    /// Out, `f32[tokens][kv_heads · group]`: natural logarithm of the sum of exponentials, −∞ if no token is seen; or 0.
    pub lse: u64,
    /// Address of frame 0 of the block table.
    pub pages: u64,
    /// Bytes between two frames.
    pub page_stride: u64,
    /// `u64[]`: addresses of the pages that the frames from `frames` on show, in host memory; or 0: there are none.
    pub aliases: u64,
    /// `i32[seqs][table_stride]`: frame, or negative where not readable; 0: page i of sequence s lies in frame s · table_stride + i.
    pub block_table: u64,
    /// `i32[seqs]`: tokens that the last query of the sequence sees, itself included.
    pub lengths: u64,
    /// `i32[seqs + 1]`: first query of each sequence in `q`; or 0: each has `q_tokens`.
    pub q_starts: u64,
    /// `u32`: the lane's status word, or 0. While it is set nothing is emitted.
    pub status: u64,
    /// `f32[seqs][pages_max][kv_heads][rows][2]`: a page's (m, l), m in units of log2; or 0 (whole path only).
    pub page_ml: u64,
    /// `f32[seqs][pages_max][kv_heads][rows][head_dim]`: a page's unscaled sums. Path by passes only.
    pub page_o: u64,
    /// `u32[seqs][pages_max]`: the epoch in which the page was last computed. Path by passes only.
    pub stamps: u64,
    /// `u32[item_count][2]`: batch row and page index of the pages to compute; 0: whole path.
    pub items: u64,
    /// `f32[tasks][chunks_max + ⌈chunks_max / 16⌉][tile rows][2]`: (m, l) of chunks.
    pub chunk_ml: u64,
    /// `f32[tasks][chunks_max + ⌈chunks_max / 16⌉][tile rows][head_dim]`: unscaled sums of chunks.
    pub chunk_o: u64,
    /// `u32[tasks][⌈chunks_max / 16⌉ + 1]`: tickets, zero before the first launch and after each.
    pub tickets: u64,
    /// `u32[2]`: units of work given to blocks beyond one for each, and blocks that have ended; zero before the first launch and after
    /// each. Whole path of decode and MLA only.
    pub queue: u64,
    /// Out, `u32[seqs][kv_heads][tiles]`: 1 if the tile's rows were written, 0 if a page was not readable.
    pub emitted: u64,
    /// Elements between two query tokens in `q`.
    pub q_stride: u32,
    /// Elements between two query tokens in `out`.
    pub out_stride: u32,
    /// Sequences of the batch.
    pub seqs: u32,
    /// Columns of the block table.
    pub table_stride: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Query heads of a KV head.
    pub group: u32,
    /// Query tokens of a sequence; the maximum if `q_starts` is given.
    pub q_tokens: u32,
    /// Row tiles of a KV head.
    pub tiles: u32,
    /// Tokens of a page, a multiple of 16.
    pub page_tokens: u32,
    /// Pages of a chunk.
    pub chunk_pages: u32,
    /// Maximum chunks of a sequence.
    pub chunks_max: u32,
    /// Maximum pages of a sequence.
    pub pages_max: u32,
    /// Streams of a chunk: 4 in decode, 1 in prefill and MLA.
    pub streams: u32,
    /// Maximum tokens that a query sees, or 0.
    pub window: u32,
    /// Entries of `items`.
    pub item_count: u32,
    /// Entries for each warp (MLA: each block), 1 to 32.
    pub items_per_warp: u32,
    /// Stamp of pages that are computed now.
    pub epoch: u32,
    /// Softmax scale times log2(e).
    pub scale_log2: f32,
    /// Frames at `pages`; with `aliases`, the frames from here on are at the addresses there.
    pub frames: u32,
    /// Pages of the longest sequence that the launch computes, at most `pages_max`.
    pub pages_limit: u32,
}

/// Attention mass: reduces the state of attention for each page to the largest shares of each sequence.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionMassParams {
    /// The launch of the attention, with `page_ml` and `lse`.
    pub attention: AttentionParams,
    /// Out, `u64[seqs][39]`: the words of `kvtide_wire::score`, with the row of the batch in place of the sequence's slot; the
    /// first word is all ones if attention emitted nothing.
    pub out: u64,
    /// `f32[seqs][pages_max]`: each page's share.
    pub shares: u64,
    /// `u32[seqs]`: tickets, zero before the first launch and after each.
    pub tickets: u64,
    /// Step of the lane.
    pub step: u64,
    /// Plane.
    pub plane: u32,
    /// Maximum entries of a sequence, at most 36.
    pub top: u32,
}
