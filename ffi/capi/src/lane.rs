//! `kvt_lane`: one ordered stream of engine work, and its page table.

use super::client::{self, kvt_client};
use super::entry::{array, check_out, entry, guard_or, write};
use super::error::{Fault, remember};
use super::layout::{Layout, kvt_plane_layout};
use super::status::kvt_status;
use super::table::{Exclusive, Table};
use kvtide_client::{Lane, Pass, Ready, StepSeq};
use kvtide_wire::status::Status;
use std::ffi::c_void;
use std::sync::Arc;

/// One ordered stream of engine work. One thread at a time; it may change hands.
pub struct kvt_lane {
    _opaque: [u8; 0],
}

/// What stands behind a [`kvt_lane`].
struct LaneHandle {
    lane: Lane,
    layout: Arc<Layout>,
    /// Kept from step to step, so that a step allocates nothing once they have grown.
    seqs: Vec<StepSeq>,
    ready: Vec<kvt_ready>,
}

static LANES: Table<LaneHandle, Exclusive> = Table::new("kvt_lane", b'L');

/// Runs a call on a lane.
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
    /// Tokens that attention covers at this step, the new ones included.
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
    /// Frame that shows it.
    pub frame: u32,
}

/// What a boundary found.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_pass {
    /// `count` pages that are readable now and were not handed out before for this step and plane, in order of position and
    /// index. Valid until the next boundary of this lane. None if `all`.
    pub ready: *const kvt_ready,
    /// Pages in `ready`.
    pub count: u32,
    /// 1: every page that the plane needs is readable through the table, and none was handed out before.
    pub all: u8,
    /// 1: the plane is complete with this pass. Set with `all` too.
    pub last: u8,
    /// Zero.
    pub reserved: u16,
}

/// What a kernel needs to look pages up without a call: see `kvt_view_page`. Its pointers are valid while the lane is open.
///
/// Entries are to be believed between `kvt_lane_begin` and `kvt_lane_end` only, and change only within `kvt_lane_begin` and
/// `kvt_lane_boundary` of this lane: threads of the engine may read the table meanwhile, if they are ordered with those calls.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_lane_view {
    /// Entry of `block * planes_count + plane`: 0 if the page is not in tier 0, else its frame + 1.
    pub table: *const u32,
    /// Entries.
    pub table_len: u64,
    /// `planes_count` planes.
    pub planes: *const kvt_plane_layout,
    /// Planes.
    pub planes_count: u32,
    /// Tokens of a page.
    pub page_tokens: u32,
}

/// Takes lane `index` of the session; it has one handle at a time.
///
/// `KVT_ERANGE`: no such lane. `KVT_ESTATE`: somebody has it.
///
/// # Safety
/// `lane` is valid for a write.
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

/// Closes a lane; a step that is open ends. It can be opened again; its table and its view are to be asked for again then.
///
/// `KVT_EBUSY`: another thread is inside a call on it.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_lane_close(lane: *mut kvt_lane) -> kvt_status {
    entry("kvt_lane_close", || LANES.close(lane))
}

/// Begins a step over `count` sequences; each names the length that attention covers at this step, which must be reserved
/// already. A sequence is in at most one lane's step at a time. Sends a message only if something that the step needs is not resident.
///
/// `KVT_ESTATE`: the lane's step has begun already, or a sequence is in another lane's step. `KVT_ENOTFOUND`: no such
/// sequence. `KVT_ERANGE`: more tokens than reserved. `KVT_ELOST`: a page of it exists nowhere any more.
///
/// # Safety
/// `seqs` is valid for `count` reads.
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

/// A boundary before the pages of `plane` are read: applies what changed in the table, and says in `pass` what is readable.
/// Planes come in rising order within a step; a plane is asked for again until a pass is its last. Waits, within the
/// session's timeout, only if a needed page is missing and no other became readable.
///
/// `KVT_ESTATE`: no step has begun, the plane is complete, or a later one was begun. `KVT_ELOST`, `KVT_EIO`,
/// `KVT_ETIMEDOUT`, `KVT_EDAEMON`: a page cannot be had; the step stays open, and the boundary may be tried again.
///
/// # Safety
/// `pass` is valid for a write.
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
        let found = kvt_pass {
            ready: l.ready.as_ptr(),
            count: l.ready.len() as u32,
            all: u8::from(all),
            last: u8::from(last),
            reserved: 0,
        };
        // SAFETY: the caller's contract.
        unsafe { write("pass", pass, found) }
    })
}

/// Ends the step, complete or not: this lane reads no frame until its next `kvt_lane_begin`. `KVT_ESTATE`: none has begun.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_lane_end(lane: *mut kvt_lane) -> kvt_status {
    entry("kvt_lane_end", || Ok(LANES.enter(lane)?.lane.end()?))
}

/// This lane's page table, or NULL (see `kvt_last_error`): the entry of `block * planes + plane` is 0 if the page is not in
/// tier 0, else its frame + 1. The address stays the same while the lane is open; validity as at `kvt_lane_view`.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_lane_table(lane: *const kvt_lane) -> *const u32 {
    guard_or(std::ptr::null(), || match LANES.enter(lane) {
        Ok(l) => l.lane.table().as_ptr(),
        Err(fault) => {
            remember("kvt_lane_table", fault);
            std::ptr::null()
        }
    })
}

/// Fills `view` for `kvt_view_page`. Once is enough for the lane's life.
///
/// # Safety
/// `view` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_get_view(lane: *const kvt_lane, view: *mut kvt_lane_view) -> kvt_status {
    entry("kvt_lane_get_view", || {
        check_out("view", view)?;
        let l = LANES.enter(lane)?;
        let table = l.lane.table();
        let whole = &l.layout.whole;
        let filled = kvt_lane_view {
            table: table.as_ptr(),
            table_len: table.len() as u64,
            planes: whole.planes,
            planes_count: whole.planes_count,
            page_tokens: whole.page_tokens,
        };
        // SAFETY: the caller's contract.
        unsafe { write("view", view, filled) }
    })
}

/// The frame that shows the page of `block` in `plane`, as of the lane's last boundary. `KVT_ENOTFOUND`: not in tier 0.
///
/// # Safety
/// `frame` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_pte(lane: *const kvt_lane, block: u32, plane: u16, frame: *mut u32) -> kvt_status {
    entry("kvt_lane_pte", || {
        check_out("frame", frame)?;
        let found = LANES.enter(lane)?.lane.pte(block, plane);
        let found = found.ok_or_else(|| {
            Fault::new(Status::NotFound, format!("the lane's table shows no frame for block {block}, plane {plane}"))
        })?;
        // SAFETY: the caller's contract.
        unsafe { write("frame", frame, found) }
    })
}

/// The bytes of a page of a sequence in this lane's step: readable until the lane's next begin, boundary or end. 64-byte aligned,
/// `page_bytes` of the plane long. `KVT_ENOTFOUND`: not readable now, not in the step, or tier 0 is on a device.
///
/// # Safety
/// `page` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_page(
    lane: *const kvt_lane,
    seq: u32,
    index: u32,
    plane: u16,
    page: *mut *const c_void,
) -> kvt_status {
    entry("kvt_lane_page", || {
        check_out("page", page)?;
        let l = LANES.enter(lane)?;
        let found = l.lane.page(seq, index, plane).ok_or_else(|| absent(seq, index, plane, "readable"))?;
        // SAFETY: the caller's contract.
        unsafe { write("page", page, found.as_ptr().cast()) }
    })
}

/// The bytes of an unsealed page of a sequence in this lane's step, to be written until the lane's end. `KVT_ENOTFOUND`:
/// sealed, not reserved, not in the step, or tier 0 is on a device.
///
/// # Safety
/// `page` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_page_mut(
    lane: *mut kvt_lane,
    seq: u32,
    index: u32,
    plane: u16,
    page: *mut *mut c_void,
) -> kvt_status {
    entry("kvt_lane_page_mut", || {
        check_out("page", page)?;
        let mut l = LANES.enter(lane)?;
        let found = l.lane.page_mut(seq, index, plane).ok_or_else(|| absent(seq, index, plane, "writable"))?;
        // SAFETY: the caller's contract.
        unsafe { write("page", page, found.as_mut_ptr().cast()) }
    })
}

fn absent(seq: u32, index: u32, plane: u16, how: &str) -> Fault {
    let what = format!("block {index} of sequence {seq} is not {how} in plane {plane} on this lane now");
    Fault::new(Status::NotFound, what)
}
