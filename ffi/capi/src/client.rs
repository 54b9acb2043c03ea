//! `kvt_client`: a session with the daemon.

use super::entry::{check_out, entry, write};
use super::error::Fault;
use super::layout::Layout;
use super::sized::{self, Sized32};
use super::space::{kvt_options, path, read_options};
use super::status::kvt_status;
use super::table::{Shared, SharedUse, Table};
use kvtide_client::Client;
use kvtide_wire::status::Status;
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::time::Duration;

/// A session with the daemon. Any thread, several at once.
pub struct kvt_client {
    _opaque: [u8; 0],
}

/// What stands behind a [`kvt_client`].
pub(crate) struct ClientHandle {
    pub(crate) client: Client,
    pub(crate) timeout: Duration,
    pub(crate) layout: Arc<Layout>,
}

static CLIENTS: Table<ClientHandle, Shared> = Table::new("kvt_client", b'C');

pub(crate) fn enter(client: *const kvt_client) -> Result<SharedUse<ClientHandle>, Fault> {
    CLIENTS.enter(client)
}

fn open(client: Client, timeout: Duration) -> Result<*mut kvt_client, Fault> {
    let layout = Arc::new(Layout::of(&client));
    CLIENTS.insert(ClientHandle { client, timeout, layout })
}

/// Attaches to the daemon: allocates tier 0, opens a session, starts its copy thread.
///
/// `KVT_EINVAL`: the options contradict each other or the geometry. `KVT_EDAEMON`: nobody listens there. `KVT_EPERM`,
/// `KVT_EVERSION`, `KVT_ELIMIT`: the daemon refused; `kvt_last_error` has its words. `KVT_EAGAIN`: the daemon had no place for the
/// connection within `timeout_us`, though it was asked again and again. `KVT_ESYSTEM`.
///
/// # Safety
/// Pointers are valid as described at `kvt_options`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_attach(options: *const kvt_options, client: *mut *mut kvt_client) -> kvt_status {
    entry("kvt_attach", || {
        check_out("client", client)?;
        // SAFETY: the caller's contract.
        let options = unsafe { read_options(options) }?;
        let timeout = options.timeout;
        let handle = open(Client::attach(options)?, timeout)?;
        // SAFETY: the caller's contract.
        unsafe { write("client", client, handle) }
    })
}

/// Opens a new session with a daemon at `socket`, after this one's daemon died: takes over tier 0 and declares the sequences
/// and the pages that are still in it. All channels and lanes of the old client must be closed; after success it has none, and
/// is to be detached.
///
/// Sequences keep their ids, get new block ids, and belong to the channel of the same index; what was reserved for the session
/// is gone, and nothing is pinned or parked. One with pages that were nowhere else answers `KVT_ELOST` to every call but
/// `kvt_seq_drop`.
///
/// `KVT_ESTATE`: the daemon is alive, a channel or lane is open, or a reattach succeeded before. Else as `kvt_attach`; it may
/// be tried again then.
///
/// # Safety
/// `socket` is a NUL-terminated string, `fresh` valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_reattach(
    client: *const kvt_client,
    socket: *const c_char,
    fresh: *mut *mut kvt_client,
) -> kvt_status {
    entry("kvt_reattach", || {
        check_out("fresh", fresh)?;
        let old = enter(client)?;
        // SAFETY: the caller's contract.
        let socket = unsafe { path("socket", socket) }?;
        let handle = open(old.client.reattach(&socket)?, old.timeout)?;
        // SAFETY: the caller's contract.
        unsafe { write("fresh", fresh, handle) }
    })
}

/// Ends the session and closes the handle. Waits of other threads end with `KVT_EDAEMON`.
///
/// Channels and lanes of the session keep their handles and are closed by themselves; what is in tier 0 stays readable until
/// the last of them is. `KVT_EINVAL`: closed before.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_detach(client: *mut kvt_client) -> kvt_status {
    entry("kvt_detach", || {
        enter(client)?.client.detach();
        CLIENTS.close(client)
    })
}

/// `KVT_OK` while the daemon is there, as far as is known; `KVT_EDAEMON` when it is gone.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_alive(client: *const kvt_client) -> kvt_status {
    entry("kvt_alive", || {
        if enter(client)?.client.alive() {
            return Ok(());
        }
        Err(Fault::new(Status::Daemon, "the session has ended; what is in tier 0 stays readable"))
    })
}

/// The blocks of a sequence, in order: at most `capacity` ids from block index `first`; `count` is how many there are from
/// there on, which may be more than `capacity`.
///
/// `KVT_ENOTFOUND`: no such sequence. `KVT_ERANGE`: `first` is beyond the end.
///
/// # Safety
/// `blocks` is valid for `capacity` writes (NULL if 0), `count` for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_seq_blocks(
    client: *const kvt_client,
    seq: u32,
    first: u32,
    blocks: *mut u32,
    capacity: u32,
    count: *mut u32,
) -> kvt_status {
    entry("kvt_seq_blocks", || {
        check_out("count", count)?;
        if capacity > 0 {
            check_out("blocks", blocks)?;
        }
        let all = enter(client)?.client.seq_blocks(seq)?;
        let Some(rest) = all.get(first as usize..) else {
            return Err(Fault::new(
                Status::Range,
                format!("sequence {seq} has {} blocks, `first` is {first}", all.len()),
            ));
        };
        let copied = rest.len().min(capacity as usize);
        if copied > 0 {
            // SAFETY: the caller's contract; `copied` is within both, and a fresh Vec overlaps nothing.
            unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), blocks, copied) };
        }
        // SAFETY: the caller's contract. A sequence has fewer than 2^32 blocks: block indices are u32.
        unsafe { write("count", count, rest.len() as u32) }
    })
}

/// Where a frame of tier 0 is in memory: stable while any handle of the session is open. What may be read there and when, the
/// lanes say. `KVT_ERANGE`: no such frame.
///
/// # Safety
/// `address` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_frame(client: *const kvt_client, frame: u32, address: *mut *mut c_void) -> kvt_status {
    entry("kvt_frame", || {
        check_out("address", address)?;
        let found = enter(client)?.client.frame_ptr(frame);
        let found = found.ok_or_else(|| Fault::new(Status::Range, format!("tier 0 has no frame {frame}")))?;
        // SAFETY: the caller's contract.
        unsafe { write("address", address, found.cast()) }
    })
}

/// What a session counted since it attached: totals that only grow; take differences. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_stats {
    /// `sizeof(kvt_stats)`: later versions are longer.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Steps begun.
    pub steps: u64,
    /// Steps in which everything was resident when they began.
    pub steps_resident: u64,
    /// Messages that had to be sent before a step could begin.
    pub messages_before_steps: u64,
    /// Pages needed by a (step, plane) that were readable at its first boundary.
    pub pages_resident: u64,
    /// Pages needed by a (step, plane) that were not readable at its first boundary.
    pub pages_missed: u64,
    /// Faults sent to the daemon.
    pub faults: u64,
    /// Boundaries that had to wait for a page.
    pub stalls: u64,
    /// Nanoseconds spent in those waits.
    pub stall_ns: u64,
    /// Pages loaded from host frames.
    pub jobs_host_to_tier0: u64,
    /// Bytes of them.
    pub bytes_host_to_tier0: u64,
    /// Pages stored to host frames.
    pub jobs_tier0_to_host: u64,
    /// Bytes of them.
    pub bytes_tier0_to_host: u64,
    /// Pages copied within tier 0.
    pub jobs_within_tier0: u64,
    /// Bytes of them.
    pub bytes_within_tier0: u64,
    /// Jobs without bytes: new pages, drops, evictions, cancels.
    pub jobs_table: u64,
    /// Jobs refused because a page was pinned.
    pub jobs_busy: u64,
    /// Jobs that were cancelled before their copy began.
    pub jobs_canceled: u64,
    /// Jobs that contradicted the protocol or the geometry.
    pub jobs_invalid: u64,
    /// Copies that failed or fell short.
    pub jobs_failed: u64,
    /// Requests sent on all channels.
    pub requests: u64,
    /// Completions that no request explains.
    pub completions_stray: u64,
    /// Pages whose bytes were hashed after they had been loaded, and compared with what was stored: the canary's sample.
    pub canary_checked: u64,
    /// Of those, the ones that were not what was stored. Nobody was shown them.
    pub canary_failed: u64,
    /// Bytes of shared host memory that were registered with the device of tier 0.
    pub registered_bytes: u64,
    /// Nanoseconds that it took; copies waited meanwhile.
    pub registered_ns: u64,
    /// Pages that steps of `KVT_CONTRACT_APPROX` sequences did not read because others were better.
    pub pages_unpicked: u64,
    /// Pages that they picked and did without: not resident, or not in time.
    pub pages_waived: u64,
    /// Pages that steps of `KVT_CONTRACT_BOUNDED` sequences skipped, proved to hold little.
    pub pages_skipped: u64,
    /// Estimates that were made of what a step of a `KVT_CONTRACT_APPROX` sequence omitted in a plane.
    pub omissions: u64,
    /// What they estimate, added up: millionths of the attention of a sequence in a plane.
    pub omitted_ppm: u64,
    /// Score entries told to the daemon.
    pub scores: u64,
    /// Jobs carried out after which a page shows where it is in host memory: nothing was copied.
    pub jobs_in_place: u64,
    /// Sketches that a device was not told to build, and questions that it was not asked, since too much was under way or the lane's step
    /// had failed.
    pub sketches_left_out: u64,
}

// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Sized32 for kvt_stats {
    const BYTES_MIN: usize = 176;
}
const _: () = assert!(size_of::<kvt_stats>() == 272);

/// Fills `stats` with the session's totals.
///
/// # Safety
/// `stats` is valid for reads and writes of `stats->struct_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_client_stats(client: *const kvt_client, stats: *mut kvt_stats) -> kvt_status {
    entry("kvt_client_stats", || {
        let s = enter(client)?.client.stats();
        let filled = kvt_stats {
            struct_size: 0,
            reserved: 0,
            steps: s.steps,
            steps_resident: s.steps_resident,
            messages_before_steps: s.messages_before_steps,
            pages_resident: s.pages_resident,
            pages_missed: s.pages_missed,
            faults: s.faults,
            stalls: s.stalls,
            stall_ns: s.stall_ns,
            jobs_host_to_tier0: s.jobs_host_to_tier0,
            bytes_host_to_tier0: s.bytes_host_to_tier0,
            jobs_tier0_to_host: s.jobs_tier0_to_host,
            bytes_tier0_to_host: s.bytes_tier0_to_host,
            jobs_within_tier0: s.jobs_within_tier0,
            bytes_within_tier0: s.bytes_within_tier0,
            jobs_table: s.jobs_table,
            jobs_busy: s.jobs_busy,
            jobs_canceled: s.jobs_canceled,
            jobs_invalid: s.jobs_invalid,
            jobs_failed: s.jobs_failed,
            requests: s.requests,
            completions_stray: s.completions_stray,
            canary_checked: s.canary_checked,
            canary_failed: s.canary_failed,
            registered_bytes: s.registered_bytes,
            registered_ns: s.registered_ns,
            pages_unpicked: s.pages_unpicked,
            pages_waived: s.pages_waived,
            pages_skipped: s.pages_skipped,
            omissions: s.omissions,
            omitted_ppm: s.omitted_ppm,
            scores: s.scores,
            jobs_in_place: s.jobs_in_place,
            sketches_left_out: s.sketches_left_out,
        };
        // SAFETY: the caller's contract.
        unsafe { sized::fill("stats", stats, &filled) }
    })
}
