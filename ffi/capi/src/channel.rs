//! `kvt_channel`: a stream of calls of one thread.

use super::client::{self, kvt_client};
use super::entry::{array, check_out, entry, string, write};
use super::error::Fault;
use super::status::kvt_status;
use super::table::{Exclusive, ExclusiveUse, Table};
use kvtide_client::Channel;
use kvtide_wire::entry::Level;
use kvtide_wire::status::Status;
use kvtide_wire::trace::TraceContext;
use std::collections::HashMap;
use std::ffi::c_char;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A channel: an ordered stream of calls of one thread.
///
/// Thread safety: one thread at a time; it may be another thread from call to call.
pub struct kvt_channel {
    _opaque: [u8; 0],
}

/// Kinds of requests, by ticket.
type Kinds = HashMap<u64, u32>;
/// Of closed channels by index: kinds of the requests that were in flight.
pub(crate) type Parked = Arc<Mutex<HashMap<u16, Kinds>>>;

/// Value of a [`kvt_channel`] handle.
pub(crate) struct ChannelHandle {
    pub(crate) channel: Channel,
    pub(crate) timeout: Duration,
    /// Kinds of the requests without a taken completion.
    pub(crate) kinds: Kinds,
    index: u16,
    /// Where the kinds wait while the channel is closed: its requests go on, and their completions come after it is opened again.
    parked: Parked,
    /// Failed blocks of the completions that the last poll or wait returned, by ticket.
    pub(crate) failed: Vec<(u64, Vec<u32>)>,
}

impl ChannelHandle {
    fn parked(&self) -> MutexGuard<'_, HashMap<u16, Kinds>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ChannelHandle {
    fn drop(&mut self) {
        let kinds = std::mem::take(&mut self.kinds);
        self.parked().insert(self.index, kinds);
    }
}

static CHANNELS: Table<ChannelHandle, Exclusive> = Table::new("kvt_channel", b'H');

pub(crate) fn enter(channel: *const kvt_channel) -> Result<ExclusiveUse<ChannelHandle>, Fault> {
    CHANNELS.enter(channel)
}

/// Content hash of a block, chained over the blocks before it: 128 bits. Zero is not a valid hash. Tools write it as 32
/// hexadecimal digits: its bytes in the order in which they are in memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct kvt_hash {
    /// Low word, high word.
    pub words: [u64; 2],
}

impl kvt_hash {
    pub(crate) fn value(self) -> u128 {
        u128::from(self.words[1]) << 64 | u128::from(self.words[0])
    }
}

/// Durability of a published block, as requested and as reached.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvt_level {
    /// Findable while the daemon lives.
    KVT_LEVEL_PUBLISHED = 0,
    /// Data and index record written; survives `kill -9`.
    KVT_LEVEL_STORED = 1,
    /// After a device flush; survives power loss.
    KVT_LEVEL_DURABLE = 2,
}

const LEVELS: [(kvt_level, Level); 3] = [
    (kvt_level::KVT_LEVEL_PUBLISHED, Level::Published),
    (kvt_level::KVT_LEVEL_STORED, Level::Stored),
    (kvt_level::KVT_LEVEL_DURABLE, Level::Durable),
];
const _: () = {
    let mut i = 0;
    while i < LEVELS.len() {
        assert!(LEVELS[i].0 as usize == i && LEVELS[i].1 as usize == i);
        i += 1;
    }
};

pub(crate) fn level(code: u32) -> Result<Level, Fault> {
    let found = LEVELS.get(code as usize);
    found
        .map(|(_, level)| *level)
        .ok_or_else(|| Fault::new(Status::Invalid, format!("`level` is {code}, not a kvt_level")))
}

pub(crate) fn level_code(level: Level) -> kvt_level {
    LEVELS[level as usize].0
}

/// Copy the hashes of a call: C has pairs of words, the client needs 128-bit numbers.
///
/// # Safety
/// As [`array`].
pub(crate) unsafe fn hashes(pointer: *const kvt_hash, count: u32) -> Result<Vec<u128>, Fault> {
    // SAFETY: this function's own contract.
    let hashes = unsafe { array("hashes", pointer, count as usize) }?;
    Ok(hashes.iter().map(|hash| hash.value()).collect())
}

/// Return the hash of the block before the first one, 0 if the pointer is NULL.
///
/// # Safety
/// `pointer` is NULL or valid for a read.
pub(crate) unsafe fn parent(pointer: *const kvt_hash) -> Result<u128, Fault> {
    // SAFETY: this function's own contract.
    let parent = unsafe { array("parent", pointer, usize::from(!pointer.is_null())) }?;
    Ok(parent.first().map_or(0, |hash| hash.value()))
}

/// Open channel `index` of the session. A channel has one handle at a time.
///
/// @param client  Session.
/// @param index  Channel, below `kvt_options.channels`.
/// @param channel  Receives the handle. Close it with `kvt_channel_close`.
/// @return `KVT_OK`; `KVT_ERANGE` if there is no such channel; `KVT_ESTATE` if it is already open.
/// Thread safety: any thread.
/// Example: `kvt_channel_open(client, 0, &channel);`
///
/// # Safety
/// `channel` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_channel_open(
    client: *const kvt_client,
    index: u16,
    channel: *mut *mut kvt_channel,
) -> kvt_status {
    entry("kvt_channel_open", || {
        check_out("channel", channel)?;
        let client = client::enter(client)?;
        let taken = client.client.channel(index)?;
        let (timeout, parked) = (client.timeout, Arc::clone(&client.parked));
        let mut value =
            ChannelHandle { channel: taken, timeout, kinds: Kinds::new(), index, parked, failed: Vec::new() };
        let kinds = value.parked().remove(&index);
        value.kinds = kinds.unwrap_or_default();
        let handle = CHANNELS.insert(value)?;
        // SAFETY: the caller's contract.
        unsafe { write("channel", channel, handle) }
    })
}

/// Close a channel. It can be opened again and still has its sequences then.
///
/// @param channel  Channel.
/// @return `KVT_OK`; `KVT_EBUSY` if another thread is in a call on it.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_close(channel);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_channel_close(channel: *mut kvt_channel) -> kvt_status {
    entry("kvt_channel_close", || CHANNELS.close(channel))
}

/// Set the trace that the calls on a channel belong to from now on. The daemon makes a span of each of their requests, a child of the
/// caller's span, and sends it to its collector. No effect if the daemon does not trace (`[tracing] endpoint`), or the caller's span
/// is not sampled.
///
/// @param channel  Channel.
/// @param traceparent  Value of a W3C header `traceparent`. NULL: no trace.
/// @return `KVT_OK`; `KVT_EINVAL` if it is none: the calls then belong to no trace.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_trace(channel, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");`
///
/// # Safety
/// `traceparent` must be NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_channel_trace(channel: *mut kvt_channel, traceparent: *const c_char) -> kvt_status {
    entry("kvt_channel_trace", || {
        let mut c = enter(channel)?;
        c.channel.trace(None)?;
        if !traceparent.is_null() {
            // SAFETY: the caller's contract.
            let text = unsafe { string("traceparent", traceparent) }?;
            let context = TraceContext::from_traceparent(text);
            c.channel.trace(context.map_err(|error| Fault::new(Status::Invalid, error.to_string()))?)?;
        }
        Ok(())
    })
}
