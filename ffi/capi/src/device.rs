//! Lanes on streams of the device that tier 0 is on.
//!
//! Here with and without CUDA, so that the header is one: without it every session's tier 0 is plain memory.

use super::entry::entry;
use super::lane::{kvt_lane, with_lane};
use super::sized::{self, Sized32};
use super::status::kvt_status;

/// Where a lane's words are on the device, as long as the lane is open: CUDA graphs may hold these addresses. Set `struct_size`
/// before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_lane_device {
    /// `sizeof(kvt_lane_device)`: later versions are longer.
    pub struct_size: u32,
    /// Entries of the table.
    pub entries: u32,
    /// Device address of the lane's table: the entry of `block * planes_count + plane` is 0 if the page is not in tier 0, else its
    /// frame + 1.
    pub table: u64,
    /// Device address of 4 bytes: 0, or the status of the step's first boundary that failed while the stream waited for it. Kernels
    /// that see it set emit nothing.
    pub status: u64,
}

// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Sized32 for kvt_lane_device {
    const BYTES_MIN: usize = 24;
}
const _: () = assert!(size_of::<kvt_lane_device>() == 24);

/// Binds a lane to a stream of the device that tier 0 is on: a `CUstream` (`cudaStream_t`) as a number; 1 is the legacy default
/// stream, 2 the thread's own. All that reads or writes the lane's pages is to be enqueued there, between `kvt_lane_begin` and
/// `kvt_lane_end`. To be called before the first `kvt_lane_begin`; between steps another stream may take over.
///
/// `KVT_ESTATE`: tier 0 is on no device, or a step is open. `KVT_EINVAL`: 0, or a stream of another context. `KVT_EDEVICE`.
///
/// # Safety
/// `stream` lives until the lane is closed, or bound to another one whose work comes after its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_bind(lane: *mut kvt_lane, stream: u64) -> kvt_status {
    entry("kvt_lane_bind", || {
        // SAFETY: this function's own contract.
        with_lane(lane, |l| unsafe { on::bind(l, stream) })
    })
}

/// Fills `device`. `KVT_ESTATE`: tier 0 is on no device.
///
/// # Safety
/// `device` is valid for reads and writes of `device->struct_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_get_device(lane: *mut kvt_lane, device: *mut kvt_lane_device) -> kvt_status {
    entry("kvt_lane_get_device", || {
        let found = with_lane(lane, on::device)?;
        // SAFETY: the caller's contract.
        unsafe { sized::fill("device", device, &found) }
    })
}

/// A boundary of `plane` that returns at once: the lane's stream waits until every page of the plane is readable. Whatever goes
/// wrong meanwhile, the stream goes on, with the lane's status word set, and `kvt_lane_check` says why. Not to be captured into a
/// CUDA graph.
///
/// `KVT_ESTATE`: the step reads more than fits into tier 0, another lane is bound too, or the device's streams cannot wait: then
/// `kvt_lane_boundary` does. `KVT_EAGAIN`: the stream waits for as many boundaries as it can. Else as `kvt_lane_boundary`.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_lane_boundary_async(lane: *mut kvt_lane, plane: u16) -> kvt_status {
    entry("kvt_lane_boundary_async", || with_lane(lane, |l| on::boundary_async(l, plane)))
}

/// Why a boundary of the open step failed while the stream waited for it, or `KVT_OK`. To be asked once the stream has come to the
/// step's last kernel, whose results mean nothing then.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_lane_check(lane: *mut kvt_lane) -> kvt_status {
    entry("kvt_lane_check", || with_lane(lane, on::check))
}

#[cfg(feature = "cuda")]
mod on {
    use super::kvt_lane_device;
    use crate::error::Fault;
    use kvtide_client::{Lane, cuda::LaneDevice};
    use kvtide_wire::status::Status;

    /// Binds a lane.
    ///
    /// # Safety
    /// As of `kvt_lane_bind`.
    pub unsafe fn bind(lane: &mut Lane, stream: u64) -> Result<(), Fault> {
        // SAFETY: the caller's contract is that of `kvt_lane_bind`.
        Ok(unsafe { lane.bind(stream) }?)
    }

    pub fn device(lane: &mut Lane) -> Result<kvt_lane_device, Fault> {
        let none = || Fault::new(Status::State, "tier 0 of this session is on no device");
        let LaneDevice { table, entries, status } = lane.device().ok_or_else(none)?;
        Ok(kvt_lane_device { struct_size: 0, entries, table, status })
    }

    pub fn boundary_async(lane: &mut Lane, plane: u16) -> Result<(), Fault> {
        Ok(lane.boundary_async(plane)?)
    }

    pub fn check(lane: &mut Lane) -> Result<(), Fault> {
        Ok(lane.check()?)
    }
}

#[cfg(not(feature = "cuda"))]
mod on {
    use super::kvt_lane_device;
    use crate::error::Fault;
    use kvtide_client::Lane;
    use kvtide_wire::status::Status;

    fn none() -> Fault {
        Fault::new(Status::State, "tier 0 of this session is on no device: this build of kvtide has no CUDA")
    }

    /// Binds nothing: there is no device.
    ///
    /// # Safety
    /// As of `kvt_lane_bind`.
    pub unsafe fn bind(_: &mut Lane, _: u64) -> Result<(), Fault> {
        Err(none())
    }

    pub fn device(_: &mut Lane) -> Result<kvt_lane_device, Fault> {
        Err(none())
    }

    pub fn boundary_async(_: &mut Lane, _: u16) -> Result<(), Fault> {
        Err(none())
    }

    /// Nothing that a stream waits for can have failed.
    pub fn check(_: &mut Lane) -> Result<(), Fault> {
        Ok(())
    }
}
