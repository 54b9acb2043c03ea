//! `kvt_client`: a session with the daemon.

use super::channel::Parked;
use super::entry::{check_out, entry, write};
use super::error::Fault;
use super::layout::Layout;
use super::sized::{self, Sized32};
use super::space::{kvt_options, path, read_options};
use super::status::kvt_status;
use super::table::{Shared, SharedUse, Table};
use kvtide_client::Client;
use std::ffi::c_char;
use std::sync::Arc;
use std::time::Duration;

/// A session with the daemon.
///
/// Thread safety: any thread, several at once.
pub struct kvt_client {
    _opaque: [u8; 0],
}

/// Value of a [`kvt_client`] handle.
pub(crate) struct ClientHandle {
    pub(crate) client: Client,
    pub(crate) timeout: Duration,
    pub(crate) layout: Arc<Layout>,
    /// By channel: kinds of the requests that were in flight when it was closed.
    pub(crate) parked: Parked,
}

static CLIENTS: Table<ClientHandle, Shared> = Table::new("kvt_client", b'C');

pub(crate) fn enter(client: *const kvt_client) -> Result<SharedUse<ClientHandle>, Fault> {
    CLIENTS.enter(client)
}

fn open(client: Client, timeout: Duration) -> Result<*mut kvt_client, Fault> {
    let layout = Arc::new(Layout::of(&client));
    CLIENTS.insert(ClientHandle { client, timeout, layout, parked: Parked::default() })
}

/// Attach to the daemon: open a session, allocate tier 0, start the session's copy thread.
///
/// @param options  Options; not used after the call.
/// @param client  Receives the handle. Close it with `kvt_detach`.
/// @return `KVT_OK`; `KVT_EVERSION` if the program was compiled for another `KVT_ABI_VERSION`, or the daemon has another
///     protocol version; `KVT_EINVAL` if the options contradict each other or the geometry; `KVT_EDAEMON` if no daemon
///     answers at the socket; `KVT_EPERM` or `KVT_ELIMIT` if the daemon refuses (`kvt_last_error` has its reason);
///     `KVT_EAGAIN` if the daemon had no free connection within `timeout_us`; `KVT_ESYSTEM` if memory, a thread or the
///     token file is not available; `KVT_EDEVICE` if the device fails.
/// Thread safety: any thread.
/// Example: `kvt_options options = {.struct_size = sizeof options, .abi_version = KVT_ABI_VERSION, .socket = path,
///     .space = "llama", .planes = planes, .planes_count = 32, .page_tokens = 16}; kvt_attach(&options, &client);`
///
/// # Safety
/// `options` must be valid as described at `kvt_options`, `client` must be valid for a write.
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

/// Open a new session after this session's daemon has died. The new session takes over tier 0 and declares the
/// sequences and pages in it to the new daemon.
///
/// Close all channels and lanes of the old client before the call. After success the old client has none; detach it.
///
/// Sequences keep their ids, get new block ids, and belong to the channel with the same index. A sequence is lost if a
/// page that it needs was not in tier 0: all calls on it except `kvt_channel_drop_seq` return `KVT_ELOST`. No page is
/// pinned, no sequence is parked, and leases have ended. An engine with blocks of its own calls
/// `kvt_client_set_blocks` again.
///
/// @param client  Session.
/// @param socket  Path of the new daemon's socket.
/// @param fresh  Receives the handle of the new session.
/// @return `KVT_OK`; `KVT_ESTATE` if the daemon is alive, a channel or lane is open, or a reattach has already
///     succeeded; otherwise as `kvt_attach`. After an error the call can be repeated.
/// Thread safety: any thread.
/// Example: `if (status == KVT_EDAEMON) status = kvt_reattach(client, "/run/kvtide/kvtide.sock", &fresh);`
///
/// # Safety
/// `socket` must be a NUL-terminated string, `fresh` must be valid for a write.
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

/// End the session and close the handle. Waits of other threads end with `KVT_EDAEMON`.
///
/// Close the session's channels and lanes by their own calls, before or after this one. Tier 0 stays readable until the
/// last of them is closed. The engine's own blocks (`kvt_client_set_blocks`) are not accessed after the call.
///
/// @param client  Session.
/// @return `KVT_OK`; `KVT_EINVAL` if the handle is already closed.
/// Thread safety: any thread.
/// Example: `kvt_detach(client);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_detach(client: *mut kvt_client) -> kvt_status {
    entry("kvt_detach", || {
        enter(client)?.client.detach();
        CLIENTS.close(client)
    })
}

/// Counters of a session since its attach. They only grow; use differences. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_stats {
    /// `sizeof(kvt_stats)`: later versions are longer.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Steps begun.
    pub steps: u64,
    /// Steps that began with all of their pages resident.
    pub steps_resident: u64,
    /// Messages sent when a step began, because not all of its pages were resident.
    pub messages_before_steps: u64,
    /// Pages needed by a (step, plane) that were readable at its first boundary.
    pub pages_resident: u64,
    /// Pages needed by a (step, plane) that were not readable at its first boundary.
    pub pages_missed: u64,
    /// Faults sent to the daemon: requests for a page that a lane waits for.
    pub faults: u64,
    /// Boundaries that waited for a page.
    pub stalls: u64,
    /// Nanoseconds spent in these waits.
    pub stall_ns: u64,
    /// Pages loaded from host memory into tier 0 or into the engine's own blocks.
    pub jobs_host_to_tier0: u64,
    /// Bytes of these pages.
    pub bytes_host_to_tier0: u64,
    /// Pages copied to host memory out of tier 0 or out of the engine's own blocks.
    pub jobs_tier0_to_host: u64,
    /// Bytes of these pages.
    pub bytes_tier0_to_host: u64,
    /// Pages copied within tier 0.
    pub jobs_within_tier0: u64,
    /// Bytes of these pages.
    pub bytes_within_tier0: u64,
    /// Jobs that copy no bytes: new pages, drops, evictions, cancellations.
    pub jobs_table: u64,
    /// Jobs refused because a page was pinned.
    pub jobs_busy: u64,
    /// Jobs cancelled before their copy began.
    pub jobs_canceled: u64,
    /// Jobs that contradicted the protocol or the geometry.
    pub jobs_invalid: u64,
    /// Copies that failed or fell short.
    pub jobs_failed: u64,
    /// Requests sent on all channels.
    pub requests: u64,
    /// Completions without a matching request; they are discarded.
    pub completions_stray: u64,
    /// Integrity sample: pages whose digest was compared with the stored page's digest after a load.
    pub sample_checked: u64,
    /// Pages of the sample with different bytes. They were not made readable.
    pub sample_failed: u64,
    /// Bytes of shared host memory registered with the device of tier 0.
    pub registered_bytes: u64,
    /// Nanoseconds spent on the registration. Copies wait for it.
    pub registered_ns: u64,
    /// Pages that steps under `KVT_CONTRACT_APPROX` did not read because other pages ranked higher.
    pub pages_unpicked: u64,
    /// Pages that were picked and then omitted, because they were not resident or not resident in time.
    pub pages_waived: u64,
    /// Estimates of the attention that a step under `KVT_CONTRACT_APPROX` omitted in a plane.
    pub omissions: u64,
    /// Sum of these estimates, in millionths of a sequence's attention in a plane.
    pub omitted_ppm: u64,
    /// Score entries published to the daemon.
    pub scores: u64,
    /// Jobs that made a page readable in host memory, without a copy (mapped frames).
    pub jobs_in_place: u64,
    /// Sketches not built and queries not scored on the device, because too many were in flight or the lane's step had
    /// failed.
    pub sketches_left_out: u64,
}

// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Sized32 for kvt_stats {
    const BYTES_MIN: usize = 264;
}
const _: () = assert!(size_of::<kvt_stats>() == 264);

/// Return the session's counters.
///
/// @param client  Session.
/// @param stats  Set `struct_size` before the call; receives the counters.
/// @return `KVT_OK`; `KVT_EINVAL` if `struct_size` is not a valid size.
/// Thread safety: any thread.
/// Example: `kvt_stats stats = {.struct_size = sizeof stats}; kvt_client_get_stats(client, &stats);`
///
/// # Safety
/// `stats` must be valid for reads and writes of `stats->struct_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_client_get_stats(client: *const kvt_client, stats: *mut kvt_stats) -> kvt_status {
    entry("kvt_client_get_stats", || {
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
            sample_checked: s.sample_checked,
            sample_failed: s.sample_failed,
            registered_bytes: s.registered_bytes,
            registered_ns: s.registered_ns,
            pages_unpicked: s.pages_unpicked,
            pages_waived: s.pages_waived,
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
