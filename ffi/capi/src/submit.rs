//! Non-blocking requests: submit, poll or wait, cancel, and a descriptor for an event loop.

use super::blocks::{self, kvt_lease_info};
use super::channel::{ChannelHandle, enter, hashes, kvt_channel, level, level_code, parent};
use super::entry::{Optional, array, check_out, entry, write};
use super::error::{Fault, remember};
use super::pin;
use super::request::{kvt_completion, kvt_lookup_result, kvt_request, kvt_request_kind, kvt_result, kvt_store_result};
use super::sized;
use super::space::timeout;
use super::status::kvt_status;
use kvtide_client::{Completed, Outcome, Request, Ticket};
use kvtide_wire::status::Status;
use std::os::fd::AsRawFd;
use std::time::Duration;

impl kvt_completion {
    /// Convert a completed request. The list of its failed blocks is added to `lists`.
    fn of(done: Completed, kind: u32, lists: &mut Vec<(u64, Vec<u32>)>) -> kvt_completion {
        let ticket = done.ticket.into_raw();
        let user = std::ptr::with_exposed_provenance_mut(done.user as usize);
        let mut result = kvt_result { reserved: [0; 4] };
        let filled = done.result.map_err(Fault::from).and_then(|outcome| {
            match outcome {
                Outcome::Pin(pin) => result.pin = pin::handle(pin)?,
                Outcome::Prefix(found) => {
                    result.lookup =
                        kvt_lookup_result { blocks: found.blocks, in_host_permille: found.in_host_permille };
                }
                Outcome::Lease(leased) => result.lease = kvt_lease_info::of(&leased),
                Outcome::Copied { failed, status, level } => {
                    // The first member is the same in the results of both kinds, and there is no level of a load.
                    let level =
                        if kind == kvt_request_kind::KVT_REQUEST_STORE as u32 { level_code(level) as u32 } else { 0 };
                    result.store = kvt_store_result { failed_count: failed.len() as u32, level };
                    if status != Status::Ok {
                        let fault = blocks::some_failed("request", failed.len(), status);
                        lists.push((ticket, failed));
                        return Err(fault);
                    }
                }
                // Results of requests that have no kind.
                Outcome::Done
                | Outcome::Blocks(_)
                | Outcome::Seq(_)
                | Outcome::Level(_)
                | Outcome::Frames(_)
                | Outcome::Events(_) => {}
            }
            Ok(())
        });
        let mut status = kvt_status::KVT_OK;
        if let Err(fault) = filled {
            status = kvt_status::of(fault.status());
            remember("request", fault);
        }
        kvt_completion { ticket, user, status, kind, result }
    }
}

/// Reject a reserved member that is not zero.
fn zero(name: &'static str, value: u32) -> Result<(), Fault> {
    if value == 0 {
        Ok(())
    } else {
        Err(Fault::new(Status::Invalid, format!("`request->args.{name}.reserved` is not zero")))
    }
}

/// Submit a request. Does not wait for its end.
///
/// @param channel  Channel.
/// @param request  Request; not used after the call.
/// @param ticket  May be NULL; receives the ticket of the request, which its completion repeats.
/// @return `KVT_OK`; `KVT_EAGAIN` if the channel is full (see `kvt_options.depth`; completions that were not polled
///     count too), or a request in flight changes the same sequence: poll first; `KVT_EINVAL` if `kind` is not a
///     `kvt_request_kind`, a reserved member is not zero, or `struct_size` is not a valid size; otherwise errors of the
///     blocking function that are found without the daemon.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_request r = {.struct_size = sizeof r, .kind = KVT_REQUEST_LOOKUP, .args.lookup = {.hashes = hashes,
///     .count = 12}}; kvt_channel_submit(channel, &r, &ticket);`
///
/// # Safety
/// `request` must be valid as described at `kvt_request`, `ticket` must be NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_channel_submit(
    channel: *mut kvt_channel,
    request: *const kvt_request,
    ticket: *mut u64,
) -> kvt_status {
    entry("kvt_channel_submit", || {
        // SAFETY: the caller's contract.
        let (r, ticket) = unsafe { (sized::read("request", request)?, Optional::new("ticket", ticket)?) };
        let kind = kvt_request_kind::of(r.kind)?;
        // Assigned in the arms that have a list, and borrowed by the request.
        let list;
        // SAFETY: any bytes are valid in every member of the union; pointers and counts are the caller's contract.
        let wanted = unsafe {
            let args = &r.args;
            match kind {
                kvt_request_kind::KVT_REQUEST_LOOKUP => {
                    let a = args.lookup;
                    zero("lookup", a.reserved)?;
                    list = hashes(a.hashes, a.count)?;
                    Request::Lookup { hashes: &list }
                }
                kvt_request_kind::KVT_REQUEST_LEASE => {
                    let a = args.lease;
                    zero("lease", a.reserved)?;
                    let time = Duration::from_micros(a.lease_us);
                    Request::Lease { hash: a.hash.value(), count: a.count, time }
                }
                kvt_request_kind::KVT_REQUEST_LOAD => {
                    let a = args.load;
                    zero("load", a.reserved)?;
                    let blocks = array("request->args.load.blocks", a.blocks, a.count as usize)?;
                    Request::Load { lease: a.lease, first: a.first, blocks }
                }
                kvt_request_kind::KVT_REQUEST_STORE => {
                    let a = args.store;
                    zero("store", a.reserved)?;
                    let (parent, level) = (parent(a.parent)?, level(a.level)?);
                    list = hashes(a.hashes, a.count)?;
                    let blocks = array("request->args.store.blocks", a.blocks, a.count as usize)?;
                    Request::Store { first: a.first, parent, hashes: &list, blocks, level }
                }
                kvt_request_kind::KVT_REQUEST_ACQUIRE => Request::Acquire { range: args.acquire.pages() },
            }
        };
        let mut c = enter(channel)?;
        let timeout = timeout(r.timeout_us, c.timeout);
        let sent = c.channel.submit(wanted, timeout, r.user.expose_provenance() as u64)?.into_raw();
        c.kinds.insert(sent, kind as u32);
        ticket.set(sent);
        Ok(())
    })
}

/// Take the completions of requests that have ended. Does not wait.
///
/// The `status` of a completion is the result of its request; `kvt_last_error` has the details of the last one that
/// failed.
///
/// @param channel  Channel.
/// @param completions  Receives at most `capacity` completions.
/// @param capacity  Room in `completions`, in completions.
/// @param count  Receives their number.
/// @return `KVT_OK`, also if none has ended.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_poll(channel, completions, 16, &count);`
///
/// # Safety
/// `completions` must be valid for `capacity` writes, `count` for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_channel_poll(
    channel: *mut kvt_channel,
    completions: *mut kvt_completion,
    capacity: u32,
    count: *mut u32,
) -> kvt_status {
    entry("kvt_channel_poll", || {
        check_out("completions", completions)?;
        check_out("count", count)?;
        let mut c = enter(channel)?;
        let ChannelHandle { channel, failed, kinds, .. } = &mut *c;
        failed.clear();
        let mut taken = 0;
        while taken < capacity {
            let Some(done) = channel.poll_any() else { break };
            let kind = kinds.remove(&done.ticket.into_raw()).unwrap_or_default();
            // SAFETY: the caller's contract: `taken` is below `capacity`.
            unsafe { completions.add(taken as usize).write(kvt_completion::of(done, kind, failed)) };
            taken += 1;
        }
        // SAFETY: the caller's contract.
        unsafe { write("count", count, taken) }
    })
}

/// Wait for the end of one request and take its completion.
///
/// @param channel  Channel.
/// @param ticket  Ticket of `kvt_channel_submit`.
/// @param timeout_us  Microseconds; 0: `kvt_options.timeout_us`.
/// @param completion  Receives the completion; its `status` is the result of the request.
/// @return `KVT_OK` if the request has ended, with any result; `KVT_ETIMEDOUT` if it is still in flight (the ticket
///     stays valid); `KVT_ENOTFOUND` if there is no such ticket or its completion was already taken.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_wait(channel, ticket, 0, &completion);`
///
/// # Safety
/// `completion` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_channel_wait(
    channel: *mut kvt_channel,
    ticket: u64,
    timeout_us: u64,
    completion: *mut kvt_completion,
) -> kvt_status {
    entry("kvt_channel_wait", || {
        check_out("completion", completion)?;
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        let done = c.channel.wait(Ticket::from_raw(ticket), timeout)?;
        let ChannelHandle { failed, kinds, .. } = &mut *c;
        failed.clear();
        let kind = kinds.remove(&ticket).unwrap_or_default();
        // SAFETY: the caller's contract.
        unsafe { write("completion", completion, kvt_completion::of(done, kind, failed)) }
    })
}

/// Return the blocks for which a load or store failed, as indices into the request's blocks. The completion must
/// come from the last `kvt_channel_poll` or `kvt_channel_wait` of this channel.
///
/// @param channel  Channel.
/// @param ticket  `kvt_completion.ticket`.
/// @param failed  Receives at most `capacity` indices; NULL if `capacity` is 0.
/// @param capacity  Room in `failed`, in indices.
/// @param count  Receives the number of failed blocks.
/// @return `KVT_OK`; `KVT_ENOTFOUND` if that call returned no completion with this ticket and failed blocks.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_get_failed(channel, completion.ticket, failed, 512, &count);`
///
/// # Safety
/// `failed` must be valid for `capacity` writes (NULL if 0), `count` for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_channel_get_failed(
    channel: *mut kvt_channel,
    ticket: u64,
    failed: *mut u32,
    capacity: u32,
    count: *mut u32,
) -> kvt_status {
    entry("kvt_channel_get_failed", || {
        check_out("count", count)?;
        let c = enter(channel)?;
        let list = c.failed.iter().find(|(of, _)| *of == ticket).map(|(_, list)| list);
        let list = list.ok_or_else(|| {
            let text =
                format!("ticket {ticket}: the last poll or wait returned no completion of it with failed blocks");
            Fault::new(Status::NotFound, text)
        })?;
        if capacity > 0 {
            check_out("failed", failed)?;
            let shown = list.len().min(capacity as usize);
            // SAFETY: the caller's contract.
            unsafe { std::ptr::copy_nonoverlapping(list.as_ptr(), failed, shown) };
        }
        // SAFETY: the caller's contract.
        unsafe { write("count", count, list.len() as u32) }
    })
}

/// Request the cancellation of a request. It still ends: with `KVT_ECANCELED`, or with its own result if that came
/// first.
///
/// @param channel  Channel.
/// @param ticket  Ticket of `kvt_channel_submit`.
/// @return `KVT_OK`; `KVT_ENOTFOUND` if there is no such ticket; `KVT_EAGAIN` if the ring is full.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_cancel(channel, ticket);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_channel_cancel(channel: *mut kvt_channel, ticket: u64) -> kvt_status {
    entry("kvt_channel_cancel", || Ok(enter(channel)?.channel.cancel(Ticket::from_raw(ticket))?))
}

/// Return a descriptor that becomes readable when a request of this channel has ended after `kvt_channel_arm`, or the
/// daemon is gone.
///
/// Only poll it; do not read or close it. It is valid while the channel is open.
///
/// @param channel  Channel.
/// @param fd  Receives the descriptor.
/// @return `KVT_OK`; `KVT_ESTATE` if the channel has no descriptor.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_get_fd(channel, &fd);`
///
/// # Safety
/// `fd` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_channel_get_fd(channel: *mut kvt_channel, fd: *mut i32) -> kvt_status {
    entry("kvt_channel_get_fd", || {
        check_out("fd", fd)?;
        let c = enter(channel)?;
        let found =
            c.channel.fd().ok_or_else(|| Fault::new(Status::State, "the channel has no descriptor"))?.as_raw_fd();
        // SAFETY: the caller's contract.
        unsafe { write("fd", fd, found) }
    })
}

/// Arm the channel's descriptor for one wake-up.
///
/// An event loop polls until `kvt_channel_poll` returns nothing, arms, and sleeps on the descriptor only if `ready` is
/// false.
///
/// @param channel  Channel.
/// @param ready  Receives true if a completion is already there: poll first, because the descriptor may stay silent.
/// @return `KVT_OK`; `KVT_EDAEMON`.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_arm(channel, &ready); if (!ready) poll(&pollfd, 1, -1);`
///
/// # Safety
/// `ready` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_channel_arm(channel: *mut kvt_channel, ready: *mut bool) -> kvt_status {
    entry("kvt_channel_arm", || {
        check_out("ready", ready)?;
        let already = enter(channel)?.channel.arm()?;
        // SAFETY: the caller's contract.
        unsafe { write("ready", ready, already) }
    })
}
