//! `kvt_channel`: the calls of one thread, in their blocking form.

use super::client::{self, kvt_client};
use super::entry::{array, check_out, entry, write};
use super::error::Fault;
use super::space::timeout;
use super::status::kvt_status;
use super::table::{Exclusive, ExclusiveUse, Table};
use kvtide_client::Channel;
use kvtide_wire::entry::{Advice, Level};
use kvtide_wire::status::Status;
use std::time::Duration;

/// The calls of one thread. One thread at a time; it may change hands.
pub struct kvt_channel {
    _opaque: [u8; 0],
}

/// What stands behind a [`kvt_channel`].
pub(crate) struct ChannelHandle {
    pub(crate) channel: Channel,
    pub(crate) timeout: Duration,
    /// Blocks that failed, of the completions that were taken last, by ticket.
    pub(crate) failed: Vec<(u64, Vec<u32>)>,
}

static CHANNELS: Table<ChannelHandle, Exclusive> = Table::new("kvt_channel", b'H');

pub(crate) fn enter(channel: *const kvt_channel) -> Result<ExclusiveUse<ChannelHandle>, Fault> {
    CHANNELS.enter(channel)
}

/// Content hash of a block, chained over its predecessors: 128 bits, low word first.
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

/// How well a published block must be kept, and how well it is.
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

/// What an engine knows about its future use of a range.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvt_advice {
    /// Will be read soon: bring it into tier 0 if there is room without harm.
    KVT_ADVICE_WILLNEED = 0,
    /// Will not be read soon: demote it first.
    KVT_ADVICE_DONTNEED = 1,
    /// Will be read once, front to back.
    KVT_ADVICE_SEQUENTIAL = 2,
    /// Rarely read: keep it out of tier 0 and write it down early.
    KVT_ADVICE_COLD = 3,
    /// Eviction priority: 0 (first) to 255.
    KVT_ADVICE_PRIORITY = 4,
    /// Tokens that the sequence will still commit before it is dropped, `UINT32_MAX`: unknown. Said once: what is committed counts down.
    KVT_ADVICE_REMAINING = 5,
}

const LEVELS: [(kvt_level, Level); 3] = [
    (kvt_level::KVT_LEVEL_PUBLISHED, Level::Published),
    (kvt_level::KVT_LEVEL_STORED, Level::Stored),
    (kvt_level::KVT_LEVEL_DURABLE, Level::Durable),
];
const ADVICE: [(kvt_advice, Advice); 6] = [
    (kvt_advice::KVT_ADVICE_WILLNEED, Advice::WillNeed),
    (kvt_advice::KVT_ADVICE_DONTNEED, Advice::DontNeed),
    (kvt_advice::KVT_ADVICE_SEQUENTIAL, Advice::Sequential),
    (kvt_advice::KVT_ADVICE_COLD, Advice::Cold),
    (kvt_advice::KVT_ADVICE_PRIORITY, Advice::Priority),
    (kvt_advice::KVT_ADVICE_REMAINING, Advice::Remaining),
];
const _: () = {
    let mut i = 0;
    while i < LEVELS.len() {
        assert!(LEVELS[i].0 as usize == i && LEVELS[i].1 as usize == i);
        i += 1;
    }
    i = 0;
    while i < ADVICE.len() {
        assert!(ADVICE[i].0 as usize == i && ADVICE[i].1 as usize == i);
        i += 1;
    }
};

pub(crate) fn level(code: u32) -> Result<Level, Fault> {
    let found = LEVELS.get(code as usize);
    found
        .map(|(_, level)| *level)
        .ok_or_else(|| Fault::new(Status::Invalid, format!("`level` is {code}, no kvt_level")))
}

pub(crate) fn level_code(level: Level) -> kvt_level {
    LEVELS[level as usize].0
}

pub(crate) fn advice(code: u32, value: u32) -> Result<(Advice, u32), Fault> {
    let Some((_, advice)) = ADVICE.get(code as usize) else {
        return Err(Fault::new(Status::Invalid, format!("`advice` is {code}, no kvt_advice")));
    };
    if *advice == Advice::Priority && value > u8::MAX.into() {
        return Err(Fault::new(Status::Invalid, format!("`value` is {value}, a priority above 255")));
    }
    Ok((*advice, value))
}

/// Hashes of a call, copied: the client wants numbers, C has pairs of words.
///
/// # Safety
/// As [`array`].
pub(crate) unsafe fn hashes(pointer: *const kvt_hash, count: u32) -> Result<Vec<u128>, Fault> {
    // SAFETY: this function's own contract.
    let hashes = unsafe { array("hashes", pointer, count as usize) }?;
    Ok(hashes.iter().map(|hash| hash.value()).collect())
}

/// Takes channel `index` of the session; it has one handle at a time.
///
/// `KVT_ERANGE`: no such channel. `KVT_ESTATE`: somebody has it.
///
/// # Safety
/// `channel` is valid for a write.
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
        let handle = CHANNELS.insert(ChannelHandle { channel: taken, timeout: client.timeout, failed: Vec::new() })?;
        // SAFETY: the caller's contract.
        unsafe { write("channel", channel, handle) }
    })
}

/// Closes a channel: it can be opened again, and then has its sequences still.
///
/// `KVT_EBUSY`: another thread is inside a call on it.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_channel_close(channel: *mut kvt_channel) -> kvt_status {
    entry("kvt_channel_close", || CHANNELS.close(channel))
}

/// Round trip to the daemon without effect.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_nop(channel: *mut kvt_channel, timeout_us: u64) -> kvt_status {
    entry("kvt_nop", || {
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        Ok(c.channel.nop(timeout)?)
    })
}

/// Creates an empty sequence. It belongs to this channel: its other calls come by it. Never waits.
///
/// `KVT_ELIMIT`: as many sequences live as the options allow; one that was dropped counts until the daemon has said so.
///
/// # Safety
/// `seq` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_seq_create(channel: *mut kvt_channel, seq: *mut u32) -> kvt_status {
    entry("kvt_seq_create", || {
        check_out("seq", seq)?;
        let created = enter(channel)?.channel.seq_create()?;
        // SAFETY: the caller's contract.
        unsafe { write("seq", seq, created) }
    })
}

/// Drops a sequence and its pins. Never waits. `KVT_ENOTFOUND`; `KVT_ESTATE`: it is in a lane's step.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_seq_drop(channel: *mut kvt_channel, seq: u32) -> kvt_status {
    entry("kvt_seq_drop", || Ok(enter(channel)?.channel.seq_drop(seq)?))
}

/// Makes room for positions below `tokens`: afterwards the pages up to there are resident and writable. Waits for room if
/// work in flight can make some.
///
/// `KVT_ENOSPC`: no tier has room and nothing may be evicted. `KVT_ETOOBIG`, `KVT_ELIMIT`, `KVT_ETIMEDOUT`.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_reserve(channel: *mut kvt_channel, seq: u32, tokens: u64, timeout_us: u64) -> kvt_status {
    entry("kvt_reserve", || {
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        Ok(c.channel.reserve(seq, tokens, timeout)?)
    })
}

/// Adds blocks to the session's own reserve, from which `kvt_append` takes; it is kept filled in the background.
/// `granted` (may be NULL) gets how many there are now.
///
/// # Safety
/// `granted` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_reserve_session(
    channel: *mut kvt_channel,
    blocks: u32,
    timeout_us: u64,
    granted: *mut u32,
) -> kvt_status {
    entry("kvt_reserve_session", || {
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        let count = c.channel.reserve_session(blocks, timeout)?;
        // SAFETY: the caller's contract.
        unsafe { write_if(granted, count as u32) }
    })
}

/// Makes room for `tokens` more tokens than the sequence has committed, with blocks of the session's reserve. No round trip.
///
/// `KVT_EAGAIN`: the reserve is empty; it is being filled, or `kvt_reserve` waits for it.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_append(channel: *mut kvt_channel, seq: u32, tokens: u64) -> kvt_status {
    entry("kvt_append", || Ok(enter(channel)?.channel.append(seq, tokens)?))
}

/// The sequence's tokens below `tokens` are final and written: seals every page that they fill. Never waits.
///
/// `KVT_ESTATE`: beyond what is reserved, or below what is committed.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_commit(channel: *mut kvt_channel, seq: u32, tokens: u64) -> kvt_status {
    entry("kvt_commit", || Ok(enter(channel)?.channel.commit(seq, tokens)?))
}

/// A child that shares the sealed blocks and has copies of the unsealed ones. The parent must not be in a lane's step.
///
/// # Safety
/// `child` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_fork(channel: *mut kvt_channel, seq: u32, timeout_us: u64, child: *mut u32) -> kvt_status {
    entry("kvt_fork", || {
        check_out("child", child)?;
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        let created = c.channel.fork(seq, timeout)?;
        // SAFETY: the caller's contract.
        unsafe { write("child", child, created) }
    })
}

/// Rolls back to `tokens`. A cut inside a sealed block copies that block.
///
/// `KVT_ERANGE`: more than committed. `KVT_EBUSY`: a page beyond the cut is pinned. `KVT_ESTATE`: it is in a lane's step.
/// `KVT_ELOST`: in a window plane, pages that the shorter sequence would read have left their window and are gone; the
/// sequence stays as it was. What is not committed yet can always be taken back.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_truncate(channel: *mut kvt_channel, seq: u32, tokens: u64, timeout_us: u64) -> kvt_status {
    entry("kvt_truncate", || {
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        Ok(c.channel.truncate(seq, tokens, timeout)?)
    })
}

/// Gives `count` sealed blocks from block index `first` their content hashes. `parent` is the hash of the block before them
/// (NULL at the root), `wanted` a `kvt_level`. Waits until all of them have reached that level, or cannot; `reached` (may be NULL)
/// gets the level reached.
///
/// `KVT_NOT_ADMITTED`: not all of them will be kept, because admission refuses to, or there is no tier that could; they may be
/// findable while the daemon lives. `KVT_ETIMEDOUT`: the level was not reached in time; they are findable, and may reach it
/// later. `KVT_ESTATE`: a block is not sealed.
///
/// # Safety
/// `hashes` is valid for `count` reads, `parent` NULL or valid for one, `reached` NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_publish(
    channel: *mut kvt_channel,
    seq: u32,
    first: u32,
    parent: *const kvt_hash,
    hashes: *const kvt_hash,
    count: u32,
    wanted: u32,
    timeout_us: u64,
    reached: *mut kvt_level,
) -> kvt_status {
    entry("kvt_publish", || {
        let wanted = level(wanted)?;
        // SAFETY: the caller's contract.
        let (parent, hashes) =
            unsafe { (array("parent", parent, usize::from(!parent.is_null()))?, self::hashes(hashes, count)?) };
        let parent = parent.first().map_or(0, |hash| hash.value());
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        let level = c.channel.publish(seq, first, parent, &hashes, wanted, timeout)?;
        // SAFETY: the caller's contract.
        unsafe { write_if(reached, level_code(level)) }
    })
}

/// Attaches the longest cached prefix of `hashes` to an empty sequence. `blocks` (may be NULL) gets how many blocks that is.
///
/// # Safety
/// `hashes` is valid for `count` reads, `blocks` NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_map(
    channel: *mut kvt_channel,
    seq: u32,
    hashes: *const kvt_hash,
    count: u32,
    timeout_us: u64,
    blocks: *mut u32,
) -> kvt_status {
    entry("kvt_map", || {
        // SAFETY: the caller's contract.
        let hashes = unsafe { self::hashes(hashes, count) }?;
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        let mapped = c.channel.map(seq, &hashes, timeout)?;
        // SAFETY: the caller's contract.
        unsafe { write_if(blocks, mapped as u32) }
    })
}

/// Lets an idle sequence leave tier 0, its tail included. `due_us`: microseconds until it is expected back, 0 if unknown: by then
/// the daemon brings in what there is room for. Called again it moves that time: so a request that waits in the engine's queue is
/// mapped, parked, and parked again as the queue moves. Never waits. `KVT_ESTATE`: it is in a lane's step.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_park(channel: *mut kvt_channel, seq: u32, due_us: u64) -> kvt_status {
    entry("kvt_park", || Ok(enter(channel)?.channel.park(seq, Duration::from_micros(due_us))?))
}

/// Brings a parked sequence back; returns when its tail is writable. `KVT_ENOSPC`, `KVT_ELOST`, `KVT_ETIMEDOUT`.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_resume(channel: *mut kvt_channel, seq: u32, timeout_us: u64) -> kvt_status {
    entry("kvt_resume", || {
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        Ok(c.channel.resume(seq, timeout)?)
    })
}

/// Says what will be done with blocks `first` to `first + count - 1`: `kind` is a `kvt_advice`, `value` the priority
/// of `KVT_ADVICE_PRIORITY` (0 to 255), the tokens of `KVT_ADVICE_REMAINING` (whatever the range), else ignored. Never waits.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_advise(
    channel: *mut kvt_channel,
    seq: u32,
    first: u32,
    count: u32,
    kind: u32,
    value: u32,
) -> kvt_status {
    entry("kvt_advise", || {
        let (kind, value) = advice(kind, value)?;
        Ok(enter(channel)?.channel.advise(seq, first, count, kind, value)?)
    })
}

/// Lets a size class of tier 0 have its first `frames` frames from now on, of those that the session attached with: memory
/// behind the others goes back to the system or the device, and comes back with a larger number. `frames_now` (may be NULL)
/// gets how many the class has, whether the call succeeded or not. Addresses, frame numbers and tables stay as they are. Steps
/// go on meanwhile; pages that must stay are given other frames at a moment in which no lane is in a step, so a call between
/// steps has the memory at once.
///
/// An error leaves the class as it was. `KVT_ERANGE`: no such class, more frames than it attached with, or fewer than a block
/// has pages in the class (or than 2). `KVT_EBUSY`: pages that must stay (unsealed, acquired) need more. `KVT_ENOSPC`: pages
/// would have to leave that find no place below. `KVT_ESTATE`: it is being resized. `KVT_ETIMEDOUT`: pages in the way stayed
/// acquired, or a lane was in a step all the time. Growing: `KVT_ESYSTEM`, `KVT_EDEVICE`: there is no memory.
///
/// # Safety
/// `frames_now` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_tier0_resize(
    channel: *mut kvt_channel,
    size_class: u32,
    frames: u32,
    timeout_us: u64,
    frames_now: *mut u32,
) -> kvt_status {
    entry("kvt_tier0_resize", || {
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        let resized = c.channel.tier0_resize(size_class as usize, frames, timeout);
        // SAFETY: the caller's contract.
        unsafe { write_if(frames_now, c.channel.tier0_frames(size_class as usize)) }?;
        resized?;
        Ok(())
    })
}

/// Writes a result that the caller may do without.
///
/// # Safety
/// `out` is NULL or valid for a write.
pub(crate) unsafe fn write_if<T>(out: *mut T, value: T) -> Result<(), Fault> {
    if out.is_null() {
        return Ok(());
    }
    // SAFETY: this function's own contract.
    unsafe { write("out", out, value) }
}
