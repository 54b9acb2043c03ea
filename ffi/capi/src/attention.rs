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

/// Attention of one geometry, with its workspace. That of one lane's thread: its launches go to one stream at a time.
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

/// Type of queries, keys, values and outputs.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvt_element {
    /// IEEE binary16.
    KVT_F16 = 0,
    /// bfloat16.
    KVT_BF16 = 1,
}

/// Most entries of a `kvt_scores`.
pub const KVT_SCORES_TOP_MAX: u32 = 36;
/// 64-bit words that `kvt_attention_mass` writes for each row; `kvt_scores_read` reads them.
pub const KVT_SCORES_WORDS: u32 = 39;

/// What attention is made for: geometry, and the most that a launch may have. Set `struct_size` and what is not needed to zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_attention_options {
    /// `sizeof(kvt_attention_options)`: later versions are longer.
    pub struct_size: u32,
    /// A `kvt_element`.
    pub element: u32,
    /// Elements of a key, and of a value: 32, 64, 128 or 256. A page is `K[kv_heads][page_tokens][head_dim]`, then V likewise.
    /// 0: pages of latent vectors.
    pub head_dim: u32,
    /// Of a latent vector (MLA): elements that are the value; 512. A page is `[page_tokens][latent + rope]`. Else 0.
    pub latent: u32,
    /// Of a latent vector: elements that only the key has; 64. Else 0.
    pub rope: u32,
    /// KV heads; 1 with latent vectors.
    pub kv_heads: u32,
    /// Query heads of a KV head, 1 to 16; with latent vectors to 128.
    pub group: u32,
    /// Tokens that a query sees at most; 0: all.
    pub window: u32,
    /// What scores are multiplied with before the softmax; positive.
    pub scale: f32,
    /// Rows of the batches: `kvt_batch_options.seqs`.
    pub seqs: u32,
    /// Most query tokens of a sequence: 1 for decode.
    pub q_tokens: u32,
    /// Most pages of a sequence: at most `kvt_batch_options.max_blocks`.
    pub pages: u32,
    /// Tokens of a chunk of the reduction, 0: 512. Results of different chunks differ in rounding.
    pub chunk_tokens: u32,
    /// 1: pages may be computed in passes, which takes workspace for each page.
    pub passes: u32,
    /// 1: `kvt_attention_mass` may follow.
    pub mass: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: repr(C), `struct_size` first, numbers only.
unsafe impl Sized32 for kvt_attention_options {
    const BYTES_MIN: usize = 64;
}
const _: () = assert!(size_of::<kvt_attention_options>() == 64);

/// What a launch reads and writes beside the pages. Addresses are the device's, 0: none. Set `struct_size` and what is not needed
/// to zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_queries {
    /// `sizeof(kvt_queries)`: later versions are longer.
    pub struct_size: u32,
    /// The plane.
    pub plane: u16,
    /// Where it stood among the planes of the `kvt_batch_tables` that built its table: 0 is the first.
    pub table: u16,
    /// Queries, `[tokens][heads][head_dim or latent + rope]`, 16-byte aligned.
    pub q: u64,
    /// Out, `[tokens][heads][head_dim or latent]`, 16-byte aligned.
    pub out: u64,
    /// Out, `float[tokens][heads]`: natural logarithms of the sums of exponentials, -infinity where nothing is seen. Mass needs it.
    pub lse: u64,
    /// `int32_t[seqs + 1]`: first query token of each row; 0: each row of the batch has `q_tokens`.
    pub starts: u64,
    /// Elements from one query token to the next; 0: there are none between.
    pub q_stride: u32,
    /// Elements from one output token to the next; 0: there are none between.
    pub out_stride: u32,
    /// Pages of the longest row, of which the grid is made; 0: the most. A longer row emits nothing.
    pub pages_longest: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Sized32 for kvt_queries {
    const BYTES_MIN: usize = 56;
}
const _: () = assert!(size_of::<kvt_queries>() == 56);

/// Makes an attention: loads its kernels, takes workspace on the device and clears it. At set-up: never while a stream waits at a
/// boundary.
///
/// `KVT_ESTATE`: tier 0 is on no device. `KVT_EINVAL`: a shape that the kernels do not take; `kvt_last_error` names what they do.
/// `KVT_EDEVICE`.
///
/// # Safety
/// `options` is valid for reads of `options->struct_size` bytes, `attention` for a write.
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

/// Closes an attention, once what was enqueued with it has ended.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_attention_close(attention: *mut kvt_attention) -> kvt_status {
    entry("kvt_attention_close", || ATTENTIONS.close(attention))
}

/// Where attention says what it wrote: `uint32_t[seqs][words / seqs]` on the device, after `kvt_attention_whole` or
/// `kvt_attention_merge` 1 where rows were written, 0 where a page was not readable, the sequence too long or the lane's status word
/// set. `words` is how many there are.
///
/// # Safety
/// Both are valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_attention_emitted(
    attention: *mut kvt_attention,
    address: *mut u64,
    words: *mut u32,
) -> kvt_status {
    entry("kvt_attention_emitted", || {
        check_out("address", address)?;
        check_out("words", words)?;
        let found = gpu::attention_emitted(&mut *ATTENTIONS.enter(attention)?);
        // SAFETY: the caller's contract.
        unsafe { write("address", address, found.0).and_then(|()| write("words", words, found.1)) }
    })
}

/// Attention of the batch's rows over pages that are all readable, enqueued on the lane's stream. The result does not depend on
/// where pages are; rows with a page that is not readable are not written (`kvt_attention_emitted`).
///
/// `KVT_ERANGE`: no such plane, or no table of it. `KVT_EINVAL`: an address or a number that cannot be. `KVT_ESTATE`: the lane is on no
/// stream. `KVT_EDEVICE`.
///
/// # Safety
/// `queries` is valid for reads of `queries->struct_size` bytes. What it names is on the device and as large as said, until the
/// launch has ended; the lane is in the step that the batch was set to, and `kvt_batch_tables` has built the plane's table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_attention_whole(
    attention: *mut kvt_attention,
    batch: *mut kvt_batch,
    queries: *const kvt_queries,
) -> kvt_status {
    entry("kvt_attention_whole", || {
        // SAFETY: the caller's contract.
        let queries = unsafe { sized::read("queries", queries) }?;
        // SAFETY: as above.
        with_both(attention, batch, |attention, batch| unsafe { gpu::attention_whole(attention, batch, &queries) })
    })
}

/// Begins a plane in passes: then, for each pass of the lane's boundary, `kvt_batch_tables` and `kvt_attention_part`, and at the end
/// `kvt_attention_merge`.
///
/// `KVT_EINVAL`: it was made without passes. `KVT_ESTATE`, `KVT_EDEVICE`.
///
/// # Safety
/// As for `kvt_attention_whole`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_attention_begin(attention: *mut kvt_attention, batch: *mut kvt_batch) -> kvt_status {
    entry("kvt_attention_begin", || {
        // SAFETY: the caller's contract.
        with_both(attention, batch, |attention, batch| unsafe { gpu::attention_begin(attention, batch) })
    })
}

/// Computes the pages of a pass: `items` is the address, on the device and 8-byte aligned, of `uint32_t[count][2]`: row of the batch
/// and page index, `kvt_ready.position` and `kvt_ready.index`.
///
/// As `kvt_attention_whole`.
///
/// # Safety
/// As for `kvt_attention_whole`; the list stays too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_attention_part(
    attention: *mut kvt_attention,
    batch: *mut kvt_batch,
    queries: *const kvt_queries,
    items: u64,
    count: u32,
) -> kvt_status {
    entry("kvt_attention_part", || {
        // SAFETY: the caller's contract.
        let queries = unsafe { sized::read("queries", queries) }?;
        // SAFETY: as above.
        let call = |attention: &mut gpu::Attention, batch: &mut gpu::Batch| unsafe {
            gpu::attention_part(attention, batch, &queries, items, count)
        };
        with_both(attention, batch, call)
    })
}

/// Folds the passes in the order of tokens: the bits that `kvt_attention_whole` would give.
///
/// As `kvt_attention_whole`.
///
/// # Safety
/// As for `kvt_attention_whole`.
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

/// Reduces what the last `kvt_attention_whole` or `kvt_attention_merge` of the batch left to the largest shares of each row, at most
/// `top` of them: `words` is the address, on the device or in pinned memory, of `uint64_t[seqs][KVT_SCORES_WORDS]`.
///
/// `KVT_EINVAL`: it was made without mass, `queries->lse` is 0, or `top` is more than `KVT_SCORES_TOP_MAX`. Else as
/// `kvt_attention_whole`.
///
/// # Safety
/// As for `kvt_attention_whole`, with the same `queries`; `words` stays too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_attention_mass(
    attention: *mut kvt_attention,
    batch: *mut kvt_batch,
    queries: *const kvt_queries,
    step: u64,
    top: u32,
    words: u64,
) -> kvt_status {
    entry("kvt_attention_mass", || {
        // SAFETY: the caller's contract.
        let queries = unsafe { sized::read("queries", queries) }?;
        // SAFETY: as above.
        let call = |attention: &mut gpu::Attention, batch: &mut gpu::Batch| unsafe {
            gpu::attention_mass(attention, batch, &queries, step, top, words)
        };
        with_both(attention, batch, call)
    })
}

/// A page and the natural logarithm of its share of a sequence's attention in one plane, summed over heads and queries; at most 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvt_score {
    /// Page index within the sequence.
    pub index: u32,
    /// Logarithm of its share.
    pub log_mass: f32,
}

/// What one step's attention of one row in one plane looked at. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_scores {
    /// `sizeof(kvt_scores)`: later versions are longer.
    pub struct_size: u32,
    /// Pages in `top`, largest first.
    pub count: u16,
    /// Plane.
    pub plane: u16,
    /// Step that `kvt_attention_mass` was told.
    pub step: u64,
    /// Logarithm of the share of all pages that `top` does not name; -infinity: there is none.
    pub rest: f32,
    /// Zero.
    pub reserved: u32,
    /// The pages.
    pub top: [kvt_score; KVT_SCORES_TOP_MAX as usize],
}

// SAFETY: repr(C), `struct_size` first, numbers only.
unsafe impl Sized32 for kvt_scores {
    const BYTES_MIN: usize = 24 + 8 * KVT_SCORES_TOP_MAX as usize;
}
const _: () = assert!(size_of::<kvt_scores>() == 24 + 8 * KVT_SCORES_TOP_MAX as usize);

/// Reads the words of one row, as `kvt_attention_mass` wrote them, from the host's memory. `KVT_ENOTFOUND`: nothing was emitted of the
/// row, so nothing is known of its mass.
///
/// # Safety
/// `words` is valid for `KVT_SCORES_WORDS` reads, `scores` for reads and writes of `scores->struct_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_scores_read(words: *const u64, scores: *mut kvt_scores) -> kvt_status {
    entry("kvt_scores_read", || {
        // SAFETY: the caller's contract.
        let words = unsafe { array("words", words, KVT_SCORES_WORDS as usize) }?;
        let silent = || Fault::new(Status::NotFound, "attention emitted nothing of this row");
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
