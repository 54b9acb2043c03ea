//! `kvt_batch`: the sequences of a lane's steps on the device, and int32 block tables for kernels that read only those.

use super::client::{self, kvt_client};
use super::entry::{array, check_out, entry, write};
use super::error::Fault;
use super::gpu;
use super::lane::{kvt_lane, kvt_step_seq, with_lane};
use super::sized::{self, Sized32};
use super::status::kvt_status;
use super::table::{Exclusive, Table};
use kvtide_client::StepSeq;

/// The sequences of one lane's steps as kernels read them: lengths, block ids and block tables at fixed device
/// addresses.
///
/// Thread safety: the lane's thread.
pub struct kvt_batch {
    _opaque: [u8; 0],
}

static BATCHES: Table<gpu::Batch, Exclusive> = Table::new("kvt_batch", b'B');

/// Run a call on a batch.
pub(crate) fn with_batch<T>(
    batch: *const kvt_batch,
    call: impl FnOnce(&mut gpu::Batch) -> Result<T, Fault>,
) -> Result<T, Fault> {
    call(&mut *BATCHES.enter(batch)?)
}

/// Options of a batch. Set `struct_size`, and unused members to zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_batch_options {
    /// `sizeof(kvt_batch_options)`: later versions are longer.
    pub struct_size: u32,
    /// Rows: maximum sequences of a step.
    pub seqs: u32,
    /// Columns: maximum blocks of a sequence.
    pub max_blocks: u32,
    /// Maximum planes of a `kvt_batch_build_tables` call; 0: no tables.
    pub table_planes: u32,
    /// Not 0: block tables also contain mapped frames (`kvt_options.mapped_frames`), for `kvt_attention_*` and kernels
    /// that use `kvt_plane_layout.mapped_pages`. 0: pages in mapped frames are absent and count as misses, for kernels
    /// that do not.
    pub in_place: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Sized32 for kvt_batch_options {
    const BYTES_MIN: usize = 24;
}
const _: () = assert!(size_of::<kvt_batch_options>() == 24);

/// Device addresses of a batch's arrays, fixed while it is open: CUDA graphs may contain them. Set `struct_size` before
/// the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_batch_device {
    /// `sizeof(kvt_batch_device)`: later versions are longer.
    pub struct_size: u32,
    /// Rows.
    pub seqs: u32,
    /// Columns.
    pub max_blocks: u32,
    /// Zero.
    pub reserved: u32,
    /// `int32_t[seqs]`: tokens that attention covers; 0 in unused rows.
    pub lengths: u64,
    /// `int32_t[seqs][max_blocks]`: block ids; -1: none.
    pub block_ids: u64,
    /// `int32_t[table_planes][seqs][max_blocks]`: the tables that `kvt_batch_build_tables` builds; 0 without tables.
    pub block_tables: u64,
    /// `uint32_t[table_planes][seqs][ceil(max_blocks / 32)]`: bit i of word w is set if page 32 w + i of the row is
    /// needed and absent; 0 without tables.
    pub misses: u64,
}

// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Sized32 for kvt_batch_device {
    const BYTES_MIN: usize = 48;
}
const _: () = assert!(size_of::<kvt_batch_device>() == 48);

/// Create an empty batch for the steps of `lane`, which is bound to a stream.
///
/// Experimental.
///
/// @param client  Session.
/// @param lane  Lane.
/// @param options  Rows, columns and tables; not used after the call.
/// @param batch  Receives the handle. Close it with `kvt_batch_close`.
/// @return `KVT_OK`; `KVT_ESTATE` if tier 0 is not on a device, or the lane not on a stream; `KVT_ERANGE` if there are
///     no rows or columns, too many for a kernel, or more `table_planes` than planes; `KVT_EDEVICE`.
/// Thread safety: the lane's thread.
/// Example: `kvt_batch_options rows = {.struct_size = sizeof rows, .seqs = 8, .max_blocks = 512, .table_planes = 32};
///     kvt_batch_open(client, lane, &rows, &batch);`
///
/// # Safety
/// `options` must be valid for reads of `options->struct_size` bytes, `batch` for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_batch_open(
    client: *const kvt_client,
    lane: *mut kvt_lane,
    options: *const kvt_batch_options,
    batch: *mut *mut kvt_batch,
) -> kvt_status {
    entry("kvt_batch_open", || {
        check_out("batch", batch)?;
        // SAFETY: the caller's contract.
        let options = unsafe { sized::read("options", options) }?;
        let client = client::enter(client)?;
        let made = with_lane(lane, |lane| gpu::batch(&client.client, lane, &options))?;
        let handle = BATCHES.insert(made)?;
        // SAFETY: the caller's contract.
        unsafe { write("batch", batch, handle) }
    })
}

/// Close a batch. Work that was enqueued with it must have ended.
///
/// Experimental.
///
/// @param batch  Batch.
/// @return `KVT_OK`; `KVT_EBUSY` if another thread is in a call on it.
/// Thread safety: the lane's thread.
/// Example: `kvt_batch_close(batch);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_batch_close(batch: *mut kvt_batch) -> kvt_status {
    entry("kvt_batch_close", || BATCHES.close(batch))
}

/// Return the device addresses of the batch's arrays.
///
/// Experimental.
///
/// @param batch  Batch.
/// @param device  Set `struct_size` before the call; receives the addresses.
/// @return `KVT_OK`; `KVT_EINVAL` if `struct_size` is not a valid size.
/// Thread safety: the lane's thread.
/// Example: `kvt_batch_device device = {.struct_size = sizeof device}; kvt_batch_get_device(batch, &device);`
///
/// # Safety
/// `device` must be valid for reads and writes of `device->struct_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_batch_get_device(batch: *mut kvt_batch, device: *mut kvt_batch_device) -> kvt_status {
    entry("kvt_batch_get_device", || {
        let found = with_batch(batch, |batch| Ok(gpu::batch_device(batch)))?;
        // SAFETY: the caller's contract.
        unsafe { sized::fill("device", device, &found) }
    })
}

/// Return the device address of a window plane's start positions, fixed while the batch is open.
///
/// Experimental.
///
/// @param batch  Batch.
/// @param plane  Plane, below `kvt_options.planes_count`.
/// @param starts  Receives the address of `int32_t[seqs]`: for each row the first token of the first page that the step
///     reads; 0 if the plane reads all pages.
/// @return `KVT_OK`.
/// Thread safety: the lane's thread.
/// Example: `kvt_batch_get_starts(batch, plane, &starts);`
///
/// # Safety
/// `starts` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_batch_get_starts(batch: *mut kvt_batch, plane: u16, starts: *mut u64) -> kvt_status {
    entry("kvt_batch_get_starts", || {
        check_out("starts", starts)?;
        let found = with_batch(batch, |batch| Ok(gpu::batch_starts(batch, plane)))?;
        // SAFETY: the caller's contract.
        unsafe { write("starts", starts, found) }
    })
}

/// Set the rows of the batch to the sequences of the lane's `kvt_lane_begin`. Call it after that, before the step's
/// first kernel is enqueued. Only changes since the last step are copied to the device, in the order of the lane's
/// stream.
///
/// Experimental.
///
/// @param batch  Batch.
/// @param seqs  The same `count` sequences as in `kvt_lane_begin`.
/// @param count  Number of sequences.
/// @return `KVT_OK`; `KVT_ERANGE` if there are more sequences than rows, or more blocks than columns; `KVT_ENOTFOUND`
///     if there is no such sequence; `KVT_ESTATE` if the lane is not on a stream; `KVT_EDEVICE`; `KVT_ETIMEDOUT`.
/// Thread safety: the lane's thread.
/// Example: `kvt_lane_begin(lane, seqs, count); kvt_batch_set_seqs(batch, seqs, count);`
///
/// # Safety
/// `seqs` must be valid for `count` reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_batch_set_seqs(
    batch: *mut kvt_batch,
    seqs: *const kvt_step_seq,
    count: u32,
) -> kvt_status {
    entry("kvt_batch_set_seqs", || {
        // SAFETY: the caller's contract.
        let seqs = unsafe { array("seqs", seqs, count as usize) }?;
        let rows: Vec<StepSeq> = seqs.iter().map(|s| StepSeq { seq: s.seq, tokens: s.tokens }).collect();
        with_batch(batch, |batch| gpu::batch_set(batch, &rows))
    })
}

/// Build the block tables and miss bits of `count` planes from `plane` on, for the rows of the batch. Call it after the
/// boundary of these planes; kernels that are enqueued later read the result.
///
/// Entry (p, row, i) is the frame of the row's page i in plane `plane + p`, relative to the class's first frame, or
/// `absent`. Pages that the plane does not read, before a window or beyond the row's length, are absent and not misses.
///
/// Experimental.
///
/// @param batch  Batch.
/// @param plane  Plane, below `kvt_options.planes_count`.
/// @param count  Number of planes, all of one size class, at most `kvt_batch_options.table_planes`.
/// @param absent  Entry of an absent page. Kernels of this library require a negative number.
/// @return `KVT_OK`; `KVT_ERANGE` if there are no planes, too many, or planes of two size classes; `KVT_ESTATE` if the
///     lane is not on a stream; `KVT_EDEVICE`.
/// Thread safety: the lane's thread.
/// Example: `kvt_lane_boundary(lane, plane, &pass); kvt_batch_build_tables(batch, plane, 1, -1);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_batch_build_tables(batch: *mut kvt_batch, plane: u16, count: u16, absent: i32) -> kvt_status {
    entry("kvt_batch_build_tables", || with_batch(batch, |batch| gpu::batch_tables(batch, plane, count, absent)))
}
