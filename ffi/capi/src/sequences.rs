//! Sequences: created, extended, committed, forked, published and parked on a channel, in blocking form.

use super::channel::{enter, hashes, kvt_channel, kvt_hash, kvt_level, level, level_code, parent};
use super::client::{self, kvt_client};
use super::entry::{Optional, check_out, entry, write};
use super::error::Fault;
use super::space::timeout;
use super::status::kvt_status;
use kvtide_wire::entry::Advice;
use kvtide_wire::status::Status;
use std::time::Duration;

/// Hint from an engine about its future use of a range of blocks.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvt_advice {
    /// Will be read soon: load it into tier 0 if there is room without harm.
    KVT_ADVICE_WILLNEED = 0,
    /// Will not be read soon: demote it first.
    KVT_ADVICE_DONTNEED = 1,
    /// Will be read once, front to back.
    KVT_ADVICE_SEQUENTIAL = 2,
    /// Rarely read: keep it out of tier 0 and write it back early.
    KVT_ADVICE_COLD = 3,
    /// Eviction priority: 0 (evict first) to 255.
    KVT_ADVICE_PRIORITY = 4,
    /// Tokens that the sequence will still commit before it is dropped, counted from now; `UINT32_MAX`: unknown. Give
    /// it once; each commit reduces it.
    KVT_ADVICE_REMAINING = 5,
}

const _: () = {
    assert!(kvt_advice::KVT_ADVICE_WILLNEED as u16 == Advice::WillNeed.code().0);
    assert!(kvt_advice::KVT_ADVICE_DONTNEED as u16 == Advice::DontNeed.code().0);
    assert!(kvt_advice::KVT_ADVICE_SEQUENTIAL as u16 == Advice::Sequential.code().0);
    assert!(kvt_advice::KVT_ADVICE_COLD as u16 == Advice::Cold.code().0);
    assert!(kvt_advice::KVT_ADVICE_PRIORITY as u16 == Advice::Priority(0).code().0);
    assert!(kvt_advice::KVT_ADVICE_REMAINING as u16 == Advice::Remaining(0).code().0);
};

fn advice(code: u32, value: u32) -> Result<Advice, Fault> {
    Advice::from_code(u16::try_from(code).unwrap_or(u16::MAX), value.into()).map_err(|status| {
        let why = match status {
            Status::Range => format!("`value` is {value}; a priority is at most 255"),
            _ => format!("`advice` is {code}, not a kvt_advice"),
        };
        Fault::new(Status::Invalid, why)
    })
}

/// Create an empty sequence. Does not wait.
///
/// The sequence belongs to this channel: all later calls on it use this channel.
///
/// @param channel  Channel.
/// @param seq  Receives the id of the sequence.
/// @return `KVT_OK`; `KVT_ELIMIT` if `kvt_options.seqs_max` sequences and leases exist; `KVT_EAGAIN` if the daemon has
///     not yet confirmed a drop that will free an id, or the ring is full.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_create_seq(channel, &seq);`
///
/// # Safety
/// `seq` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_channel_create_seq(channel: *mut kvt_channel, seq: *mut u32) -> kvt_status {
    entry("kvt_channel_create_seq", || {
        check_out("seq", seq)?;
        let created = enter(channel)?.channel.create_seq()?;
        // SAFETY: the caller's contract.
        unsafe { write("seq", seq, created) }
    })
}

/// Drop a sequence and its pins. Does not wait.
///
/// @param channel  Channel.
/// @param seq  Sequence of the channel.
/// @return `KVT_OK`; `KVT_ENOTFOUND` if there is no such sequence; `KVT_ESTATE` if it is in a lane's step; `KVT_EAGAIN`
///     if a request that changes it is in flight, or the ring is full.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_drop_seq(channel, seq);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_channel_drop_seq(channel: *mut kvt_channel, seq: u32) -> kvt_status {
    entry("kvt_channel_drop_seq", || Ok(enter(channel)?.channel.drop_seq(seq)?))
}

/// Extend a sequence until it has blocks for `tokens` tokens. The pages of new blocks are in tier 0 and writable
/// afterwards. Waits for room if work in flight can free some. Makes no round trip if it has the blocks already.
///
/// @param channel  Channel.
/// @param seq  Sequence of the channel.
/// @param tokens  Total tokens of the sequence, not only the new ones.
/// @param timeout_us  Microseconds; 0: `kvt_options.timeout_us`.
/// @return `KVT_OK`; `KVT_ENOSPC` if no tier has room and nothing can be evicted; `KVT_ETOOBIG` if tier 0 is too small
///     for the pages that must stay in it; `KVT_ELIMIT` if the sequence would have more blocks than the daemon allows;
///     `KVT_ESTATE` if it is parked; `KVT_ETIMEDOUT`. After an error, blocks that were already granted stay with the
///     sequence.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_reserve(channel, seq, prompt_tokens + 256, 0);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_channel_reserve(channel: *mut kvt_channel, seq: u32, tokens: u64, timeout_us: u64) -> kvt_status {
    entry("kvt_channel_reserve", || {
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        Ok(c.channel.reserve(seq, tokens, timeout)?)
    })
}

/// Make the tokens of a sequence below `tokens` final. They must be written. Seals every page that they fill; a sealed
/// page never changes. Does not wait.
///
/// @param channel  Channel.
/// @param seq  Sequence of the channel.
/// @param tokens  Total tokens of the sequence that are final.
/// @return `KVT_OK`; `KVT_ESTATE` if `tokens` is beyond the reserved or below the committed tokens, or, with tier 0 on
///     a device, if the sequence is in a lane's step (call `kvt_lane_end` first).
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_commit(channel, seq, tokens);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_channel_commit(channel: *mut kvt_channel, seq: u32, tokens: u64) -> kvt_status {
    entry("kvt_channel_commit", || Ok(enter(channel)?.channel.commit(seq, tokens)?))
}

/// Create a child of a sequence. It shares the sealed blocks and gets copies of the unsealed ones.
///
/// @param channel  Channel.
/// @param seq  Sequence of the channel.
/// @param timeout_us  Microseconds; 0: `kvt_options.timeout_us`.
/// @param child  Receives the id of the child.
/// @return `KVT_OK`; `KVT_ESTATE` if the parent is in a lane's step or parked; `KVT_ELIMIT` if `kvt_options.seqs_max`
///     sequences and leases exist; `KVT_ENOSPC` if there is no room for the copies; `KVT_ELOST` if a page to copy is
///     lost; `KVT_ETIMEDOUT`.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_fork(channel, seq, 0, &child);`
///
/// # Safety
/// `child` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_channel_fork(
    channel: *mut kvt_channel,
    seq: u32,
    timeout_us: u64,
    child: *mut u32,
) -> kvt_status {
    entry("kvt_channel_fork", || {
        check_out("child", child)?;
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        let created = c.channel.fork(seq, timeout)?;
        // SAFETY: the caller's contract.
        unsafe { write("child", child, created) }
    })
}

/// Truncate a sequence to `tokens` tokens. A cut inside a sealed block copies that block. Reserved tokens that are not
/// committed can always be removed.
///
/// @param channel  Channel.
/// @param seq  Sequence of the channel.
/// @param tokens  Tokens to keep.
/// @param timeout_us  Microseconds; 0: `kvt_options.timeout_us`.
/// @return `KVT_OK`; `KVT_ERANGE` if `tokens` is more than committed; `KVT_EBUSY` if a page beyond the cut is pinned;
///     `KVT_ESTATE` if the sequence is in a lane's step or parked; `KVT_ELOST` if, in a window plane, the shorter
///     sequence needs pages that were dropped because they had left the window (the sequence stays unchanged);
///     `KVT_ENOSPC`; `KVT_ETIMEDOUT`.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_truncate(channel, seq, prompt_tokens, 0);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_channel_truncate(
    channel: *mut kvt_channel,
    seq: u32,
    tokens: u64,
    timeout_us: u64,
) -> kvt_status {
    entry("kvt_channel_truncate", || {
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        Ok(c.channel.truncate(seq, tokens, timeout)?)
    })
}

/// Publish sealed blocks of a sequence: make them findable under their content hashes. Waits until all of them have
/// reached the level `wanted`, or cannot reach it.
///
/// @param channel  Channel.
/// @param seq  Sequence of the channel.
/// @param first  Index of the first block in the sequence.
/// @param parent  Hash of the block before it; NULL if `first` is 0.
/// @param hashes  `count` hashes, one for each block.
/// @param count  Number of blocks.
/// @param wanted  A `kvt_level`.
/// @param timeout_us  Microseconds; 0: `kvt_options.timeout_us`.
/// @param reached  May be NULL; receives the level reached.
/// @return `KVT_OK`; `KVT_ENOTADMITTED` if not all blocks will be kept, because admission rejected them, no tier can
///     hold them, or the parent is not cached (blocks may still be findable while the daemon lives); `KVT_EOVERBUDGET`
///     if the write budget is used up (the blocks are findable, and written when it refills); `KVT_ETIMEDOUT` if
///     the level was not reached in time (the blocks are findable and may reach it later); `KVT_ENOSPC` if NVMe or host
///     memory has no room; `KVT_EIO` if a write or flush failed; `KVT_ESTATE` if a block is not sealed or already has
///     another hash; `KVT_EINVAL` if a hash is zero, the parent is missing, or a hash is cached under another parent.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_publish(channel, seq, 0, NULL, hashes, 4, KVT_LEVEL_STORED, 0, &reached);`
///
/// # Safety
/// `hashes` must be valid for `count` reads, `parent` NULL or valid for one, `reached` NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_channel_publish(
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
    entry("kvt_channel_publish", || {
        // SAFETY: the caller's contract.
        let reached = unsafe { Optional::new("reached", reached) }?;
        let wanted = level(wanted)?;
        // SAFETY: the caller's contract.
        let (parent, hashes) = unsafe { (self::parent(parent)?, self::hashes(hashes, count)?) };
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        let level = c.channel.publish(seq, first, parent, &hashes, wanted, timeout)?;
        reached.set(level_code(level));
        Ok(())
    })
}

/// Attach the longest cached prefix of `hashes` to an empty sequence. Its tokens are committed then. Copies no bytes.
///
/// @param channel  Channel.
/// @param seq  Sequence of the channel.
/// @param hashes  `count` hashes of the blocks of a prompt, in order.
/// @param count  Number of hashes.
/// @param timeout_us  Microseconds; 0: `kvt_options.timeout_us`.
/// @param blocks  May be NULL; receives the number of attached blocks, which may be 0.
/// @return `KVT_OK`; `KVT_ESTATE` if the sequence is not empty; `KVT_ENOSPC` if there is no room for any of the cached
///     blocks; `KVT_ELIMIT`; `KVT_ETIMEDOUT`.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_attach_prefix(channel, seq, hashes, 12, 0, &blocks);`
///
/// # Safety
/// `hashes` must be valid for `count` reads, `blocks` NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_channel_attach_prefix(
    channel: *mut kvt_channel,
    seq: u32,
    hashes: *const kvt_hash,
    count: u32,
    timeout_us: u64,
    blocks: *mut u32,
) -> kvt_status {
    entry("kvt_channel_attach_prefix", || {
        // SAFETY: the caller's contract.
        let blocks = unsafe { Optional::new("blocks", blocks) }?;
        // SAFETY: the caller's contract.
        let hashes = unsafe { self::hashes(hashes, count) }?;
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        let mapped = c.channel.attach_prefix(seq, &hashes, timeout)?;
        blocks.set(mapped as u32);
        Ok(())
    })
}

/// Let an idle sequence leave tier 0, including its unsealed pages. Does not wait.
///
/// Call it again to change the expected time of return. A request that waits in the engine's queue can thus have its
/// prefix attached and be parked, and be parked again as the queue moves.
///
/// @param channel  Channel.
/// @param seq  Sequence of the channel.
/// @param due_us  Microseconds until the sequence is expected back; 0: unknown. The daemon loads its pages by then, as
///     far as there is room.
/// @return `KVT_OK`; `KVT_ESTATE` if the sequence is in a lane's step; `KVT_EAGAIN` if a request that changes it is in
///     flight, or the ring is full. Errors of the daemon are not reported; the sequence stays parked.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_park(channel, seq, 1500000);` parks it for an expected 1.5 s.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_channel_park(channel: *mut kvt_channel, seq: u32, due_us: u64) -> kvt_status {
    entry("kvt_channel_park", || Ok(enter(channel)?.channel.park(seq, Duration::from_micros(due_us))?))
}

/// Bring a parked sequence back. Returns when its unsealed pages are writable.
///
/// @param channel  Channel.
/// @param seq  Sequence of the channel.
/// @param timeout_us  Microseconds; 0: `kvt_options.timeout_us`.
/// @return `KVT_OK`; `KVT_ESTATE` if the sequence is not parked; `KVT_ENOSPC` if there is no room; `KVT_ELOST` if a
///     page is lost; `KVT_ETIMEDOUT`.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_resume(channel, seq, 0);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_channel_resume(channel: *mut kvt_channel, seq: u32, timeout_us: u64) -> kvt_status {
    entry("kvt_channel_resume", || {
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        Ok(c.channel.resume(seq, timeout)?)
    })
}

/// Give a hint about blocks `first` to `first + count - 1` of a sequence. Does not wait.
///
/// @param channel  Channel.
/// @param seq  Sequence of the channel.
/// @param first  Index of the first block in the sequence.
/// @param count  Number of blocks.
/// @param kind  A `kvt_advice`.
/// @param value  Priority (0 to 255) of `KVT_ADVICE_PRIORITY`; tokens of `KVT_ADVICE_REMAINING`, which concern the
///     whole sequence; otherwise ignored.
/// @return `KVT_OK`; `KVT_EINVAL` if `kind` is not a `kvt_advice` or the priority is above 255; `KVT_ERANGE` if the
///     range ends beyond the sequence; `KVT_EAGAIN` if the ring is full.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_advise(channel, seq, 0, 8, KVT_ADVICE_COLD, 0);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_channel_advise(
    channel: *mut kvt_channel,
    seq: u32,
    first: u32,
    count: u32,
    kind: u32,
    value: u32,
) -> kvt_status {
    entry("kvt_channel_advise", || {
        let advice = advice(kind, value)?;
        Ok(enter(channel)?.channel.advise(seq, first, count, advice)?)
    })
}

/// Set how many frames of a size class of tier 0 have memory: the first `frames` of those given at attach.
///
/// Shrinking returns the memory of the other frames to the system or the device; growing allocates it again. Addresses,
/// frame numbers and tables do not change. Steps continue. Pages that must stay are moved to other frames at a moment
/// in which no lane is in a step, so a call between steps gets the memory at once.
///
/// @param channel  Channel.
/// @param size_class  Size class, below `kvt_options.classes_count`.
/// @param frames  Number of frames.
/// @param timeout_us  Microseconds; 0: `kvt_options.timeout_us`.
/// @param frames_now  May be NULL; receives the frames that the class has after the call, also after an error.
/// @return `KVT_OK`. After an error the class is unchanged: `KVT_ERANGE` if there is no such class, `frames` is more
///     than at attach, or fewer than 2 or than the pages of one block in the class; `KVT_EBUSY` if pages that must stay
///     (unsealed, acquired) need more; `KVT_ENOSPC` if the tiers below have no room for the pages that must leave;
///     `KVT_ESTATE` if the class is being resized; `KVT_ETIMEDOUT` if pages in these frames stayed acquired, or a lane
///     was in a step all the time; `KVT_ESYSTEM` or `KVT_EDEVICE` if there is no memory to grow.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_resize_tier0(channel, 0, 1024, 0, NULL);`
///
/// # Safety
/// `frames_now` must be NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_channel_resize_tier0(
    channel: *mut kvt_channel,
    size_class: u32,
    frames: u32,
    timeout_us: u64,
    frames_now: *mut u32,
) -> kvt_status {
    entry("kvt_channel_resize_tier0", || {
        // SAFETY: the caller's contract.
        let frames_now = unsafe { Optional::new("frames_now", frames_now) }?;
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        let resized = c.channel.resize_tier0(size_class as usize, frames, timeout);
        frames_now.set(c.channel.tier0_frames(size_class as usize));
        resized?;
        Ok(())
    })
}

/// Return the block ids of a sequence, in order.
///
/// @param client  Session.
/// @param seq  Sequence.
/// @param first  Index of the first block to return.
/// @param blocks  Receives at most `capacity` block ids; NULL if `capacity` is 0.
/// @param capacity  Room in `blocks`, in blocks.
/// @param count  Receives the number of blocks from `first` to the end, which may exceed `capacity`.
/// @return `KVT_OK`; `KVT_ENOTFOUND` if there is no such sequence; `KVT_ERANGE` if `first` is beyond the end.
/// Thread safety: any thread.
/// Example: `kvt_client_get_seq_blocks(client, seq, 0, blocks, 64, &count);`
///
/// # Safety
/// `blocks` must be valid for `capacity` writes, `count` for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_client_get_seq_blocks(
    client: *const kvt_client,
    seq: u32,
    first: u32,
    blocks: *mut u32,
    capacity: u32,
    count: *mut u32,
) -> kvt_status {
    entry("kvt_client_get_seq_blocks", || {
        check_out("count", count)?;
        if capacity > 0 {
            check_out("blocks", blocks)?;
        }
        let all = client::enter(client)?.client.seq_blocks(seq)?;
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
