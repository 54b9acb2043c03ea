//! `kvt_kernels`: what moves and transforms pages on the device of tier 0: new tokens, layouts, codecs, digests.

use super::attention::kvt_element;
use super::batch::{kvt_batch, with_batch};
use super::client::{self, kvt_client};
use super::entry::{check_out, entry, write};
use super::gpu;
use super::lane::{kvt_lane, with_lane};
use super::sized::{self, Sized32};
use super::status::kvt_status;
use super::table::{Shared, Table};

/// Kernels that keep nothing between launches. Any thread, several at once.
pub struct kvt_kernels {
    _opaque: [u8; 0],
}

static KERNELS: Table<gpu::Kernels, Shared> = Table::new("kvt_kernels", b'K');

const _: () = assert!(kvt_element::KVT_F16 as u32 == 0 && kvt_element::KVT_BF16 as u32 == 1);

/// Loads the kernels. At set-up: never while a stream waits at a boundary. `KVT_ESTATE`: tier 0 is on no device. `KVT_EDEVICE`.
///
/// # Safety
/// `kernels` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_kernels_open(client: *const kvt_client, kernels: *mut *mut kvt_kernels) -> kvt_status {
    entry("kvt_kernels_open", || {
        check_out("kernels", kernels)?;
        let client = client::enter(client)?;
        let handle = KERNELS.insert(gpu::kernels(&client.client)?)?;
        // SAFETY: the caller's contract.
        unsafe { write("kernels", kernels, handle) }
    })
}

/// Closes the handle, once what was enqueued with it has ended.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_kernels_close(kernels: *mut kvt_kernels) -> kvt_status {
    entry("kvt_kernels_close", || KERNELS.close(kernels))
}

/// Rows of one kind that a new token brings (its keys, its values, its latent vector) and where they go in a page. Strides and
/// offsets are bytes, multiples of 16.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvt_append_part {
    /// Device address: row of (token, head) at `token * token_stride + head * head_stride`; 16-byte aligned.
    pub source: u64,
    /// From a token to the next.
    pub token_stride: u64,
    /// From a head to the next.
    pub head_stride: u64,
    /// Heads; 0: this part is not there.
    pub heads: u32,
    /// Of a row.
    pub row_bytes: u32,
    /// Where in the page the part begins.
    pub page_offset: u32,
    /// From a head to the next within the page.
    pub page_head_stride: u32,
    /// From a token to the next within the page.
    pub page_token_stride: u32,
    /// Zero.
    pub reserved: u32,
}

/// New tokens of a batch. Set `struct_size` and what is not needed to zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_append_rows {
    /// `sizeof(kvt_append_rows)`: later versions are longer.
    pub struct_size: u32,
    /// Tokens in all.
    pub rows: u32,
    /// What each brings.
    pub parts: [kvt_append_part; 2],
    /// `int32_t[seqs + 1]` on the device: tokens `starts[s]` to `starts[s + 1] - 1` are the last of row s; 0: one token a row.
    pub starts: u64,
    /// `uint32_t` on the device that counts tokens whose page is in no frame and that were not written; or 0.
    pub faults: u64,
}

// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Sized32 for kvt_append_rows {
    const BYTES_MIN: usize = 120;
}
const _: () = assert!(size_of::<kvt_append_rows>() == 120);

/// Writes a step's new tokens, the last of each row of the batch, into their pages of `plane`, in the order of the lane's stream: to
/// be called between `kvt_batch_set` and `kvt_lane_end`.
///
/// `KVT_ERANGE`: no such plane. `KVT_EINVAL`: an address or stride that cannot be. `KVT_ESTATE`: the lane is on no stream. `KVT_EDEVICE`.
///
/// # Safety
/// `rows` is valid for reads of `rows->struct_size` bytes. What it names is on the device until the launch has ended, and nobody
/// writes it; the lane is in the step that the batch was set to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_launch_append(
    kernels: *const kvt_kernels,
    batch: *mut kvt_batch,
    plane: u16,
    rows: *const kvt_append_rows,
) -> kvt_status {
    entry("kvt_launch_append", || {
        // SAFETY: the caller's contract.
        let rows = unsafe { sized::read("rows", rows) }?;
        let kernels = KERNELS.enter(kernels)?;
        // SAFETY: as above.
        with_batch(batch, |batch| unsafe { gpu::append(&kernels, batch, plane, &rows) })
    })
}

/// Where the rows of a block lie: row (layer, part, head, token) of an item at
/// `bases[layer * parts + part] + item's offset + head * head_stride + token * token_stride`, modulo 2^64: layers first, pages first, K
/// and V apart or together, heads or tokens first. A page of ours: `bases` are offsets in the page, the item's offset its address.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvt_rows_layout {
    /// `uint64_t[layers * parts]`, on the device or in pinned memory.
    pub bases: u64,
    /// Bytes from a head to the next, a multiple of 16.
    pub head_stride: u64,
    /// Bytes from a token to the next, a multiple of 16.
    pub token_stride: u64,
}

/// A block to copy: its offset on either side.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvt_gather_item {
    /// Added to the bases of `from`.
    pub from: u64,
    /// Added to the bases of `to`.
    pub to: u64,
}

/// Blocks to copy from one layout into another. Set `struct_size` and what is not needed to zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_gather {
    /// `sizeof(kvt_gather)`: later versions are longer.
    pub struct_size: u32,
    /// Items.
    pub count: u32,
    /// Where the rows are.
    pub from: kvt_rows_layout,
    /// Where they go.
    pub to: kvt_rows_layout,
    /// `kvt_gather_item[count]`, 16-byte aligned, on the device or in pinned memory.
    pub items: u64,
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
    /// Blocks of threads at most; 0: 64.
    pub blocks: u32,
}

// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Sized32 for kvt_gather {
    const BYTES_MIN: usize = 88;
}
const _: () = assert!(size_of::<kvt_gather>() == 88);

/// Copies blocks between layouts, on the lane's stream: pages into an engine's own tensors, or back into unsealed pages. Nothing is
/// written while the lane's status word is set.
///
/// `KVT_EINVAL`: an address or a number that cannot be. `KVT_ESTATE`: the lane is on no stream. `KVT_EDEVICE`.
///
/// # Safety
/// `gather` is valid for reads of `gather->struct_size` bytes. What it names is there until the launch has ended, nobody writes what is
/// read or touches what is written; pages are read and written within the lane's step.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_launch_gather(
    kernels: *const kvt_kernels,
    lane: *mut kvt_lane,
    gather: *const kvt_gather,
) -> kvt_status {
    entry("kvt_launch_gather", || {
        // SAFETY: the caller's contract.
        let gather = unsafe { sized::read("gather", gather) }?;
        let kernels = KERNELS.enter(kernels)?;
        // SAFETY: as above.
        with_lane(lane, |lane| unsafe { gpu::gather(&kernels, lane, &gather) })
    })
}

/// A device codec.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvt_codec {
    /// 8 bits a number, e4m3.
    KVT_CODEC_FP8 = 0,
    /// 8 bits, keys by channel, values by token.
    KVT_CODEC_INT8 = 1,
    /// 4 bits, likewise.
    KVT_CODEC_INT4 = 2,
}

/// A block to quantise or to dequantise.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvt_quant_item {
    /// Added to the bases of the layout of the 16-bit rows.
    pub rows: u64,
    /// Device address of the quantised block, 16-byte aligned.
    pub image: u64,
    /// Tokens that count; codes of the others are 0 and their rows are not touched.
    pub tokens: u32,
    /// Zero.
    pub reserved: u32,
}

/// Blocks to quantise or to dequantise. Set `struct_size` and what is not needed to zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_quant {
    /// `sizeof(kvt_quant)`: later versions are longer.
    pub struct_size: u32,
    /// Items.
    pub count: u32,
    /// Where the 16-bit rows are.
    pub layout: kvt_rows_layout,
    /// `kvt_quant_item[count]`, 8-byte aligned, on the device or in pinned memory.
    pub items: u64,
    /// Out of quantising, `uint32_t[count]` on the device: 1 where a block cannot be told in this codec (a value that is not finite, or a
    /// range beyond the scale's); it is to be kept as it is.
    pub refused: u64,
    /// Bytes from one layer's image to the next; at least `kvt_quant_bytes`, a multiple of 16.
    pub image_stride: u64,
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
    /// A `kvt_codec`.
    pub codec: u32,
    /// A `kvt_element`.
    pub element: u32,
    /// Blocks of threads at most; 0: 64.
    pub blocks: u32,
}

// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Sized32 for kvt_quant {
    const BYTES_MIN: usize = 88;
}
const _: () = assert!(size_of::<kvt_quant>() == 88);

/// Bytes of one layer's image of a block; of `quant` codec, parts, heads, tokens and channels count. `KVT_EINVAL`: the kernels do not do
/// it. `KVT_ESTATE`: this build has no CUDA.
///
/// # Safety
/// `quant` is valid for reads of `quant->struct_size` bytes, `bytes` for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_quant_bytes(quant: *const kvt_quant, bytes: *mut u64) -> kvt_status {
    entry("kvt_quant_bytes", || {
        check_out("bytes", bytes)?;
        // SAFETY: the caller's contract.
        let quant = unsafe { sized::read("quant", quant) }?;
        // SAFETY: as above.
        unsafe { write("bytes", bytes, gpu::quant_bytes(&quant)?) }
    })
}

/// Quantises blocks, on the lane's stream. Nothing is written while the lane's status word is set.
///
/// As `kvt_launch_gather`.
///
/// # Safety
/// As for `kvt_launch_gather`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_launch_quantize(
    kernels: *const kvt_kernels,
    lane: *mut kvt_lane,
    quant: *const kvt_quant,
) -> kvt_status {
    entry("kvt_launch_quantize", || {
        // SAFETY: the caller's contract.
        let quant = unsafe { sized::read("quant", quant) }?;
        let kernels = KERNELS.enter(kernels)?;
        // SAFETY: as above.
        with_lane(lane, |lane| unsafe { gpu::quantize(&kernels, lane, &quant) })
    })
}

/// Dequantises blocks, on the lane's stream: the rows of the items' tokens, no more. `refused` is not used.
///
/// As `kvt_launch_gather`.
///
/// # Safety
/// As for `kvt_launch_gather`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_launch_dequantize(
    kernels: *const kvt_kernels,
    lane: *mut kvt_lane,
    quant: *const kvt_quant,
) -> kvt_status {
    entry("kvt_launch_dequantize", || {
        // SAFETY: the caller's contract.
        let quant = unsafe { sized::read("quant", quant) }?;
        let kernels = KERNELS.enter(kernels)?;
        // SAFETY: as above.
        with_lane(lane, |lane| unsafe { gpu::dequantize(&kernels, lane, &quant) })
    })
}

/// A sealed page whose digest is to be built.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvt_digest_item {
    /// Added to `keys`: the page.
    pub page: u64,
    /// The page's block, which says where its digests go.
    pub block: u32,
    /// Its tokens, 1 to 128.
    pub tokens: u32,
}

/// Digests to build. Set `struct_size` and what is not needed to zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_digest_build {
    /// `sizeof(kvt_digest_build)`: later versions are longer.
    pub struct_size: u32,
    /// Items.
    pub count: u32,
    /// Key of (head, token) at `keys + item's page + head * head_stride + token * token_stride`, 16-byte aligned.
    pub keys: u64,
    /// Bytes from a head to the next.
    pub head_stride: u64,
    /// Bytes from a token to the next.
    pub token_stride: u64,
    /// `kvt_digest_item[count]`, 16-byte aligned, on the device or in pinned memory; no two of one block.
    pub items: u64,
    /// Out, `[blocks][heads][4 * channels + 4]` bytes, 4-byte aligned: the plane's digests.
    pub digests: u64,
    /// KV heads.
    pub heads: u32,
    /// Channels of a head, a multiple of 8, at most 1024.
    pub channels: u32,
    /// Blocks that `digests` holds. An item beyond it is not built.
    pub blocks: u32,
    /// A `kvt_element`.
    pub element: u32,
}

// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Sized32 for kvt_digest_build {
    const BYTES_MIN: usize = 64;
}
const _: () = assert!(size_of::<kvt_digest_build>() == 64);

/// Builds digests of sealed pages, on the lane's stream.
///
/// As `kvt_launch_gather`.
///
/// # Safety
/// As for `kvt_launch_gather`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_launch_digest_build(
    kernels: *const kvt_kernels,
    lane: *mut kvt_lane,
    build: *const kvt_digest_build,
) -> kvt_status {
    entry("kvt_launch_digest_build", || {
        // SAFETY: the caller's contract.
        let build = unsafe { sized::read("build", build) }?;
        let kernels = KERNELS.enter(kernels)?;
        // SAFETY: as above.
        with_lane(lane, |lane| unsafe { gpu::digest_build(&kernels, lane, &build) })
    })
}

/// Queries of a batch to hold against digests. Set `struct_size` and what is not needed to zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_digest_scores {
    /// `sizeof(kvt_digest_scores)`: later versions are longer.
    pub struct_size: u32,
    /// A `kvt_element`.
    pub element: u32,
    /// Query of (row, query head) at `queries + row * seq_stride + head * head_stride`; 8-byte aligned.
    pub queries: u64,
    /// Bytes from a row to the next.
    pub seq_stride: u64,
    /// Bytes from a query head to the next.
    pub head_stride: u64,
    /// `[blocks][kv_heads][4 * channels + 4]` bytes, 4-byte aligned: the plane's digests.
    pub digests: u64,
    /// `int32_t[seqs]`: tokens in sealed pages; a page that is not all sealed has no bound. 0: all but a last partial page.
    pub sealed: u64,
    /// Out, `float[seqs][kv_heads * group][max_blocks]`: what no product of the query with the page's keys exceeds, times `scale`;
    /// +infinity where nothing is known, -infinity outside of the sequence.
    pub bounds: u64,
    /// KV heads.
    pub kv_heads: u32,
    /// Query heads of a KV head.
    pub group: u32,
    /// Channels of a head, a multiple of 32, at most 576.
    pub channels: u32,
    /// Blocks that `digests` holds.
    pub blocks: u32,
    /// Scale of the products, positive.
    pub scale: f32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: repr(C), `struct_size` first, numbers only.
unsafe impl Sized32 for kvt_digest_scores {
    const BYTES_MIN: usize = 80;
}
const _: () = assert!(size_of::<kvt_digest_scores>() == 80);

/// Bounds of the products of a batch's queries with all pages of `plane`, readable or not, from their digests.
///
/// As `kvt_launch_gather`.
///
/// # Safety
/// As for `kvt_launch_gather`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_launch_digest_scores(
    kernels: *const kvt_kernels,
    batch: *mut kvt_batch,
    plane: u16,
    scores: *const kvt_digest_scores,
) -> kvt_status {
    entry("kvt_launch_digest_scores", || {
        // SAFETY: the caller's contract.
        let scores = unsafe { sized::read("scores", scores) }?;
        let kernels = KERNELS.enter(kernels)?;
        // SAFETY: as above.
        with_batch(batch, |batch| unsafe { gpu::digest_scores(&kernels, batch, plane, &scores) })
    })
}

/// Pages to select by their bounds. Set `struct_size` and what is not needed to zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_digest_select {
    /// `sizeof(kvt_digest_select)`: later versions are longer.
    pub struct_size: u32,
    /// Query heads, at most 256.
    pub heads: u32,
    /// `float[seqs][heads][max_blocks]`: from `kvt_launch_digest_scores`.
    pub bounds: u64,
    /// Out, `float[seqs][max_blocks]`: sums over heads of exp(bound - that head's largest finite bound); +infinity: must be read,
    /// -infinity: outside of the sequence.
    pub estimates: u64,
    /// Out, `int32_t[seqs][budget]`: indices of the chosen pages, ascending; then -1.
    pub chosen: u64,
    /// Out, `uint32_t[seqs]`: how many.
    pub counts: u64,
    /// Out, `float[seqs]`: the share of the finite estimates that was not chosen, 0 to 1.
    pub omitted: u64,
    /// Most pages to choose.
    pub budget: u32,
    /// Pages from the sequence's first that must be read (sinks).
    pub keep_first: u32,
    /// Pages from its last that must be read.
    pub keep_last: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Sized32 for kvt_digest_select {
    const BYTES_MIN: usize = 64;
}
const _: () = assert!(size_of::<kvt_digest_select>() == 64);

/// The best pages of each row of a batch.
///
/// As `kvt_launch_gather`.
///
/// # Safety
/// As for `kvt_launch_gather`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_launch_digest_select(
    kernels: *const kvt_kernels,
    batch: *mut kvt_batch,
    select: *const kvt_digest_select,
) -> kvt_status {
    entry("kvt_launch_digest_select", || {
        // SAFETY: the caller's contract.
        let select = unsafe { sized::read("select", select) }?;
        let kernels = KERNELS.enter(kernels)?;
        // SAFETY: as above.
        with_batch(batch, |batch| unsafe { gpu::digest_select(&kernels, batch, &select) })
    })
}
