//! `kvt_batch`: the sequences of a lane's steps on the device, and int32 block tables for kernels that know no other.

use super::client::{self, kvt_client};
use super::entry::{array, check_out, entry, write};
use super::error::Fault;
use super::gpu;
use super::lane::{kvt_lane, kvt_step_seq, with_lane};
use super::sized::{self, Sized32};
use super::status::kvt_status;
use super::table::{Exclusive, Table};
use kvtide_client::StepSeq;

/// The sequences of one lane's steps as kernels read them: lengths, block ids and block tables at device addresses that never
/// change. That of the lane's thread.
pub struct kvt_batch {
    _opaque: [u8; 0],
}

static BATCHES: Table<gpu::Batch, Exclusive> = Table::new("kvt_batch", b'B');

/// Runs a call on a batch.
pub(crate) fn with_batch<T>(
    batch: *const kvt_batch,
    call: impl FnOnce(&mut gpu::Batch) -> Result<T, Fault>,
) -> Result<T, Fault> {
    call(&mut *BATCHES.enter(batch)?)
}

/// What a batch is made with. Set `struct_size` and what is not needed to zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_batch_options {
    /// `sizeof(kvt_batch_options)`: later versions are longer.
    pub struct_size: u32,
    /// Rows: sequences of a step at most.
    pub seqs: u32,
    /// Columns: blocks of a sequence at most.
    pub max_blocks: u32,
    /// Planes for which `kvt_batch_tables` may build block tables at once; 0: none.
    pub table_planes: u32,
    /// Not 0: block tables name window frames too (`kvt_options.host_windows`), for `kvt_attention_*` and kernels that look into
    /// `kvt_plane_layout.aliases`. 0: pages in windows are absent and misses, as for kernels that know frames alone.
    pub in_place: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Sized32 for kvt_batch_options {
    const BYTES_MIN: usize = 16;
}
const _: () = assert!(size_of::<kvt_batch_options>() == 24);

/// Where a batch's arrays are on the device, while it is open: CUDA graphs may hold these addresses. Set `struct_size` before the
/// call.
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
    /// `int32_t[seqs]`: tokens that attention covers; 0 in rows that are not in use.
    pub lengths: u64,
    /// `int32_t[seqs][max_blocks]`: block ids, -1 where there is none.
    pub block_ids: u64,
    /// `int32_t[table_planes][seqs][max_blocks]`: what `kvt_batch_tables` builds; 0 if there are none.
    pub block_tables: u64,
    /// `uint32_t[table_planes][seqs][ceil(max_blocks / 32)]`: bit i of word w is set if page 32 w + i of the row is needed and
    /// absent; 0 if there are none.
    pub misses: u64,
}

// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Sized32 for kvt_batch_device {
    const BYTES_MIN: usize = 48;
}
const _: () = assert!(size_of::<kvt_batch_device>() == 48);

/// Makes an empty batch for the steps of `lane`, which is bound to a stream.
///
/// `KVT_ESTATE`: tier 0 is on no device, or the lane on no stream. `KVT_ERANGE`: no rows or columns, more than a kernel counts, or
/// tables of more planes than there are. `KVT_EDEVICE`.
///
/// # Safety
/// `options` is valid for reads of `options->struct_size` bytes, `batch` for a write.
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

/// Closes a batch, once what was enqueued on it has ended.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_batch_close(batch: *mut kvt_batch) -> kvt_status {
    entry("kvt_batch_close", || BATCHES.close(batch))
}

/// Fills `device`.
///
/// # Safety
/// `device` is valid for reads and writes of `device->struct_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_batch_get_device(batch: *mut kvt_batch, device: *mut kvt_batch_device) -> kvt_status {
    entry("kvt_batch_get_device", || {
        let found = with_batch(batch, |batch| Ok(gpu::batch_device(batch)))?;
        // SAFETY: the caller's contract.
        unsafe { sized::fill("device", device, &found) }
    })
}

/// Where the first tokens of a window plane are, `int32_t[seqs]` on the device: of each row the first token of the first page that
/// the step reads. 0: the plane reads all pages. Valid while the batch is open.
///
/// # Safety
/// `starts` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_batch_starts(batch: *mut kvt_batch, plane: u16, starts: *mut u64) -> kvt_status {
    entry("kvt_batch_starts", || {
        check_out("starts", starts)?;
        let found = with_batch(batch, |batch| Ok(gpu::batch_starts(batch, plane)))?;
        // SAFETY: the caller's contract.
        unsafe { write("starts", starts, found) }
    })
}

/// Has the rows be these sequences, the same as in the lane's `kvt_lane_begin`: to be called after it, before the step's first
/// kernel is enqueued. Only what changed since the last step goes to the device, in the order of the lane's stream.
///
/// `KVT_ERANGE`: more sequences than rows, or more blocks than columns. `KVT_ENOTFOUND`: no such sequence. `KVT_EDEVICE`,
/// `KVT_ETIMEDOUT`.
///
/// # Safety
/// `seqs` is valid for `count` reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_batch_set(batch: *mut kvt_batch, seqs: *const kvt_step_seq, count: u32) -> kvt_status {
    entry("kvt_batch_set", || {
        // SAFETY: the caller's contract.
        let seqs = unsafe { array("seqs", seqs, count as usize) }?;
        let rows: Vec<StepSeq> = seqs.iter().map(|s| StepSeq { seq: s.seq, tokens: s.tokens }).collect();
        with_batch(batch, |batch| gpu::batch_set(batch, &rows))
    })
}

/// Builds the block tables and miss bits of `count` planes from `plane` on, all of one size class, for the rows as they are set:
/// entry (p, row, i) is the frame of the row's page i in plane `plane + p`, counted from the class's first, or `absent`. Pages that
/// the plane does not read, before a window and behind the row's length, are absent and no miss. To be called after the boundary of
/// those planes; kernels that are enqueued afterwards read them. Kernels of this library take `absent` below 0.
///
/// `KVT_ERANGE`: more planes than the batch has tables for, none, or planes of two size classes. `KVT_ESTATE`: the lane is on no
/// stream. `KVT_EDEVICE`.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_batch_tables(batch: *mut kvt_batch, plane: u16, count: u16, absent: i32) -> kvt_status {
    entry("kvt_batch_tables", || with_batch(batch, |batch| gpu::batch_tables(batch, plane, count, absent)))
}
