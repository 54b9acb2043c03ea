//! Lanes on streams of the device that holds tier 0.
//!
//! The functions exist with and without CUDA, and so the header is the same. Without CUDA, tier 0 of every session is
//! plain memory.

use super::entry::entry;
use super::lane::{kvt_lane, with_lane};
use super::status::kvt_status;

/// Bind a lane to a stream of the device that holds tier 0. Enqueue all work that reads or writes the lane's pages on
/// this stream, between `kvt_lane_begin` and `kvt_lane_end`.
///
/// Call it before the first `kvt_lane_begin`. Between steps the lane can be bound to another stream.
///
/// @param lane  Lane.
/// @param stream  A `CUstream` (`cudaStream_t`) as a number; 1: the legacy default stream, 2: the thread's default
///     stream.
/// @return `KVT_OK`; `KVT_ESTATE` if tier 0 is not on a device, or a step is open; `KVT_EINVAL` if the stream is 0 or
///     of another context; `KVT_EDEVICE`.
/// Thread safety: one thread per lane at a time.
/// Example: `kvt_lane_bind(lane, (uint64_t)(uintptr_t)stream);`
///
/// # Safety
/// `stream` must exist until the lane is closed, or bound to another stream whose work is ordered after its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_bind(lane: *mut kvt_lane, stream: u64) -> kvt_status {
    entry("kvt_lane_bind", || {
        // SAFETY: this function's own contract.
        with_lane(lane, |l| unsafe { on::bind(l, stream) })
    })
}

/// Pass a boundary of `plane` without waiting: the lane's stream waits until every page of the plane is readable.
///
/// If a page is not available, the stream continues with the lane's status word set, and `kvt_lane_check` returns the
/// reason. Do not capture the call into a CUDA graph.
///
/// @param lane  Lane.
/// @param plane  Plane, below `kvt_options.planes_count`.
/// @return `KVT_OK`; `KVT_EAGAIN` if the stream already waits for the maximum number of boundaries; `KVT_ESTATE` if the
///     step reads more than fits into tier 0, another lane is bound to a stream too, or the device's streams cannot
///     wait: use `kvt_lane_boundary` then; otherwise as `kvt_lane_boundary`.
/// Thread safety: one thread per lane at a time.
/// Example: `if (kvt_lane_boundary_async(lane, plane) == KVT_ESTATE) kvt_lane_boundary(lane, plane, &pass);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_lane_boundary_async(lane: *mut kvt_lane, plane: u16) -> kvt_status {
    entry("kvt_lane_boundary_async", || with_lane(lane, |l| on::boundary_async(l, plane)))
}

/// Open the gates of the step that `kvt_lane_begin` began, in place of boundaries: from now on each gate in the lane's stream
/// waits until every page of its plane is readable.
///
/// Then launch the graph that contains the gates, and call `kvt_lane_end`. Until then no page that the step reads is
/// evicted. If a page is not available, the stream continues as for `kvt_lane_boundary_async`.
///
/// @param lane  Lane.
/// @return `KVT_OK`; `KVT_ESTATE` if no step has begun or it had a boundary, or for the reasons of
///     `kvt_lane_boundary_async`: use `kvt_lane_boundary` then; `KVT_EINVAL` if the lane's stream is being captured; after
///     any other status, end the step.
/// Thread safety: one thread per lane at a time.
/// Example: `if (kvt_lane_open_gates(lane) == KVT_OK) cudaGraphLaunch(graph, stream);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_lane_open_gates(lane: *mut kvt_lane) -> kvt_status {
    entry("kvt_lane_open_gates", || with_lane(lane, on::open_gates))
}

/// Enqueue the gate of `plane` on the lane's stream, or capture it there: kernels after it wait for the plane in each gated
/// step.
///
/// Enqueue the gates of all planes in ascending order, each before the kernels that read its plane. Outside of a gated step
/// a gate returns at once.
///
/// @param lane  Lane.
/// @param plane  Plane, below `kvt_options.planes_count`.
/// @return `KVT_OK`; `KVT_ERANGE` if there is no such plane; `KVT_ESTATE` if tier 0 is not on a device; `KVT_EINVAL` if the
///     lane is not bound to a stream, or the device's streams cannot wait.
/// Thread safety: one thread per lane at a time.
/// Example: `for (uint16_t plane = 0; plane < planes; ++plane) { kvt_lane_gate(lane, plane); layer(plane, stream); }`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_lane_gate(lane: *mut kvt_lane, plane: u16) -> kvt_status {
    entry("kvt_lane_gate", || with_lane(lane, |l| on::gate(l, plane)))
}

/// Return why a boundary of the open step failed while the stream waited for it. Call it after the stream has completed
/// the step's last kernel; after an error the step's results are undefined.
///
/// @param lane  Lane.
/// @return `KVT_OK`; otherwise as `kvt_lane_boundary`.
/// Thread safety: one thread per lane at a time.
/// Example: `cudaStreamSynchronize(stream); status = kvt_lane_check(lane);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_lane_check(lane: *mut kvt_lane) -> kvt_status {
    entry("kvt_lane_check", || with_lane(lane, on::check))
}

#[cfg(feature = "cuda")]
mod on {
    use crate::error::Fault;
    use kvtide_client::Lane;

    /// Bind a lane.
    ///
    /// # Safety
    /// As of `kvt_lane_bind`.
    pub unsafe fn bind(lane: &mut Lane, stream: u64) -> Result<(), Fault> {
        // SAFETY: the caller's contract is that of `kvt_lane_bind`.
        Ok(unsafe { lane.bind(stream) }?)
    }

    pub fn boundary_async(lane: &mut Lane, plane: u16) -> Result<(), Fault> {
        Ok(lane.boundary_async(plane)?)
    }

    pub fn open_gates(lane: &mut Lane) -> Result<(), Fault> {
        Ok(lane.open_gates()?)
    }

    pub fn gate(lane: &mut Lane, plane: u16) -> Result<(), Fault> {
        Ok(lane.gate(plane)?)
    }

    pub fn check(lane: &mut Lane) -> Result<(), Fault> {
        Ok(lane.check()?)
    }
}

#[cfg(not(feature = "cuda"))]
mod on {
    use crate::error::Fault;
    use kvtide_client::Lane;
    use kvtide_wire::status::Status;

    fn none() -> Fault {
        Fault::new(Status::State, "tier 0 of this session is not on a device: this build of kvtide has no CUDA")
    }

    /// Fail: there is no device.
    ///
    /// # Safety
    /// As of `kvt_lane_bind`.
    pub unsafe fn bind(_: &mut Lane, _: u64) -> Result<(), Fault> {
        Err(none())
    }

    pub fn boundary_async(_: &mut Lane, _: u16) -> Result<(), Fault> {
        Err(none())
    }

    pub fn open_gates(_: &mut Lane) -> Result<(), Fault> {
        Err(none())
    }

    pub fn gate(_: &mut Lane, _: u16) -> Result<(), Fault> {
        Err(none())
    }

    /// Succeed: no stream waits in this build.
    pub fn check(_: &mut Lane) -> Result<(), Fault> {
        Ok(())
    }
}
