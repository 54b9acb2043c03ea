//! The block API: for engines that keep their KV in memory of their own.

use super::channel::{enter, hashes, kvt_channel, kvt_hash, level, parent};
use super::client::{self, kvt_client};
use super::entry::{Optional, array, check_out, entry, write};
use super::error::Fault;
use super::space::timeout;
use super::status::kvt_status;
use kvtide_client::{Copied, Leased, Piece};
use kvtide_wire::status::Status;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::time::Duration;

/// Maximum number of members of a block.
pub const KVT_MEMBERS_MAX: u32 = 64;
/// No block. Given as id of every member of a name, it removes the name.
pub const KVT_UNNAMED: u32 = u32::MAX;
const _: () = assert!(KVT_MEMBERS_MAX == kvtide_client::MEMBERS_MAX as u32 && KVT_UNNAMED == kvtide_client::UNNAMED);

/// One piece of a plane in every block of the engine's own memory: `bytes` bytes at `base + block * stride`.
///
/// The bytes of a page are those of its plane's pieces, one after another in the given order. K and V may be separate
/// or together, layers or blocks may come first, in one tensor or in one tensor per layer.
///
/// If an engine's cache groups number their blocks separately, blocks have several members. A piece is then at
/// `base + id * stride`, with the id of its member from `kvt_client_name_blocks`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_piece {
    /// Address of the piece of block 0.
    pub base: *mut c_void,
    /// Bytes from a block's piece to that of the next block.
    pub stride: u64,
    /// Bytes of a piece.
    pub bytes: u64,
    /// Plane.
    pub plane: u16,
    /// Member that supplies the id of the block, below `KVT_MEMBERS_MAX`; 0 if blocks are numbered once.
    pub member: u16,
    /// Zero.
    pub reserved: [u16; 2],
}

/// A lease: a cached prefix that is pinned for a limited time.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvt_lease_info {
    /// Id of the lease, for `kvt_channel_load`; `kvt_channel_end_lease` ends it early.
    pub id: u32,
    /// Blocks of the prefix in host memory.
    pub in_host: u32,
    /// Blocks of the prefix on NVMe only.
    pub on_nvme: u32,
    /// Blocks of the prefix in other sessions' tier 0 only.
    pub elsewhere: u32,
    /// Estimated microseconds to load the whole prefix, from measurements so far; 0 if nothing was measured.
    pub load_us: u64,
}

impl kvt_lease_info {
    pub(crate) fn of(leased: &Leased) -> kvt_lease_info {
        kvt_lease_info {
            id: leased.seq,
            in_host: leased.in_host,
            on_nvme: leased.on_nvme,
            elsewhere: leased.elsewhere,
            load_us: u64::try_from(leased.load.as_micros()).unwrap_or(u64::MAX),
        }
    }
}

/// Register the engine's own blocks: `count` blocks with their pages in `pieces`. Replaces the blocks of an earlier
/// call, which are not accessed after the return. Call it again after `kvt_reattach`.
///
/// @param client  Session.
/// @param count  Number of blocks. Ids are below it.
/// @param pieces  `pieces_count` pieces; NULL and 0 remove the blocks.
/// @param pieces_count  Number of pieces.
/// @return `KVT_OK`; `KVT_ESTATE` if loads or stores are in flight, or one that timed out has not ended
///     (`kvt_channel_settle`); `KVT_EINVAL` if the pieces do not add up to the planes' pages, a piece has no memory,
///     pieces of two blocks overlap, or the session's tier 0 is on a device.
/// Thread safety: any thread.
/// Example: `kvt_client_set_blocks(client, 4096, pieces, 2);`
///
/// # Safety
/// `pieces` must be valid for `pieces_count` reads. The memory of all pieces must stay readable and writable until the
/// next call of this function or the detach. During a load into a block or a store from it, nothing else may write to
/// the block; during a load, nothing else may read it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_client_set_blocks(
    client: *mut kvt_client,
    count: u32,
    pieces: *const kvt_piece,
    pieces_count: u32,
) -> kvt_status {
    entry("kvt_client_set_blocks", || {
        // SAFETY: the caller's contract.
        let pieces = unsafe { array("pieces", pieces, pieces_count as usize) }?;
        let mut taken = Vec::with_capacity(pieces.len());
        for (index, piece) in pieces.iter().enumerate() {
            let too_large = |_| Fault::new(Status::Range, format!("`pieces[{index}]` is larger than memory"));
            if piece.reserved != [0; 2] {
                return Err(Fault::new(Status::Invalid, format!("`pieces[{index}].reserved` is not zero")));
            }
            taken.push(Piece {
                plane: piece.plane,
                member: piece.member,
                base: piece.base.expose_provenance(),
                stride: usize::try_from(piece.stride).map_err(too_large)?,
                bytes: usize::try_from(piece.bytes).map_err(too_large)?,
            });
        }
        let client = client::enter(client)?;
        // SAFETY: the caller's contract.
        Ok(unsafe { client.client.set_blocks(count, &taken) }?)
    })
}

/// Set the ids that names of blocks stand for, if the pieces have several members. Loads and stores then take names
/// instead of ids.
///
/// A later call may change a name. `kvt_client_set_blocks` removes all names. A load or store of a name without ids
/// fails with `KVT_ERANGE`.
///
/// @param client  Session.
/// @param first  First name.
/// @param ids  `ids_count` ids: one for each member of a name, name after name. All are below the `count` of
///     `kvt_client_set_blocks`, or all ids of a name are `KVT_UNNAMED`.
/// @param ids_count  Number of ids: names times members.
/// @return `KVT_OK`. After an error nothing has changed: `KVT_EINVAL` if the last name is incomplete or an id is out of
///     range; `KVT_ESTATE` if a load or store of one of the names is in flight, or blocks have only one member;
///     `KVT_ELIMIT` if there would be more than 2^24 ids.
/// Thread safety: any thread.
/// Example: `kvt_client_name_blocks(client, 7, (uint32_t[]){12, 3}, 2);` name 7 is block 12 of member 0 and block 3 of
///     member 1.
///
/// # Safety
/// `ids` must be valid for `ids_count` reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_client_name_blocks(
    client: *mut kvt_client,
    first: u32,
    ids: *const u32,
    ids_count: u32,
) -> kvt_status {
    entry("kvt_client_name_blocks", || {
        // SAFETY: the caller's contract.
        let ids = unsafe { array("ids", ids, ids_count as usize) }?;
        Ok(client::enter(client)?.client.name_blocks(first, ids)?)
    })
}

/// Return how many blocks of a prefix are cached, completely and in all shards. Pins nothing: found blocks may be
/// evicted before they are loaded, unless a lease pins them.
///
/// The call probes some of the hashes. It takes at most two round trips for up to 16,384 blocks.
///
/// @param channel  Channel.
/// @param hashes  `count` hashes of the prefix's blocks in order, at most 2^20.
/// @param count  Number of hashes.
/// @param timeout_us  Microseconds; 0: `kvt_options.timeout_us`.
/// @param blocks  Receives the number of cached blocks.
/// @param in_host_permille  May be NULL; receives approximately their share in host memory, in 1/1000.
/// @return `KVT_OK`; `KVT_ELIMIT` if there are more than 2^20 hashes; `KVT_ETIMEDOUT`.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_lookup(channel, hashes, 12, 0, &cached, NULL);`
///
/// # Safety
/// `hashes` must be valid for `count` reads, `blocks` for a write, `in_host_permille` NULL or valid for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_channel_lookup(
    channel: *mut kvt_channel,
    hashes: *const kvt_hash,
    count: u32,
    timeout_us: u64,
    blocks: *mut u32,
    in_host_permille: *mut u32,
) -> kvt_status {
    entry("kvt_channel_lookup", || {
        // SAFETY: the caller's contract.
        let in_host_permille = unsafe { Optional::new("in_host_permille", in_host_permille) }?;
        check_out("blocks", blocks)?;
        // SAFETY: the caller's contract.
        let hashes = unsafe { self::hashes(hashes, count) }?;
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        let found = c.channel.lookup(&hashes, timeout)?;
        // SAFETY: the caller's contract.
        unsafe { write("blocks", blocks, found.blocks) }?;
        in_host_permille.set(found.in_host_permille);
        Ok(())
    })
}

/// Lease a cached prefix: pin its blocks for `lease_us` microseconds.
///
/// The lease ends with `kvt_channel_end_lease`, or by itself after that time, but not while it is being loaded from.
/// Its id stays in use until `kvt_channel_end_lease` in any case, and counts towards `kvt_options.seqs_max`.
///
/// @param channel  Channel.
/// @param hash  Hash of the prefix's last block.
/// @param count  Number of blocks of the prefix.
/// @param lease_us  Microseconds, at least 1.
/// @param timeout_us  Microseconds; 0: `kvt_options.timeout_us`.
/// @param lease  Receives the lease.
/// @return `KVT_OK`; `KVT_ENOTFOUND` if the prefix is not cached (any more); `KVT_EINVAL` if it has another number of
///     blocks, or `lease_us` is 0; `KVT_ELIMIT` if `lease_us` exceeds the daemon's `limits.lease_max_ms`, the
///     leases of all sessions would pin more than `limits.lease_percent` of the cache while other sessions share it, or
///     `kvt_options.seqs_max` sequences and leases exist (`kvt_last_error` names the limit); `KVT_ENOSPC` or
///     `KVT_EAGAIN` if there is no room; `KVT_ETIMEDOUT`.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_lease(channel, &hashes[cached - 1], cached, 10000000, 0, &lease);` leases the prefix for 10 s.
///
/// # Safety
/// `hash` must be valid for a read, `lease` for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_channel_lease(
    channel: *mut kvt_channel,
    hash: *const kvt_hash,
    count: u32,
    lease_us: u64,
    timeout_us: u64,
    lease: *mut kvt_lease_info,
) -> kvt_status {
    entry("kvt_channel_lease", || {
        check_out("lease", lease)?;
        // SAFETY: the caller's contract.
        let hash = unsafe { array("hash", hash, 1) }?[0].value();
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        let leased = c.channel.lease(hash, count, Duration::from_micros(lease_us), timeout)?;
        let info = kvt_lease_info::of(&leased);
        // SAFETY: the caller's contract.
        unsafe { write("lease", lease, info) }
    })
}

/// End a lease. Does not wait. Call it after the loads of its blocks have ended: those in flight end with
/// `KVT_ENOTFOUND`.
///
/// @param channel  Channel.
/// @param lease  `kvt_lease_info.id`.
/// @return `KVT_OK`; `KVT_ENOTFOUND` if there is no such lease; `KVT_EAGAIN` if the ring is full.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_end_lease(channel, lease.id);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_channel_end_lease(channel: *mut kvt_channel, lease: u32) -> kvt_status {
    entry("kvt_channel_end_lease", || Ok(enter(channel)?.channel.end_lease(lease)?))
}

/// Copy blocks of a lease into blocks of the engine's own memory. Long calls are split into several requests, one after
/// another.
///
/// @param channel  Channel.
/// @param lease  `kvt_lease_info.id`.
/// @param first  Index of the first block in the prefix.
/// @param blocks  `count` blocks to load into, at most 2^20.
/// @param count  Number of blocks.
/// @param timeout_us  Microseconds; 0: `kvt_options.timeout_us`.
/// @param failed  NULL, or room for `count` indices: receives the indices of the blocks that failed. All others have
///     arrived.
/// @param failed_count  May be NULL; receives their number. If it is 0 after an error, nothing was copied, except as
///     below.
/// @return `KVT_OK` if all blocks arrived; the status of the first block that failed, for example `KVT_ELOST`,
///     `KVT_EIO` or `KVT_ECORRUPT`; `KVT_ENOTFOUND` if the lease has ended; `KVT_ERANGE` if the range ends beyond the
///     prefix, or one of `blocks` does not exist; `KVT_ESTATE` without `kvt_client_set_blocks`; `KVT_EAGAIN` if too many
///     copies of the session are in flight; `KVT_ELIMIT` if `count` is too large.
///     After `KVT_ETIMEDOUT` and `KVT_EDAEMON` any of the blocks may have been copied, and copies may continue for a
///     moment: call `kvt_channel_settle`.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_load(channel, lease.id, 0, blocks, cached, 0, failed, &failed_count);`
///
/// # Safety
/// `blocks` must be valid for `count` reads, `failed` NULL or valid for as many writes, `failed_count` NULL or valid
/// for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_channel_load(
    channel: *mut kvt_channel,
    lease: u32,
    first: u32,
    blocks: *const u32,
    count: u32,
    timeout_us: u64,
    failed: *mut u32,
    failed_count: *mut u32,
) -> kvt_status {
    entry("kvt_channel_load", || {
        // SAFETY: the caller's contract; at most `count` blocks fail.
        let failures = unsafe { Failures::new(failed, failed_count) }?;
        // SAFETY: the caller's contract.
        let blocks = unsafe { array("blocks", blocks, count as usize) }?;
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        let copied = c.channel.load(lease, first, blocks, timeout)?;
        failures.report(&copied);
        outcome("load", &copied)
    })
}

/// Store blocks of the engine's own memory in the cache under `hashes`. A block becomes findable after all of it has
/// been copied. From the first block that fails on, all fail. Waits until all have reached the level `wanted`, or
/// cannot reach it.
///
/// @param channel  Channel.
/// @param first  Index of the first block in its prefix.
/// @param parent  Hash of the block before it; NULL if `first` is 0. Where room is short, only a lease guarantees that
///     the parent stays cached.
/// @param hashes  `count` hashes, one for each block, at most 2^20.
/// @param blocks  `count` blocks to copy.
/// @param count  Number of blocks.
/// @param wanted  A `kvt_level`.
/// @param timeout_us  Microseconds; 0: `kvt_options.timeout_us`.
/// @param failed  As `kvt_channel_load`: indices of the blocks that are not cached.
/// @param failed_count  As `kvt_channel_load`.
/// @return `KVT_OK`; `KVT_ENOSPC` if there is no room for the blocks; `KVT_ENOTADMITTED` if the parent is not cached
///     (any more), or the blocks will not be kept at that level; `KVT_EOVERBUDGET` as `kvt_channel_publish`;
///     `KVT_EINVAL` if a hash is zero or the parent is missing; `KVT_ERANGE` if one of `blocks` does not exist;
///     `KVT_ESTATE`, `KVT_EAGAIN`, `KVT_ELIMIT`, `KVT_ETIMEDOUT`, `KVT_EDAEMON` as `kvt_channel_load`.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_store(channel, 0, NULL, hashes, blocks, 12, KVT_LEVEL_PUBLISHED, 0, NULL, NULL);`
///
/// # Safety
/// `hashes` and `blocks` must be valid for `count` reads, `parent` NULL or valid for one, `failed` NULL or valid for
/// `count` writes, `failed_count` NULL or valid for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_channel_store(
    channel: *mut kvt_channel,
    first: u32,
    parent: *const kvt_hash,
    hashes: *const kvt_hash,
    blocks: *const u32,
    count: u32,
    wanted: u32,
    timeout_us: u64,
    failed: *mut u32,
    failed_count: *mut u32,
) -> kvt_status {
    entry("kvt_channel_store", || {
        // SAFETY: the caller's contract; at most `count` blocks fail.
        let failures = unsafe { Failures::new(failed, failed_count) }?;
        let wanted = level(wanted)?;
        // SAFETY: the caller's contract.
        let (parent, hashes, blocks) =
            unsafe { (self::parent(parent)?, self::hashes(hashes, count)?, array("blocks", blocks, count as usize)?) };
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        let copied = c.channel.store((first, parent), &hashes, blocks, wanted, timeout)?;
        failures.report(&copied);
        outcome("store", &copied)
    })
}

/// Wait until earlier calls that ended with `KVT_ETIMEDOUT` or `KVT_EDAEMON` no longer access the engine's own blocks.
///
/// @param channel  Channel.
/// @param timeout_us  Microseconds; 0: `kvt_options.timeout_us`.
/// @return `KVT_OK`; `KVT_ETIMEDOUT` if copies are still in flight.
/// Thread safety: one thread per channel at a time.
/// Example: `if (status == KVT_ETIMEDOUT || status == KVT_EDAEMON) kvt_channel_settle(channel, 0);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_channel_settle(channel: *mut kvt_channel, timeout_us: u64) -> kvt_status {
    entry("kvt_channel_settle", || {
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        Ok(c.channel.settle(timeout)?)
    })
}

/// Where a call reports the blocks that failed. Begins with a count of 0, for calls that fail as a whole.
struct Failures {
    indices: Option<NonNull<u32>>,
    count: Optional<u32>,
}

impl Failures {
    /// # Safety
    /// `indices` is NULL or valid for as many writes as blocks may fail, `count` NULL or valid for one, while this value lives.
    unsafe fn new(indices: *mut u32, count: *mut u32) -> Result<Failures, Fault> {
        let indices = NonNull::new(indices);
        if let Some(indices) = indices {
            check_out("failed", indices.as_ptr())?;
        }
        // SAFETY: this function's own contract.
        let count = unsafe { Optional::new("failed_count", count) }?;
        count.set(0);
        Ok(Failures { indices, count })
    }

    fn report(&self, copied: &Copied) {
        self.count.set(copied.failed.len() as u32);
        if let Some(indices) = self.indices {
            // SAFETY: aligned, and valid for these writes by the contract of `new`.
            unsafe { std::ptr::copy_nonoverlapping(copied.failed.as_ptr(), indices.as_ptr(), copied.failed.len()) };
        }
    }
}

fn outcome(doing: &str, copied: &Copied) -> Result<(), Fault> {
    match copied.status {
        Status::Ok => Ok(()),
        status => Err(some_failed(doing, copied.failed.len(), status)),
    }
}

/// Return the error for `failed` blocks, the first of which failed with `status`.
pub(crate) fn some_failed(doing: &str, failed: usize, status: Status) -> Fault {
    Fault::new(status, format!("{doing}: {failed} blocks failed, the first with {status:?}"))
}
