//! `kvt_lane`: one ordered stream of engine work, with its page table.

use super::client::{self, kvt_client};
use super::entry::{array, check_out, entry, write};
use super::error::Fault;
use super::layout::{Layout, kvt_plane_layout};
use super::status::kvt_status;
use super::table::{Exclusive, Table};
use kvtide_client::{Lane, Pass, Ready, StepSeq};
use kvtide_wire::status::Status;
use std::ffi::c_void;
use std::sync::Arc;

/// A lane: one ordered stream of engine work.
///
/// Thread safety: one thread at a time; it may be another thread from call to call.
pub struct kvt_lane {
    _opaque: [u8; 0],
}

/// Value of a [`kvt_lane`] handle.
struct LaneHandle {
    lane: Lane,
    layout: Arc<Layout>,
    /// Kept between steps: once they have grown, a step allocates nothing.
    seqs: Vec<StepSeq>,
    ready: Vec<kvt_ready>,
}

static LANES: Table<LaneHandle, Exclusive> = Table::new("kvt_lane", b'L');

/// Run a call on a lane.
pub(crate) fn with_lane<T>(
    lane: *const kvt_lane,
    call: impl FnOnce(&mut Lane) -> Result<T, Fault>,
) -> Result<T, Fault> {
    call(&mut LANES.enter(lane)?.lane)
}

/// A sequence of a step.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvt_step_seq {
    /// Sequence.
    pub seq: u32,
    /// Zero.
    pub reserved: u32,
    /// Tokens that attention covers in this step, including the new ones.
    pub tokens: u64,
}

/// A page that a boundary hands out.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvt_ready {
    /// Position of its sequence in the step.
    pub position: u32,
    /// Block index within the sequence.
    pub index: u32,
    /// Frame that holds the page.
    pub frame: u32,
}

/// Result of a boundary.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_pass {
    /// `count` pages that are readable now and were not handed out before in this step and plane, in order of position
    /// and index. Valid until the next boundary of this lane. Empty if `all` is true.
    pub ready: *const kvt_ready,
    /// Number of pages in `ready`.
    pub count: u32,
    /// True: every page that the plane needs is readable through the table, and none was handed out before.
    pub all: bool,
    /// True: the plane is complete with this pass. Also set if `all` is true.
    pub last: bool,
    /// Zero.
    pub reserved: u16,
}

/// Data with which a kernel looks up pages without a call: see `kvt_view_page`. Its pointers are valid while the lane
/// is open.
///
/// Table entries are valid only between `kvt_lane_begin` and `kvt_lane_end`, and change only within `kvt_lane_begin`
/// and `kvt_lane_boundary` of this lane. Other threads of the engine may read the table if they are ordered with these
/// calls.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_lane_view {
    /// Entry of `block * planes_count + plane`: 0 if the page is not in tier 0, otherwise its frame + 1.
    pub table: *const u32,
    /// Number of entries.
    pub table_len: u64,
    /// `planes_count` planes.
    pub planes: *const kvt_plane_layout,
    /// Number of planes.
    pub planes_count: u32,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Device address of a copy of the table, for kernels on the lane's stream (`kvtide_cuda.h`). CUDA graphs may contain
    /// it. 0 if tier 0 is not on a device.
    pub device_table: u64,
    /// Device address of 4 bytes: 0, or the status of the step's first boundary that failed while the stream waited for
    /// it. Kernels that see a nonzero value write nothing. CUDA graphs may contain the address. 0 if tier 0 is not on a
    /// device.
    pub device_status: u64,
}

/// Open lane `index` of the session. A lane has one handle at a time.
///
/// @param client  Session.
/// @param index  Lane, below `kvt_options.lanes`.
/// @param lane  Receives the handle. Close it with `kvt_lane_close`.
/// @return `KVT_OK`; `KVT_ERANGE` if there is no such lane; `KVT_ESTATE` if it is already open.
/// Thread safety: any thread.
/// Example: `kvt_lane_open(client, 0, &lane);`
///
/// # Safety
/// `lane` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_open(client: *const kvt_client, index: u16, lane: *mut *mut kvt_lane) -> kvt_status {
    entry("kvt_lane_open", || {
        check_out("lane", lane)?;
        let client = client::enter(client)?;
        let layout = Arc::clone(&client.layout);
        let taken = LaneHandle { lane: client.client.lane(index)?, layout, seqs: Vec::new(), ready: Vec::new() };
        let handle = LANES.insert(taken)?;
        // SAFETY: the caller's contract.
        unsafe { write("lane", lane, handle) }
    })
}

/// Close a lane and end its open step. It can be opened again; get its view again then.
///
/// @param lane  Lane.
/// @return `KVT_OK`; `KVT_EBUSY` if another thread is in a call on it.
/// Thread safety: one thread per lane at a time.
/// Example: `kvt_lane_close(lane);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_lane_close(lane: *mut kvt_lane) -> kvt_status {
    entry("kvt_lane_close", || LANES.close(lane))
}

/// Begin a step over `count` sequences. Sends a message only if a page that the step needs is not resident. Waits only
/// while tier 0 shrinks and pages are being moved.
///
/// @param lane  Lane.
/// @param seqs  Sequences, at most 512, each with the length that attention covers. Their blocks must be reserved. A
///     sequence is in one lane's step at a time.
/// @param count  Number of sequences.
/// @return `KVT_OK`; `KVT_ESTATE` if the lane's step has already begun, a sequence is in another step, parked, or being
///     forked or truncated, or tier 0 is on a device and the lane is not bound to a stream; `KVT_ENOTFOUND` if there is
///     no such sequence; `KVT_ERANGE` if it has more tokens than reserved; `KVT_ELIMIT` if there are too many
///     sequences; `KVT_ELOST` if a sequence is lost; `KVT_ETIMEDOUT` if pages were still being moved at the deadline;
///     `KVT_EINVAL` while the lane's stream is being captured into a CUDA graph; `KVT_EDEVICE`.
/// Thread safety: one thread per lane at a time.
/// Example: `kvt_step_seq step = {.seq = seq, .tokens = 512}; kvt_lane_begin(lane, &step, 1);`
///
/// # Safety
/// `seqs` must be valid for `count` reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_begin(lane: *mut kvt_lane, seqs: *const kvt_step_seq, count: u32) -> kvt_status {
    entry("kvt_lane_begin", || {
        // SAFETY: the caller's contract.
        let seqs = unsafe { array("seqs", seqs, count as usize) }?;
        let mut l = LANES.enter(lane)?;
        let l = &mut *l;
        l.seqs.clear();
        l.seqs.extend(seqs.iter().map(|s| StepSeq { seq: s.seq, tokens: s.tokens }));
        Ok(l.lane.begin(&l.seqs)?)
    })
}

/// Pass a boundary of `plane`: apply the changes of the table and report which pages are readable. Call it before the
/// pages of the plane are read.
///
/// Planes come in ascending order within a step. Repeat the call for a plane until `pass->last` is true. It waits,
/// within the session's timeout, only if a needed page is missing and no other page has become readable.
///
/// @param lane  Lane.
/// @param plane  Plane.
/// @param pass  Receives the result.
/// @return `KVT_OK`; `KVT_ESTATE` if no step is open, the plane is complete, or a later one was begun; `KVT_ERANGE` if
///     there is no such plane; `KVT_ELOST`, `KVT_EIO`, `KVT_ETIMEDOUT`, `KVT_EDAEMON` or `KVT_EDEVICE` if a page is not
///     available; `KVT_EINVAL` while the lane's stream is being captured into a CUDA graph. The step stays open after an
///     error, and the boundary can be repeated.
/// Thread safety: one thread per lane at a time.
/// Example: `do { kvt_lane_boundary(lane, plane, &pass); attend(&pass); } while (!pass.last);`
///
/// # Safety
/// `pass` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_boundary(lane: *mut kvt_lane, plane: u16, pass: *mut kvt_pass) -> kvt_status {
    entry("kvt_lane_boundary", || {
        check_out("pass", pass)?;
        let mut l = LANES.enter(lane)?;
        let l = &mut *l;
        l.ready.clear();
        let (all, last) = match l.lane.boundary(plane)? {
            Pass::All => (true, true),
            Pass::Part { last, .. } => {
                let page = |r: &Ready| kvt_ready { position: r.position, index: r.index, frame: r.frame };
                l.ready.extend(l.lane.ready().iter().map(page));
                (false, last)
            }
        };
        let found = kvt_pass { ready: l.ready.as_ptr(), count: l.ready.len() as u32, all, last, reserved: 0 };
        // SAFETY: the caller's contract.
        unsafe { write("pass", pass, found) }
    })
}

/// End the step, complete or not. The lane reads no frame until its next `kvt_lane_begin`.
///
/// @param lane  Lane.
/// @return `KVT_OK`; `KVT_ESTATE` if no step is open; `KVT_EINVAL` while the lane's stream is being captured into a CUDA
///     graph: the step stays open.
/// Thread safety: one thread per lane at a time.
/// Example: `kvt_lane_end(lane); kvt_channel_commit(channel, step.seq, step.tokens);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_lane_end(lane: *mut kvt_lane) -> kvt_status {
    entry("kvt_lane_end", || Ok(LANES.enter(lane)?.lane.end()?))
}

/// Return the device addresses of a lane's table and status word; 0 if tier 0 is not on a device.
#[cfg(feature = "cuda")]
fn device_words(lane: &Lane) -> (u64, u64) {
    lane.device().map_or((0, 0), |device| (device.table, device.status))
}

/// Return zeroes: without CUDA, tier 0 is plain memory.
#[cfg(not(feature = "cuda"))]
fn device_words(_: &Lane) -> (u64, u64) {
    (0, 0)
}

/// Return the data for `kvt_view_page`. One call suffices while the lane is open.
///
/// @param lane  Lane.
/// @param view  Receives the view.
/// @return `KVT_OK`.
/// Thread safety: one thread per lane at a time.
/// Example: `kvt_lane_get_view(lane, &view); page = kvt_view_page(&view, blocks[i], plane);`
///
/// # Safety
/// `view` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_get_view(lane: *const kvt_lane, view: *mut kvt_lane_view) -> kvt_status {
    entry("kvt_lane_get_view", || {
        check_out("view", view)?;
        let l = LANES.enter(lane)?;
        let table = l.lane.table();
        let layout = &l.layout;
        let (device_table, device_status) = device_words(&l.lane);
        let filled = kvt_lane_view {
            table: table.as_ptr(),
            table_len: table.len() as u64,
            planes: layout.planes.as_ptr(),
            planes_count: layout.planes.len() as u32,
            page_tokens: layout.page_tokens,
            device_table,
            device_status,
        };
        // SAFETY: the caller's contract.
        unsafe { write("view", view, filled) }
    })
}

/// Return the address of an unsealed page of a sequence in this lane's step. It may be written until the lane's end.
///
/// @param lane  Lane.
/// @param seq  Sequence of the lane's step.
/// @param index  Block index within the sequence.
/// @param plane  Plane, below `kvt_options.planes_count`.
/// @param page  Receives the address.
/// @return `KVT_OK`; `KVT_ENOTFOUND` if the page is sealed or not reserved, the sequence is not in the step, or tier 0
///     is on a device.
/// Thread safety: one thread per lane at a time.
/// Example: `kvt_lane_get_writable_page(lane, seq, tokens / page_tokens, plane, &page);`
///
/// # Safety
/// `page` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_get_writable_page(
    lane: *mut kvt_lane,
    seq: u32,
    index: u32,
    plane: u16,
    page: *mut *mut c_void,
) -> kvt_status {
    entry("kvt_lane_get_writable_page", || {
        check_out("page", page)?;
        let mut l = LANES.enter(lane)?;
        let found = l.lane.page_mut(seq, index, plane).ok_or_else(|| {
            let what = format!("block {index} of sequence {seq} is not writable in plane {plane} on this lane now");
            Fault::new(Status::NotFound, what)
        })?;
        // SAFETY: the caller's contract.
        unsafe { write("page", page, found.as_mut_ptr().cast()) }
    })
}
