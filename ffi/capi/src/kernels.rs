//! `kvt_kernels`: kernels that move and transform pages on the device of tier 0: new tokens, layouts, codecs.

use super::batch::{kvt_batch, with_batch};
use super::client::{self, kvt_client};
use super::entry::{check_out, entry, write};
use super::gpu;
use super::lane::{kvt_lane, with_lane};
use super::sized::{self, Sized32};
use super::status::kvt_status;
use super::table::{Shared, Table};

/// Kernels without state between launches.
///
/// Thread safety: any thread, several at once.
pub struct kvt_kernels {
    _opaque: [u8; 0],
}

static KERNELS: Table<gpu::Kernels, Shared> = Table::new("kvt_kernels", b'K');

/// Load the kernels. Call it during set-up, never while a stream waits at a boundary.
///
/// Experimental.
///
/// @param client  Session.
/// @param kernels  Receives the handle. Close it with `kvt_kernels_close`.
/// @return `KVT_OK`; `KVT_ESTATE` if tier 0 is not on a device; `KVT_EDEVICE`.
/// Thread safety: any thread.
/// Example: `kvt_kernels_open(client, &kernels);`
///
/// # Safety
/// `kernels` must be valid for a write.
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

/// Close the handle. Work that was enqueued with it must have ended.
///
/// Experimental.
///
/// @param kernels  Kernels.
/// @return `KVT_OK`.
/// Thread safety: any thread.
/// Example: `kvt_kernels_close(kernels);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_kernels_close(kernels: *mut kvt_kernels) -> kvt_status {
    entry("kvt_kernels_close", || KERNELS.close(kernels))
}

/// Rows of one kind of a new token (its keys, its values, its latent vector) and their position in a page. Strides,
/// offsets and sizes are in bytes, multiples of 16.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvt_append_part {
    /// Device address: row of (token, head) at `token * token_stride + head * head_stride`; 16-byte aligned.
    pub source: u64,
    /// From a token to the next.
    pub token_stride: u64,
    /// From a head to the next.
    pub head_stride: u64,
    /// Number of heads; 0: no such part.
    pub heads: u32,
    /// Size of a row.
    pub row_bytes: u32,
    /// Offset of the part in the page.
    pub page_offset: u32,
    /// From a head to the next within the page.
    pub page_head_stride: u32,
    /// From a token to the next within the page.
    pub page_token_stride: u32,
    /// Zero.
    pub reserved: u32,
}

/// New tokens of a batch. Set `struct_size`, and unused members to zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_append_rows {
    /// `sizeof(kvt_append_rows)`: later versions are longer.
    pub struct_size: u32,
    /// Total number of new tokens.
    pub rows: u32,
    /// Parts of each token.
    pub parts: [kvt_append_part; 2],
    /// `int32_t[seqs + 1]` on the device: tokens `starts[s]` to `starts[s + 1] - 1` are the last of row s; 0: one token
    /// per row.
    pub starts: u64,
    /// Device address of a `uint32_t` that counts tokens that were not written because their page is in no frame; or 0.
    pub faults: u64,
}

// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Sized32 for kvt_append_rows {
    const BYTES_MIN: usize = 120;
}
const _: () = assert!(size_of::<kvt_append_rows>() == 120);

/// Write a step's new tokens, the last of each row of the batch, into their pages of `plane`, on the lane's stream.
/// Call it between `kvt_batch_set_seqs` and `kvt_lane_end`.
///
/// Experimental.
///
/// @param kernels  Kernels.
/// @param batch  Batch.
/// @param plane  Plane, below `kvt_options.planes_count`.
/// @param rows  New tokens; not used after the call.
/// @return `KVT_OK`; `KVT_ERANGE` if there is no such plane; `KVT_EINVAL` if an address or stride is not valid or a
///     part does not fit into a page; `KVT_ESTATE` if the lane is not on a stream; `KVT_EDEVICE`.
/// Thread safety: the lane's thread.
/// Example: `kvt_kernels_append(kernels, batch, plane, &rows);`
///
/// # Safety
/// `rows` must be valid for reads of `rows->struct_size` bytes. The memory that it names must be on the device, and not
/// be written, until the launch has ended. The lane must be in the step that the batch was set to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_kernels_append(
    kernels: *const kvt_kernels,
    batch: *mut kvt_batch,
    plane: u16,
    rows: *const kvt_append_rows,
) -> kvt_status {
    entry("kvt_kernels_append", || {
        // SAFETY: the caller's contract.
        let rows = unsafe { sized::read("rows", rows) }?;
        let kernels = KERNELS.enter(kernels)?;
        // SAFETY: as above.
        with_batch(batch, |batch| unsafe { gpu::append(&kernels, batch, plane, &rows) })
    })
}

/// Location of a block's rows: row (layer, part, head, token) of an item is at
/// `bases[layer * parts + part] + item's offset + head * head_stride + token * token_stride`, modulo 2^64.
///
/// Layers or pages may come first, K and V be separate or together, heads or tokens come first. For a page of kvtide,
/// `bases` are offsets in the page, and the item's offset is its address.
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

/// A block to copy: its offset in either layout.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvt_gather_item {
    /// Added to the bases of `from`.
    pub from: u64,
    /// Added to the bases of `to`.
    pub to: u64,
}

/// Blocks to copy from one layout into another. Set `struct_size`, and unused members to zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_gather {
    /// `sizeof(kvt_gather)`: later versions are longer.
    pub struct_size: u32,
    /// Number of items.
    pub count: u32,
    /// Layout of the source.
    pub from: kvt_rows_layout,
    /// Layout of the target.
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
    /// Maximum thread blocks, at most 4,096; 0: 64.
    pub blocks: u32,
}

// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Sized32 for kvt_gather {
    const BYTES_MIN: usize = 88;
}
const _: () = assert!(size_of::<kvt_gather>() == 88);

/// Copy blocks between layouts, on the lane's stream: pages into an engine's own tensors, or back into unsealed pages.
/// Nothing is written while the lane's status word is set.
///
/// Experimental.
///
/// @param kernels  Kernels.
/// @param lane  Lane.
/// @param gather  Blocks and layouts; not used after the call.
/// @return `KVT_OK`; `KVT_EINVAL` if an address is missing or not aligned, or a number is out of its bounds;
///     `KVT_ESTATE` if the lane is not on a stream; `KVT_EDEVICE`.
/// Thread safety: the lane's thread.
/// Example: `kvt_kernels_gather(kernels, lane, &gather);`
///
/// # Safety
/// `gather` must be valid for reads of `gather->struct_size` bytes. Until the launch has ended, the memory that it
/// names must exist, the sources must not be written, and the targets must not be accessed. Pages are read and written
/// within the lane's step.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_kernels_gather(
    kernels: *const kvt_kernels,
    lane: *mut kvt_lane,
    gather: *const kvt_gather,
) -> kvt_status {
    entry("kvt_kernels_gather", || {
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
    /// 8 bits per number, e4m3.
    KVT_CODEC_FP8 = 0,
    /// 8 bits per number; keys by channel, values by token.
    KVT_CODEC_INT8 = 1,
    /// 4 bits per number; keys by channel, values by token.
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
    /// Valid tokens; codes of the others are 0, and their rows are not accessed.
    pub tokens: u32,
    /// Zero.
    pub reserved: u32,
}

/// Blocks to quantise or to dequantise. Set `struct_size`, and unused members to zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_quant {
    /// `sizeof(kvt_quant)`: later versions are longer.
    pub struct_size: u32,
    /// Number of items.
    pub count: u32,
    /// Layout of the 16-bit rows.
    pub layout: kvt_rows_layout,
    /// `kvt_quant_item[count]`, 8-byte aligned, on the device or in pinned memory.
    pub items: u64,
    /// Out, required to quantise, `uint32_t[count]` on the device: 1 if this codec cannot represent a block (a value is
    /// not finite, or the range exceeds that of the scale); keep such a block unquantised.
    pub refused: u64,
    /// Bytes from one layer's image to the next; at least `kvt_quant_get_bytes`, a multiple of 16.
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
    /// `KVT_ELEMENT_F16` or `KVT_ELEMENT_BF16`.
    pub element: u32,
    /// Maximum thread blocks, at most 4,096; 0: 64.
    pub blocks: u32,
}

// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Sized32 for kvt_quant {
    const BYTES_MIN: usize = 88;
}
const _: () = assert!(size_of::<kvt_quant>() == 88);

/// Return the size of one layer's image of a block.
///
/// Experimental.
///
/// @param quant  `codec`, `parts`, `heads`, `page_tokens` and `channels` are used.
/// @param bytes  Receives the size in bytes.
/// @return `KVT_OK`; `KVT_EINVAL` if the kernels do not support the shape; `KVT_ESTATE` if this build has no CUDA.
/// Thread safety: any thread.
/// Example: `kvt_quant_get_bytes(&quant, &quant.image_stride);`
///
/// # Safety
/// `quant` must be valid for reads of `quant->struct_size` bytes, `bytes` for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_quant_get_bytes(quant: *const kvt_quant, bytes: *mut u64) -> kvt_status {
    entry("kvt_quant_get_bytes", || {
        check_out("bytes", bytes)?;
        // SAFETY: the caller's contract.
        let quant = unsafe { sized::read("quant", quant) }?;
        // SAFETY: as above.
        unsafe { write("bytes", bytes, gpu::quant_bytes(&quant)?) }
    })
}

/// Quantise blocks, on the lane's stream. Nothing is written while the lane's status word is set.
///
/// Experimental.
///
/// @param kernels  Kernels.
/// @param lane  Lane.
/// @param quant  Blocks and codec; not used after the call.
/// @return As `kvt_kernels_gather`.
/// Thread safety: the lane's thread.
/// Example: `kvt_kernels_quantize(kernels, lane, &quant);`
///
/// # Safety
/// As for `kvt_kernels_gather`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_kernels_quantize(
    kernels: *const kvt_kernels,
    lane: *mut kvt_lane,
    quant: *const kvt_quant,
) -> kvt_status {
    entry("kvt_kernels_quantize", || {
        // SAFETY: the caller's contract.
        let quant = unsafe { sized::read("quant", quant) }?;
        let kernels = KERNELS.enter(kernels)?;
        // SAFETY: as above.
        with_lane(lane, |lane| unsafe { gpu::quantize(&kernels, lane, &quant) })
    })
}

/// Dequantise blocks, on the lane's stream: only the rows of the items' tokens. `refused` is not used.
///
/// Experimental.
///
/// @param kernels  Kernels.
/// @param lane  Lane.
/// @param quant  As `kvt_kernels_quantize`.
/// @return As `kvt_kernels_gather`.
/// Thread safety: the lane's thread.
/// Example: `kvt_kernels_dequantize(kernels, lane, &quant);`
///
/// # Safety
/// As for `kvt_kernels_gather`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_kernels_dequantize(
    kernels: *const kvt_kernels,
    lane: *mut kvt_lane,
    quant: *const kvt_quant,
) -> kvt_status {
    entry("kvt_kernels_dequantize", || {
        // SAFETY: the caller's contract.
        let quant = unsafe { sized::read("quant", quant) }?;
        let kernels = KERNELS.enter(kernels)?;
        // SAFETY: as above.
        with_lane(lane, |lane| unsafe { gpu::dequantize(&kernels, lane, &quant) })
    })
}
