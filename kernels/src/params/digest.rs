//! Digests of sealed pages, bounds from them, and the best pages.

/// A sealed page that needs a digest.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DigestItem {
    /// Added to `DigestBuildParams::keys`: the page.
    pub page: u64,
    /// The page's block, which determines the place of its digests.
    pub block: u32,
    /// Its tokens, 1 to 128.
    pub tokens: u32,
}

/// `digest_build_*`: digests of sealed pages, bit by bit those of `kvtide_wire::digest::build`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DigestBuildParams {
    /// Key of (head, token) at keys + page + head × head_stride + token × token_stride, 16-byte aligned.
    pub keys: u64,
    /// Bytes between two heads.
    pub head_stride: u64,
    /// Bytes between two tokens.
    pub token_stride: u64,
    /// `DigestItem[count]`, 16-byte aligned, on the device or in host memory.
    pub items: u64,
    /// Out, `[blocks][heads][4 × channels + 4]` bytes, 4-byte aligned: the plane's digests.
    pub digests: u64,
    /// `u32`: the lane's status word, or 0. While it is set, nothing is written.
    pub status: u64,
    /// Pages.
    pub count: u32,
    /// KV heads.
    pub heads: u32,
    /// Channels of a head, a multiple of 8, at most 1024.
    pub channels: u32,
    /// Blocks in `digests`. An item beyond them is not built.
    pub blocks: u32,
}

/// `digest_scores_*`: upper bounds of the products of a query with a page's keys, for every page of every sequence, readable or
/// not.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DigestScoresParams {
    /// Query of (sequence, query head) at queries + seq × seq_stride + head × head_stride; 8-byte aligned.
    pub queries: u64,
    /// Bytes between two sequences.
    pub seq_stride: u64,
    /// Bytes between two query heads.
    pub head_stride: u64,
    /// `[blocks][kv_heads][4 × channels + 4]` bytes, 4-byte aligned: the plane's digests.
    pub digests: u64,
    /// `i32[seqs][max_blocks]`: block ids.
    pub block_ids: u64,
    /// `i32[seqs]`: tokens that attention covers.
    pub lengths: u64,
    /// `i32[seqs]`: tokens in sealed pages; a page that is not completely sealed has no bound. 0: all but a last partial page.
    pub sealed: u64,
    /// `i32[seqs]`: first token that attention covers, or 0 for none.
    pub starts: u64,
    /// Out, `f32[seqs][kv_heads × group][max_blocks]`: the bound × `scale`; +∞ without a finite bound, −∞ outside the sequence.
    pub bounds: u64,
    /// `u32`: the lane's status word, or 0. While it is set, nothing is written.
    pub status: u64,
    /// Sequences.
    pub seqs: u32,
    /// Columns of `block_ids`.
    pub max_blocks: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Query heads of a KV head.
    pub group: u32,
    /// Channels of a head, a multiple of 32.
    pub channels: u32,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Blocks in `digests`.
    pub blocks: u32,
    /// Scale of the products, positive.
    pub scale: f32,
}

/// `digest_select`: computes one estimate per page from the bounds of all heads, and selects the best pages of each sequence.
///
/// A head's bounds become exp(bound − that head's largest finite bound); a page's estimate is their sum over heads.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DigestSelectParams {
    /// `f32[seqs][heads][max_blocks]`: from `digest_scores_*`.
    pub bounds: u64,
    /// Out, `f32[seqs][max_blocks]`: the estimates; +∞: must be read, −∞: outside the sequence.
    pub estimates: u64,
    /// Out, `i32[seqs][budget]`: indices of the chosen pages, ascending; then −1.
    pub chosen: u64,
    /// Out, `u32[seqs]`: numbers of chosen pages.
    pub counts: u64,
    /// Out, `f32[seqs]`: the share of the finite estimates that was not chosen, 0 to 1.
    pub omitted: u64,
    /// `u32`: the lane's status word, or 0. While it is set, nothing is written.
    pub status: u64,
    /// Sequences.
    pub seqs: u32,
    /// Columns of `bounds`.
    pub max_blocks: u32,
    /// Query heads, at most 256.
    pub heads: u32,
    /// Maximum pages to choose.
    pub budget: u32,
    /// Number of first pages of the sequence that must be read (sinks).
    pub keep_first: u32,
    /// Number of last pages that must be read.
    pub keep_last: u32,
}
