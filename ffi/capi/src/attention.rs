//! `kvt_attention`: paged attention on the device of tier 0, on a lane's stream.

use super::batch::{kvt_batch, with_batch};
use super::client::{self, kvt_client};
use super::entry::{array, check_out, entry, write};
use super::error::Fault;
use super::gpu;
use super::sized::{self, Sized32};
use super::status::kvt_status;
use super::table::{Exclusive, Table};
use kvtide_wire::status::Status;

/// Attention of one geometry, with its workspace. Its launches go to one stream at a time.
///
/// Thread safety: the lane's thread.
pub struct kvt_attention {
    _opaque: [u8; 0],
}

static ATTENTIONS: Table<gpu::Attention, Exclusive> = Table::new("kvt_attention", b'A');

fn with_both(
    attention: *mut kvt_attention,
    batch: *mut kvt_batch,
    call: impl FnOnce(&mut gpu::Attention, &mut gpu::Batch) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut attention = ATTENTIONS.enter(attention)?;
    with_batch(batch, |batch| call(&mut attention, batch))
}

/// Maximum entries of a `kvt_scores`.
pub const KVT_SCORES_TOP_MAX: u32 = 36;
/// Number of 64-bit words that `kvt_attention_compute_mass` writes for each row and `kvt_scores_read` reads.
pub const KVT_SCORES_WORDS: u32 = 39;

/// Options of an attention: geometry, and the maxima of a launch. Set `struct_size`, and unused members to zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_attention_options {
    /// `sizeof(kvt_attention_options)`: later versions are longer.
    pub struct_size: u32,
    /// `KVT_ELEMENT_F16` or `KVT_ELEMENT_BF16`.
    pub element: u32,
    /// Elements of a key and of a value: 32, 64, 128 or 256. A page is `K[kv_heads][page_tokens][head_dim]`, then V
    /// likewise. 0: pages of latent vectors. Pages have a multiple of 16 tokens, 16 to 128.
    pub head_dim: u32,
    /// Latent vectors (MLA): elements that are the value; 512. A page is `[page_tokens][latent + rope]`. Otherwise 0.
    pub latent: u32,
    /// Latent vectors: elements that belong to the key only; 64. Otherwise 0.
    pub rope: u32,
    /// Number of KV heads, at most 1,024; 1 with latent vectors.
    pub kv_heads: u32,
    /// Query heads of a KV head, 1 to 16; with latent vectors 1 to 128.
    pub group: u32,
    /// Maximum tokens that a query sees; 0: all.
    pub window: u32,
    /// Factor of the scores before the softmax; positive.
    pub scale: f32,
    /// Rows of the batches: `kvt_batch_options.seqs`.
    pub seqs: u32,
    /// Maximum query tokens of a sequence: 1 for decode.
    pub q_tokens: u32,
    /// Maximum pages of a sequence, at most `kvt_batch_options.max_blocks`.
    pub pages: u32,
    /// Tokens of a chunk of the reduction, a multiple of the page's tokens, at most 32 pages; 0: 512, or less
    /// with few KV heads. Results with different chunks differ in rounding.
    pub chunk_tokens: u32,
    /// 1: pages can be computed in passes, which takes workspace for each page.
    pub passes: u32,
    /// 1: `kvt_attention_compute_mass` can follow; launches need `kvt_queries.lse` then.
    pub mass: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: repr(C), `struct_size` first, numbers only.
unsafe impl Sized32 for kvt_attention_options {
    const BYTES_MIN: usize = 64;
}
const _: () = assert!(size_of::<kvt_attention_options>() == 64);

/// Inputs and outputs of a launch besides the pages. Addresses are device addresses; 0: none. Set `struct_size`, and
/// unused members to zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_queries {
    /// `sizeof(kvt_queries)`: later versions are longer.
    pub struct_size: u32,
    /// Plane.
    pub plane: u16,
    /// Position of the plane among the planes of the `kvt_batch_build_tables` call that built its table: 0 is the
    /// first.
    pub table: u16,
    /// Queries, `[tokens][heads][head_dim or latent + rope]`, 16-byte aligned.
    pub q: u64,
    /// Out, `[tokens][heads][head_dim or latent]`, 16-byte aligned.
    pub out: u64,
    /// Out, `float[tokens][heads]`: natural logarithms of the sums of exponentials; -infinity where nothing is seen. 0:
    /// not wanted; mass needs it.
    pub lse: u64,
    /// `int32_t[seqs + 1]`: first query token of each row; 0: each row of the batch has `q_tokens`.
    pub starts: u64,
    /// Elements from one query token to the next, a multiple of 8; 0: contiguous.
    pub q_stride: u32,
    /// Elements from one output token to the next, a multiple of 8; 0: contiguous.
    pub out_stride: u32,
    /// Pages of the longest row; 0: the maximum. A longer row writes nothing.
    pub pages_longest: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Sized32 for kvt_queries {
    const BYTES_MIN: usize = 56;
}
const _: () = assert!(size_of::<kvt_queries>() == 56);

/// Create an attention: load its kernels, allocate workspace on the device and clear it. Call it during set-up, never
/// while a stream waits at a boundary.
///
/// Experimental.
///
/// @param client  Session.
/// @param options  Geometry and maxima; not used after the call.
/// @param attention  Receives the handle. Close it with `kvt_attention_close`.
/// @return `KVT_OK`; `KVT_ESTATE` if tier 0 is not on a device; `KVT_EINVAL` if the kernels do not support the shape
///     (`kvt_last_error` names the supported ones); `KVT_EDEVICE`.
/// Thread safety: any thread.
/// Example: `kvt_attention_open(client, &options, &attention);`
///
/// # Safety
/// `options` must be valid for reads of `options->struct_size` bytes, `attention` for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_attention_open(
    client: *const kvt_client,
    options: *const kvt_attention_options,
    attention: *mut *mut kvt_attention,
) -> kvt_status {
    entry("kvt_attention_open", || {
        check_out("attention", attention)?;
        // SAFETY: the caller's contract.
        let options = unsafe { sized::read("options", options) }?;
        let client = client::enter(client)?;
        let handle = ATTENTIONS.insert(gpu::attention(&client.client, &options)?)?;
        // SAFETY: the caller's contract.
        unsafe { write("attention", attention, handle) }
    })
}

/// Close an attention. Work that was enqueued with it must have ended.
///
/// Experimental.
///
/// @param attention  Attention.
/// @return `KVT_OK`; `KVT_EBUSY` if another thread is in a call on it.
/// Thread safety: the lane's thread.
/// Example: `kvt_attention_close(attention);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_attention_close(attention: *mut kvt_attention) -> kvt_status {
    entry("kvt_attention_close", || ATTENTIONS.close(attention))
}

/// Return the device address of the flags that show which rows were written.
///
/// Experimental.
///
/// @param attention  Attention.
/// @param address  Receives the address of `uint32_t[seqs][words / seqs]`. After `kvt_attention_compute` or
///     `kvt_attention_merge` a flag is 1 if rows were written; 0 if a page was not readable, the sequence was too long
///     or the lane's status word was set.
/// @param words  Receives the number of flags.
/// @return `KVT_OK`.
/// Thread safety: the lane's thread.
/// Example: `kvt_attention_get_emitted(attention, &flags, &words);`
///
/// # Safety
/// Both must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_attention_get_emitted(
    attention: *mut kvt_attention,
    address: *mut u64,
    words: *mut u32,
) -> kvt_status {
    entry("kvt_attention_get_emitted", || {
        check_out("address", address)?;
        check_out("words", words)?;
        let found = gpu::attention_emitted(&mut *ATTENTIONS.enter(attention)?);
        // SAFETY: the caller's contract.
        unsafe { write("address", address, found.0).and_then(|()| write("words", words, found.1)) }
    })
}

/// Compute attention of the batch's rows over pages that are all readable, on the lane's stream.
///
/// The result does not depend on where pages are. Rows with a page that is not readable are not written
/// (`kvt_attention_get_emitted`).
///
/// Experimental.
///
/// @param attention  Attention.
/// @param batch  Batch.
/// @param queries  Queries, outputs and the plane.
/// @return `KVT_OK`; `KVT_ERANGE` if there is no such plane, or no table of it; `KVT_EINVAL` if an address is missing
///     or not aligned, or a number is out of its bounds; `KVT_ESTATE` if the lane is not on a stream; `KVT_EDEVICE`.
/// Thread safety: the lane's thread.
/// Example: `kvt_batch_build_tables(batch, plane, 1, -1); kvt_attention_compute(attention, batch, &queries);`
///
/// # Safety
/// `queries` must be valid for reads of `queries->struct_size` bytes. The memory that it names must be on the device,
/// and as large as described, until the launch has ended. The lane must be in the step that the batch was set to, and
/// `kvt_batch_build_tables` must have built the plane's table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_attention_compute(
    attention: *mut kvt_attention,
    batch: *mut kvt_batch,
    queries: *const kvt_queries,
) -> kvt_status {
    entry("kvt_attention_compute", || {
        // SAFETY: the caller's contract.
        let queries = unsafe { sized::read("queries", queries) }?;
        // SAFETY: as above.
        with_both(attention, batch, |attention, batch| unsafe { gpu::attention_whole(attention, batch, &queries) })
    })
}

/// Begin a plane in passes. Then, for each pass of the lane's boundary, call `kvt_batch_build_tables` and
/// `kvt_attention_compute_part`, and at the end `kvt_attention_merge`.
///
/// Experimental.
///
/// @param attention  Attention.
/// @param batch  Batch.
/// @return `KVT_OK`; `KVT_EINVAL` if the attention was opened without passes; `KVT_ESTATE` if the lane is not on a
///     stream; `KVT_EDEVICE`.
/// Thread safety: the lane's thread.
/// Example: `kvt_attention_begin(attention, batch);`
///
/// # Safety
/// As for `kvt_attention_compute`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_attention_begin(attention: *mut kvt_attention, batch: *mut kvt_batch) -> kvt_status {
    entry("kvt_attention_begin", || {
        // SAFETY: the caller's contract.
        with_both(attention, batch, |attention, batch| unsafe { gpu::attention_begin(attention, batch) })
    })
}

/// Compute attention to the pages of one pass.
///
/// Experimental.
///
/// @param attention  Attention.
/// @param batch  Batch.
/// @param queries  Queries, outputs and the plane.
/// @param items  Device address, 8-byte aligned, of `uint32_t[count][2]`: row of the batch and page index
///     (`kvt_ready.position` and `kvt_ready.index`).
/// @param count  Number of items.
/// @return As `kvt_attention_compute`; `KVT_EINVAL` also without passes, or before `kvt_attention_begin`.
/// Thread safety: the lane's thread.
/// Example: `kvt_attention_compute_part(attention, batch, &queries, items, pass.count);`
///
/// # Safety
/// As for `kvt_attention_compute`; the list must stay unchanged, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_attention_compute_part(
    attention: *mut kvt_attention,
    batch: *mut kvt_batch,
    queries: *const kvt_queries,
    items: u64,
    count: u32,
) -> kvt_status {
    entry("kvt_attention_compute_part", || {
        // SAFETY: the caller's contract.
        let queries = unsafe { sized::read("queries", queries) }?;
        // SAFETY: as above.
        let call = |attention: &mut gpu::Attention, batch: &mut gpu::Batch| unsafe {
            gpu::attention_part(attention, batch, &queries, items, count)
        };
        with_both(attention, batch, call)
    })
}

/// End a plane in passes: combine the passes in the order of tokens, with the same bits as `kvt_attention_compute`.
///
/// Experimental.
///
/// @param attention  Attention.
/// @param batch  Batch.
/// @param queries  The same as in the parts.
/// @return As `kvt_attention_compute_part`.
/// Thread safety: the lane's thread.
/// Example: `if (pass.last) kvt_attention_merge(attention, batch, &queries);`
///
/// # Safety
/// As for `kvt_attention_compute`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_attention_merge(
    attention: *mut kvt_attention,
    batch: *mut kvt_batch,
    queries: *const kvt_queries,
) -> kvt_status {
    entry("kvt_attention_merge", || {
        // SAFETY: the caller's contract.
        let queries = unsafe { sized::read("queries", queries) }?;
        // SAFETY: as above.
        with_both(attention, batch, |attention, batch| unsafe { gpu::attention_merge(attention, batch, &queries) })
    })
}

/// Reduce the attention of the last `kvt_attention_compute` or `kvt_attention_merge` of the batch to the pages with the
/// largest shares of each row.
///
/// Experimental.
///
/// @param attention  Attention.
/// @param batch  Batch.
/// @param queries  The same as in that launch.
/// @param step  Any number, repeated in `kvt_scores.step`.
/// @param top  Maximum pages per row, at most `KVT_SCORES_TOP_MAX`.
/// @param words  Address, on the device or in pinned memory, 8-byte aligned, of `uint64_t[seqs][KVT_SCORES_WORDS]`;
///     read it with `kvt_scores_read`.
/// @return As `kvt_attention_compute`; `KVT_EINVAL` also if the attention was opened without mass, `queries->lse` is 0,
///     or `top` is too large.
/// Thread safety: the lane's thread.
/// Example: `kvt_attention_compute_mass(attention, batch, &queries, step, 8, words);`
///
/// # Safety
/// As for `kvt_attention_compute`; `words` must stay valid until the launch has ended, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_attention_compute_mass(
    attention: *mut kvt_attention,
    batch: *mut kvt_batch,
    queries: *const kvt_queries,
    step: u64,
    top: u32,
    words: u64,
) -> kvt_status {
    entry("kvt_attention_compute_mass", || {
        // SAFETY: the caller's contract.
        let queries = unsafe { sized::read("queries", queries) }?;
        // SAFETY: as above.
        let call = |attention: &mut gpu::Attention, batch: &mut gpu::Batch| unsafe {
            gpu::attention_mass(attention, batch, &queries, step, top, words)
        };
        with_both(attention, batch, call)
    })
}

/// A page and the natural logarithm of its share of a sequence's attention in one plane, summed over heads and queries;
/// at most 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvt_score {
    /// Page index within the sequence.
    pub index: u32,
    /// Natural logarithm of its share.
    pub log_mass: f32,
}

/// Pages with the largest shares of one row's attention in one step and plane. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_scores {
    /// `sizeof(kvt_scores)`: later versions are longer.
    pub struct_size: u32,
    /// Number of pages in `top`, largest first.
    pub count: u16,
    /// Plane.
    pub plane: u16,
    /// `step` of `kvt_attention_compute_mass`.
    pub step: u64,
    /// Natural logarithm of the share of all pages that are not in `top`; -infinity: there are none.
    pub rest: f32,
    /// Zero.
    pub reserved: u32,
    /// Pages.
    pub top: [kvt_score; KVT_SCORES_TOP_MAX as usize],
}

// SAFETY: repr(C), `struct_size` first, numbers only.
unsafe impl Sized32 for kvt_scores {
    const BYTES_MIN: usize = 24 + 8 * KVT_SCORES_TOP_MAX as usize;
}
const _: () = assert!(size_of::<kvt_scores>() == 24 + 8 * KVT_SCORES_TOP_MAX as usize);

/// Read the words of one row that `kvt_attention_compute_mass` wrote, from host memory.
///
/// Experimental.
///
/// @param words  `KVT_SCORES_WORDS` words.
/// @param scores  Set `struct_size` before the call; receives the pages.
/// @return `KVT_OK`; `KVT_ENOTFOUND` if nothing was written for the row, so that its mass is unknown; `KVT_ESTATE` if
///     this build has no CUDA.
/// Thread safety: any thread.
/// Example: `kvt_scores scores = {.struct_size = sizeof scores}; kvt_scores_read(words + row * KVT_SCORES_WORDS,
///     &scores);`
///
/// # Safety
/// `words` must be valid for `KVT_SCORES_WORDS` reads, `scores` for reads and writes of `scores->struct_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_scores_read(words: *const u64, scores: *mut kvt_scores) -> kvt_status {
    entry("kvt_scores_read", || {
        // SAFETY: the caller's contract.
        let words = unsafe { array("words", words, KVT_SCORES_WORDS as usize) }?;
        let silent = || Fault::new(Status::NotFound, "attention wrote nothing for this row");
        let read = gpu::scores(words)?.ok_or_else(silent)?;
        let mut filled = kvt_scores {
            struct_size: 0,
            count: read.top().len() as u16,
            plane: read.plane,
            step: read.step,
            rest: read.rest.to_f32(),
            reserved: 0,
            top: [kvt_score::default(); KVT_SCORES_TOP_MAX as usize],
        };
        let shares = read.top().iter().map(|top| kvt_score { index: top.index, log_mass: top.log_mass.to_f32() });
        filled.top.iter_mut().zip(shares).for_each(|(to, share)| *to = share);
        // SAFETY: the caller's contract.
        unsafe { sized::fill("scores", scores, &filled) }
    })
}
