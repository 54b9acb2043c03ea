//! Non-blocking requests: submit, poll or wait, cancel, and a descriptor for an event loop.

use super::blocks::{self, kvt_lease_info};
use super::channel::{ChannelHandle, advice, enter, hashes, kvt_channel, kvt_hash, level, level_code};
use super::entry::{array, check_out, entry, write};
use super::error::{Fault, remember};
use super::pin::{self, kvt_pin, kvt_range};
use super::sized::{self, Sized32};
use super::space::timeout;
use super::status::kvt_status;
use kvtide_client::{Completed, Outcome, Request, Ticket};
use kvtide_wire::entry::Op;
use kvtide_wire::status::Status;
use std::ffi::c_void;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Operation of a request.
///
/// Each operation has a blocking function of the same name, which describes it. The comments list the members of
/// `kvt_request` that the operation uses, and the members of `kvt_completion` that it sets.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvt_op {
    /// No operation: a round trip.
    KVT_OP_NOP = 0,
    /// `range.seq`, `tokens`.
    KVT_OP_RESERVE = 3,
    /// `range.seq`. Completion: `seq` is the child.
    KVT_OP_FORK = 6,
    /// `range.seq`, `tokens`.
    KVT_OP_TRUNCATE = 7,
    /// `range.seq`, `range.first`, `parent`, `hashes`, `hashes_count`, `level`. Completion: `value` is the `kvt_level`
    /// reached.
    KVT_OP_PUBLISH = 8,
    /// `range.seq`, `hashes`, `hashes_count`. Completion: `value` is the number of blocks.
    KVT_OP_MAP = 9,
    /// `range.seq`, `due_us`.
    KVT_OP_PARK = 10,
    /// `range.seq`.
    KVT_OP_RESUME = 11,
    /// `range.seq`, `range.first`, `range.count`, `advice`, `value`.
    KVT_OP_ADVISE = 12,
    /// `range`. Completion: `pin`.
    KVT_OP_ACQUIRE = 13,
    /// `range.first`: size class, `range.count`: frames. Completion: `value` is the number of frames of the class.
    KVT_OP_TIER0_RESIZE = 20,
    /// `hashes`, `hashes_count`: hashes of a prefix's blocks in order. Completion: `value` is the number of cached
    /// blocks, `in_host_permille` approximately their share in host memory.
    KVT_OP_LOOKUP = 22,
    /// `parent`: hash of the prefix's last block, `range.count`: its blocks, `lease_us`. Completion: `lease`.
    KVT_OP_LEASE = 23,
    /// `range.seq`: lease, `range.first`, `blocks`, `blocks_count`: at most 512. Completion: `failed_count` is the number
    /// of blocks that did not arrive.
    KVT_OP_LOAD_BLOCKS = 24,
    /// `range.first`, `parent`, `hashes`, `hashes_count`, `blocks`, `blocks_count`: at most 102, `level`. Completion:
    /// `value` is the `kvt_level` that all of them reached, or `failed_count` is not 0.
    KVT_OP_STORE_BLOCKS = 25,
    /// `range.seq`: lease, `range.first`, `range.count`: at most 512. Completion: `failed_count` is the number of blocks
    /// that are not in host memory.
    KVT_OP_FETCH_BLOCKS = 26,
    /// `tokens`: number of blocks for the session's reserve. Completion: `value` is the number of blocks added.
    KVT_OP_RESERVE_SESSION = 64,
}

// The codes are those of the wire, so that a trace of the rings can be compared with the program. Reserving for the session is a
// reserve without a sequence on the wire; its code here is larger than any code of an operation will be.
const _: () = {
    assert!(kvt_op::KVT_OP_NOP as u16 == Op::Nop as u16 && kvt_op::KVT_OP_RESERVE as u16 == Op::Reserve as u16);
    assert!(kvt_op::KVT_OP_FORK as u16 == Op::Fork as u16 && kvt_op::KVT_OP_TRUNCATE as u16 == Op::Truncate as u16);
    assert!(kvt_op::KVT_OP_PUBLISH as u16 == Op::Publish as u16 && kvt_op::KVT_OP_MAP as u16 == Op::Map as u16);
    assert!(kvt_op::KVT_OP_PARK as u16 == Op::Park as u16 && kvt_op::KVT_OP_RESUME as u16 == Op::Resume as u16);
    assert!(kvt_op::KVT_OP_TIER0_RESIZE as u16 == Op::Tier0Resize as u16);
    assert!(kvt_op::KVT_OP_LOOKUP as u16 == Op::Lookup as u16 && kvt_op::KVT_OP_LEASE as u16 == Op::Lease as u16);
    assert!(kvt_op::KVT_OP_LOAD_BLOCKS as u16 == Op::LoadBlocks as u16);
    assert!(kvt_op::KVT_OP_STORE_BLOCKS as u16 == Op::StoreBlocks as u16);
    assert!(kvt_op::KVT_OP_FETCH_BLOCKS as u16 == Op::FetchBlocks as u16);
    assert!(kvt_op::KVT_OP_ADVISE as u16 == Op::Advise as u16 && kvt_op::KVT_OP_ACQUIRE as u16 == Op::Acquire as u16);
};

/// A request. Set `struct_size` to `sizeof(kvt_request)`, the members that the operation uses, and all others to zero.
///
/// Memory that it points to is not used after `kvt_submit`; `user` is not dereferenced at all. The engine's own blocks of
/// a load or store are used until the request has ended (see `kvt_set_blocks`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_request {
    /// `sizeof(kvt_request)`: later versions are longer.
    pub struct_size: u32,
    /// A `kvt_op`.
    pub op: u32,
    /// Returned in the completion.
    pub user: *mut c_void,
    /// Deadline from now in microseconds; 0: `kvt_options.timeout_us`.
    pub timeout_us: u64,
    /// Sequence, blocks and planes.
    pub range: kvt_range,
    /// Tokens, or blocks.
    pub tokens: u64,
    /// Microseconds until a parked sequence is expected back; 0: unknown.
    pub due_us: u64,
    /// Hash of the block before the first one; zero if there is none.
    pub parent: kvt_hash,
    /// `hashes_count` hashes.
    pub hashes: *const kvt_hash,
    /// Number of hashes.
    pub hashes_count: u32,
    /// A `kvt_level`.
    pub level: u32,
    /// A `kvt_advice`.
    pub advice: u32,
    /// Value of the advice: priority 0 to 255, or remaining tokens.
    pub value: u32,
    /// `blocks_count` blocks of the engine's own memory.
    pub blocks: *const u32,
    /// Number of blocks.
    pub blocks_count: u32,
    /// Zero.
    pub reserved: u32,
    /// Duration of a lease in microseconds.
    pub lease_us: u64,
}

// SAFETY: repr(C), `struct_size` first, integers and raw pointers only.
unsafe impl Sized32 for kvt_request {
    const BYTES_MIN: usize = 96;
}
const _: () = assert!(size_of::<kvt_request>() == 120);

/// Result of a request.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_completion {
    /// Ticket of the request.
    pub ticket: u64,
    /// `kvt_request.user`.
    pub user: *mut c_void,
    /// Result of the request.
    pub status: kvt_status,
    /// Child of a fork.
    pub seq: u32,
    /// Blocks, level reached, or frames.
    pub value: u64,
    /// Pin of an acquire, otherwise NULL.
    pub pin: *mut kvt_pin,
    /// Result of a lease.
    pub lease: kvt_lease_info,
    /// Result of a lookup: approximate share of the found blocks that is in host memory, in 1/1000.
    pub in_host_permille: u32,
    /// Number of blocks that a load, store or fetch failed for; `kvt_completion_failed` returns their indices, and
    /// `status` is the reason of the first. If it is 0 and `status` is an error, nothing was copied; but after
    /// `KVT_EDAEMON` any of the blocks may have been copied (`kvt_settle_blocks`).
    pub failed_count: u32,
}

impl kvt_completion {
    /// Convert a completed request. The list of its failed blocks is added to `lists`.
    fn of(done: Completed, lists: &mut Vec<(u64, Vec<u32>)>) -> kvt_completion {
        let ticket = done.ticket.into_raw();
        let mut completion = kvt_completion {
            ticket,
            user: std::ptr::with_exposed_provenance_mut(done.user as usize),
            status: kvt_status::KVT_OK,
            seq: 0,
            value: 0,
            pin: std::ptr::null_mut(),
            lease: kvt_lease_info::default(),
            in_host_permille: 0,
            failed_count: 0,
        };
        let filled = done.result.map_err(Fault::from).and_then(|outcome| {
            match outcome {
                Outcome::Seq(seq) => completion.seq = seq,
                Outcome::Level(level) => completion.value = level_code(level) as u64,
                Outcome::Blocks(blocks) => completion.value = blocks as u64,
                Outcome::Frames(frames) => completion.value = u64::from(frames),
                Outcome::Pin(pin) => completion.pin = pin::handle(pin)?,
                Outcome::Prefix(found) => {
                    completion.value = u64::from(found.blocks);
                    completion.in_host_permille = found.in_host_permille;
                }
                Outcome::Lease(leased) => completion.lease = kvt_lease_info::of(&leased),
                Outcome::Copied { failed, status, level } => {
                    completion.value = level_code(level) as u64;
                    completion.failed_count = failed.len() as u32;
                    if status != Status::Ok {
                        let fault = blocks::some_failed("request", failed.len(), status);
                        lists.push((ticket, failed));
                        return Err(fault);
                    }
                }
                // No `kvt_op` requests a single round of a lookup.
                Outcome::Done | Outcome::Found { .. } => {}
            }
            Ok(())
        });
        if let Err(fault) = filled {
            completion.status = kvt_status::of(fault.status());
            remember("request", fault);
        }
        completion
    }
}

/// Submit a request. Does not wait for its end.
///
/// @param ticket  May be NULL; receives the ticket of the request, which its completion repeats.
/// @return `KVT_OK`; `KVT_EAGAIN` if the channel is full (see `kvt_options.depth`; completions that were not polled count
///     too), or a request in flight changes the same sequence: poll first; `KVT_EINVAL` if `op` is not a `kvt_op`, a
///     reserved member is not zero, or `struct_size` is not a valid size; otherwise errors of the blocking function that
///     are found without the daemon.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_request r = {.struct_size = sizeof r, .op = KVT_OP_NOP}; kvt_submit(channel, &r, &ticket);`
///
/// # Safety
/// `request` must be valid as described at `kvt_request`, `ticket` must be NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_submit(
    channel: *mut kvt_channel,
    request: *const kvt_request,
    ticket: *mut u64,
) -> kvt_status {
    entry("kvt_submit", || {
        // SAFETY: the caller's contract.
        let r = unsafe { sized::read("request", request) }?;
        // SAFETY: the caller's contract.
        let hashes = unsafe { hashes(r.hashes, r.hashes_count) }?;
        // SAFETY: the caller's contract.
        let blocks = unsafe { array("request->blocks", r.blocks, r.blocks_count as usize) }?;
        if r.reserved != 0 {
            return Err(Fault::new(Status::Invalid, "`request->reserved` is not zero"));
        }
        let seq = r.range.seq;
        let wanted = match r.op {
            op if op == kvt_op::KVT_OP_NOP as u32 => Request::Nop,
            op if op == kvt_op::KVT_OP_RESERVE as u32 => Request::Reserve { seq, tokens: r.tokens },
            op if op == kvt_op::KVT_OP_RESERVE_SESSION as u32 => {
                let blocks = u32::try_from(r.tokens)
                    .map_err(|_| Fault::new(Status::Range, format!("`request->tokens`: {} is too large", r.tokens)))?;
                Request::ReserveSession { blocks }
            }
            op if op == kvt_op::KVT_OP_FORK as u32 => Request::Fork { seq },
            op if op == kvt_op::KVT_OP_TRUNCATE as u32 => Request::Truncate { seq, tokens: r.tokens },
            op if op == kvt_op::KVT_OP_PUBLISH as u32 => {
                let (parent, level) = (r.parent.value(), level(r.level)?);
                Request::Publish { seq, first: r.range.first, parent, hashes: &hashes, level }
            }
            op if op == kvt_op::KVT_OP_MAP as u32 => Request::Map { seq, hashes: &hashes },
            op if op == kvt_op::KVT_OP_PARK as u32 => Request::Park { seq, due: Duration::from_micros(r.due_us) },
            op if op == kvt_op::KVT_OP_RESUME as u32 => Request::Resume { seq },
            op if op == kvt_op::KVT_OP_ADVISE as u32 => {
                let (advice, value) = advice(r.advice, r.value)?;
                Request::Advise { seq, first: r.range.first, count: r.range.count, advice, value }
            }
            op if op == kvt_op::KVT_OP_ACQUIRE as u32 => Request::Acquire { range: r.range.pages() },
            op if op == kvt_op::KVT_OP_TIER0_RESIZE as u32 => {
                Request::Tier0Resize { class: r.range.first as usize, frames: r.range.count }
            }
            op if op == kvt_op::KVT_OP_LOOKUP as u32 => Request::Search { hashes: &hashes },
            op if op == kvt_op::KVT_OP_LEASE as u32 => {
                let time = Duration::from_micros(r.lease_us);
                Request::Lease { hash: r.parent.value(), count: r.range.count, time }
            }
            op if op == kvt_op::KVT_OP_LOAD_BLOCKS as u32 => Request::Load { lease: seq, first: r.range.first, blocks },
            op if op == kvt_op::KVT_OP_STORE_BLOCKS as u32 => {
                let (parent, level) = (r.parent.value(), level(r.level)?);
                Request::Store { first: r.range.first, parent, hashes: &hashes, blocks, level }
            }
            op if op == kvt_op::KVT_OP_FETCH_BLOCKS as u32 => {
                Request::Fetch { lease: seq, first: r.range.first, count: r.range.count }
            }
            op => return Err(Fault::new(Status::Invalid, format!("`request->op` is {op}, not a kvt_op"))),
        };
        let mut c = enter(channel)?;
        let timeout = timeout(r.timeout_us, c.timeout);
        let sent = c.channel.submit(wanted, timeout, r.user.expose_provenance() as u64)?;
        // SAFETY: the caller's contract.
        unsafe { super::channel::write_if(ticket, sent.into_raw()) }
    })
}

/// Take the completions of requests that have ended. Does not wait.
///
/// The `status` of a completion is the result of its request; `kvt_last_error` has the details of the last one that
/// failed.
///
/// @param completions  Receives at most `capacity` completions.
/// @param count  Receives their number.
/// @return `KVT_OK`, also if none has ended.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_poll(channel, completions, 16, &count);`
///
/// # Safety
/// `completions` must be valid for `capacity` writes, `count` for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_poll(
    channel: *mut kvt_channel,
    completions: *mut kvt_completion,
    capacity: u32,
    count: *mut u32,
) -> kvt_status {
    entry("kvt_poll", || {
        check_out("completions", completions)?;
        check_out("count", count)?;
        let mut c = enter(channel)?;
        let ChannelHandle { channel, failed, .. } = &mut *c;
        failed.clear();
        let mut taken = 0;
        while taken < capacity {
            let Some(done) = channel.poll_any() else { break };
            // SAFETY: the caller's contract: `taken` is below `capacity`.
            unsafe { completions.add(taken as usize).write(kvt_completion::of(done, failed)) };
            taken += 1;
        }
        // SAFETY: the caller's contract.
        unsafe { write("count", count, taken) }
    })
}

/// Wait for the end of one request and take its completion.
///
/// @param timeout_us  Microseconds; 0: `kvt_options.timeout_us`.
/// @param completion  Receives the completion; its `status` is the result of the request.
/// @return `KVT_OK` if the request has ended, with any result; `KVT_ETIMEDOUT` if it is still in flight (the ticket stays
///     valid); `KVT_ENOTFOUND` if there is no such ticket or its completion was already taken.
/// Thread safety: one thread per channel at a time.
///
/// # Safety
/// `completion` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_wait(
    channel: *mut kvt_channel,
    ticket: u64,
    timeout_us: u64,
    completion: *mut kvt_completion,
) -> kvt_status {
    entry("kvt_wait", || {
        check_out("completion", completion)?;
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        let done = c.channel.wait(Ticket::from_raw(ticket), timeout)?;
        c.failed.clear();
        // SAFETY: the caller's contract.
        unsafe { write("completion", completion, kvt_completion::of(done, &mut c.failed)) }
    })
}

/// Return the blocks for which a load, store or fetch failed, as indices into the request's blocks. The completion must
/// come from the last `kvt_poll` or `kvt_wait` of this channel.
///
/// @param failed  Receives at most `capacity` indices; NULL if `capacity` is 0.
/// @param count  Receives the number of failed blocks.
/// @return `KVT_OK`; `KVT_ENOTFOUND` if that call returned no completion with this ticket and failed blocks.
/// Thread safety: one thread per channel at a time.
///
/// # Safety
/// `failed` must be valid for `capacity` writes (NULL if 0), `count` for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_completion_failed(
    channel: *mut kvt_channel,
    ticket: u64,
    failed: *mut u32,
    capacity: u32,
    count: *mut u32,
) -> kvt_status {
    entry("kvt_completion_failed", || {
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

/// Request the cancellation of a request. It still ends: with `KVT_ECANCELED`, or with its own result if that came first.
///
/// @return `KVT_OK`; `KVT_ENOTFOUND` if there is no such ticket; `KVT_EAGAIN` if the ring is full.
/// Thread safety: one thread per channel at a time.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_cancel(channel: *mut kvt_channel, ticket: u64) -> kvt_status {
    entry("kvt_cancel", || Ok(enter(channel)?.channel.cancel(Ticket::from_raw(ticket))?))
}

/// Return a descriptor that becomes readable when a request of this channel has ended after `kvt_channel_arm`, or the
/// daemon is gone.
///
/// Only poll it; do not read or close it. It is valid while the channel is open.
///
/// @param fd  Receives the descriptor.
/// @return `KVT_OK`; `KVT_ESTATE` if the channel has no descriptor.
/// Thread safety: one thread per channel at a time.
///
/// # Safety
/// `fd` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_channel_fd(channel: *mut kvt_channel, fd: *mut i32) -> kvt_status {
    entry("kvt_channel_fd", || {
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
/// An event loop polls until `kvt_poll` returns nothing, arms, and sleeps on the descriptor only if `ready` is false.
///
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
