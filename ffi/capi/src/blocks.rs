//! The block API: engines that keep their KV in memory of their own.

use super::channel::{enter, hashes, kvt_channel, kvt_hash, level, write_if};
use super::client::{self, kvt_client};
use super::entry::{array, check_out, entry, write};
use super::error::Fault;
use super::space::timeout;
use super::status::kvt_status;
use kvtide_client::{Copied, Leased, Piece};
use kvtide_wire::status::Status;
use std::ffi::c_void;
use std::time::Duration;

/// Members of a block at most.
pub const KVT_MEMBERS_MAX: u32 = 64;
/// An id that is none: for each member of a name, it takes the name away.
pub const KVT_UNNAMED: u32 = u32::MAX;
const _: () = assert!(KVT_MEMBERS_MAX == kvtide_client::MEMBERS_MAX as u32 && KVT_UNNAMED == kvtide_client::UNNAMED);

/// One piece of a plane's part of every block of the engine's own memory: `bytes` bytes at `base + block * stride`. The bytes of a
/// page are those of its plane's pieces, one after another in the order in which they are given: so K and V may lie apart or together,
/// layers or blocks first, in one tensor or in one a layer.
///
/// An engine whose cache groups number their blocks apart has blocks of several members: a piece lies at `base + id * stride` then, the
/// id being that of its member, which `kvt_name_blocks` gives.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_piece {
    /// The piece of block 0.
    pub base: *mut c_void,
    /// Bytes from a block's piece to that of the next block.
    pub stride: u64,
    /// Bytes of a piece.
    pub bytes: u64,
    /// Plane.
    pub plane: u16,
    /// Which of a block's ids it goes by, below `KVT_MEMBERS_MAX`; 0 where blocks are numbered once.
    pub member: u16,
    /// Zero.
    pub reserved: [u16; 2],
}

/// A cached prefix that stays for a while.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvt_lease_info {
    /// What holds it, for `kvt_load_blocks`; `kvt_seq_drop` ends it before its time.
    pub lease: u32,
    /// Its blocks in host memory.
    pub in_host: u32,
    /// Its blocks on NVMe alone.
    pub on_nvme: u32,
    /// Its blocks that only other sessions' tier 0 has.
    pub elsewhere: u32,
    /// Microseconds that loading all of it takes, as far as that was measured; 0 if nothing was.
    pub load_us: u64,
}

impl kvt_lease_info {
    pub(crate) fn of(leased: &Leased) -> kvt_lease_info {
        kvt_lease_info {
            lease: leased.seq,
            in_host: leased.in_host,
            on_nvme: leased.on_nvme,
            elsewhere: leased.elsewhere,
            load_us: u64::try_from(leased.load.as_micros()).unwrap_or(u64::MAX),
        }
    }
}

/// Says where the engine's own blocks are: `count` of them, whose pages lie in `pieces`. What was said before holds no longer; with no
/// pieces there are none. When it returns nothing touches the blocks that there were. After `kvt_reattach` it is to be said again.
///
/// `KVT_ESTATE`: loads or stores are under way, or one that timed out has yet to end (`kvt_settle_blocks`). `KVT_EINVAL`: the pieces do not add up to the planes' pages, or the session's tier 0 is on a device.
///
/// # Safety
/// `pieces` is valid for `pieces_count` reads. The memory of all pieces stays readable and writable until the next call of this or
/// the detach; while a load into a block or a store from it is under way, nobody else writes there, nor reads what is loaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_set_blocks(
    client: *mut kvt_client,
    count: u32,
    pieces: *const kvt_piece,
    pieces_count: u32,
) -> kvt_status {
    entry("kvt_set_blocks", || {
        // SAFETY: the caller's contract.
        let pieces = unsafe { array("pieces", pieces, pieces_count as usize) }?;
        let mut taken = Vec::with_capacity(pieces.len());
        for (index, piece) in pieces.iter().enumerate() {
            let too_large = |_| Fault::new(Status::Range, format!("piece {index} is larger than memory"));
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

/// Says what blocks' names stand for, where the pieces have several members: the names from `first` on, `ids` having one id for each
/// member of each name, one name after another, all below the `count` of `kvt_set_blocks`, or `KVT_UNNAMED` for all of a name. The numbers
/// that loads and stores are given are names then; one that stands for nothing is refused (`KVT_ERANGE`). A later call may change what a name
/// stands for; `kvt_set_blocks` forgets them all.
///
/// Nothing is changed after: `KVT_EINVAL`: ids that are no whole names, or out of range. `KVT_ESTATE`: a load or store of one of the names is under
/// way, or blocks have one member alone. `KVT_ELIMIT`: more than 2^24 ids.
///
/// # Safety
/// `ids` is valid for `ids_count` reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_name_blocks(
    client: *mut kvt_client,
    first: u32,
    ids: *const u32,
    ids_count: u32,
) -> kvt_status {
    entry("kvt_name_blocks", || {
        // SAFETY: the caller's contract.
        let ids = unsafe { array("ids", ids, ids_count as usize) }?;
        Ok(client::enter(client)?.client.name_blocks(first, ids)?)
    })
}

/// How many blocks of a prefix are cached, whole over all shards: `hashes` are those of its blocks, in order. Some are asked for, not
/// all: two round trips for a thousand blocks. `in_host_permille` (may be NULL) gets about which share of them is in host memory.
///
/// What is found may be dropped before it is loaded, unless a lease holds it.
///
/// # Safety
/// `hashes` is valid for `count` reads, `blocks` for a write, `in_host_permille` NULL or valid for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lookup(
    channel: *mut kvt_channel,
    hashes: *const kvt_hash,
    count: u32,
    timeout_us: u64,
    blocks: *mut u32,
    in_host_permille: *mut u32,
) -> kvt_status {
    entry("kvt_lookup", || {
        check_out("blocks", blocks)?;
        // SAFETY: the caller's contract.
        let hashes = unsafe { self::hashes(hashes, count) }?;
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        let found = c.channel.lookup(&hashes, timeout)?;
        // SAFETY: the caller's contract.
        unsafe {
            write("blocks", blocks, found.blocks)?;
            write_if(in_host_permille, found.in_host_permille)
        }
    })
}

/// Holds a cached prefix for `lease_us` microseconds: its `count` blocks, `hash` being that of the last one. It ends with
/// `kvt_seq_drop`, or by itself after that time, but not while it is being loaded from; its number is in use until `kvt_seq_drop` in any
/// case, one of `kvt_options.seqs_max`.
///
/// `KVT_ENOTFOUND`: it is not cached any more. `KVT_EINVAL`: the prefix has another number of blocks. `KVT_ELIMIT`: `lease_us` is more than
/// the daemon's `limits.lease_max_ms`, or the session's leases would hold more than `limits.lease_percent` of the cache; `kvt_last_error`
/// says which, and how much is allowed.
///
/// # Safety
/// `hash` is valid for a read, `lease` for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lease(
    channel: *mut kvt_channel,
    hash: *const kvt_hash,
    count: u32,
    lease_us: u64,
    timeout_us: u64,
    lease: *mut kvt_lease_info,
) -> kvt_status {
    entry("kvt_lease", || {
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

/// Copies blocks of a lease, from block index `first` on, into `count` blocks of the engine's own memory, by as many requests, one after
/// another, as that takes. `KVT_OK`: all arrived. Else `failed` (NULL or `count` numbers) gets the indices of those that did not and `failed_count` how many they are; the
/// others did arrive. With `failed_count` 0 nothing was copied, or, after the two statuses below, nobody knows what.
///
/// `KVT_ENOTFOUND`: the lease is over. After `KVT_ETIMEDOUT` and `KVT_EDAEMON` copies may go on for a moment: see `kvt_settle_blocks`.
///
/// # Safety
/// `blocks` is valid for `count` reads, `failed` NULL or valid for as many writes, `failed_count` NULL or valid for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_load_blocks(
    channel: *mut kvt_channel,
    lease: u32,
    first: u32,
    blocks: *const u32,
    count: u32,
    timeout_us: u64,
    failed: *mut u32,
    failed_count: *mut u32,
) -> kvt_status {
    entry("kvt_load_blocks", || {
        // SAFETY: the caller's contract.
        unsafe { write_if(failed_count, 0) }?;
        // SAFETY: the caller's contract.
        let blocks = unsafe { array("blocks", blocks, count as usize) }?;
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        let copied = c.channel.load(lease, first, blocks, timeout)?;
        // SAFETY: the caller's contract; no more fail than there are.
        unsafe { ended("load", &copied, failed, failed_count) }
    })
}

/// Makes `count` blocks of the engine's own memory cached under `hashes`; `first` is the index of the first one in its
/// prefix, `parent` the hash of the block before it, NULL at the root: where room is short that stays for certain only while a lease
/// holds it. None is found before all of it has been copied; from the first that
/// fails on all do. Waits until all of them have reached `wanted`, a `kvt_level`, or cannot. `failed` and `failed_count` as in
/// `kvt_load_blocks`.
///
/// `KVT_ENOSPC`: there is no room for them. `KVT_NOT_ADMITTED`: what they stand on is not cached (any more), or they will not be kept so well.
///
/// # Safety
/// `parent` is NULL or valid for a read, `hashes` and `blocks` are valid for `count` reads, `failed` NULL or valid for as many writes,
/// `failed_count` NULL or valid for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_store_blocks(
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
    entry("kvt_store_blocks", || {
        // SAFETY: the caller's contract.
        unsafe { write_if(failed_count, 0) }?;
        let wanted = level(wanted)?;
        // SAFETY: the caller's contract.
        let (parent, hashes, blocks) = unsafe {
            let parent = array("parent", parent, usize::from(!parent.is_null()))?;
            (parent.first(), self::hashes(hashes, count)?, array("blocks", blocks, count as usize)?)
        };
        let parent = parent.map_or(0, |hash| hash.value());
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        let copied = c.channel.store((first, parent), &hashes, blocks, wanted, timeout)?;
        // SAFETY: the caller's contract; no more fail than there are.
        unsafe { ended("store", &copied, failed, failed_count) }
    })
}

/// Brings blocks of a lease that are on NVMe up into host memory, as far as there is room: `KVT_ENOSPC` if not all are there now.
/// `fetched` (may be NULL) gets how many are.
///
/// # Safety
/// `fetched` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_fetch_blocks(
    channel: *mut kvt_channel,
    lease: u32,
    first: u32,
    count: u32,
    timeout_us: u64,
    fetched: *mut u32,
) -> kvt_status {
    entry("kvt_fetch_blocks", || {
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        let copied = c.channel.fetch(lease, first, count, timeout)?;
        // SAFETY: the caller's contract.
        unsafe { write_if(fetched, count - copied.failed.len() as u32) }?;
        verdict("fetch", &copied)
    })
}

/// Returns when nothing that was asked before, and has ended without the daemon's word (`KVT_ETIMEDOUT`, `KVT_EDAEMON`), touches the
/// engine's own memory any more.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_settle_blocks(channel: *mut kvt_channel, timeout_us: u64) -> kvt_status {
    entry("kvt_settle_blocks", || {
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        Ok(c.channel.settle_blocks(timeout)?)
    })
}

/// Tells which blocks failed, and why the first one did.
///
/// # Safety
/// `failed` is NULL or valid for as many writes as blocks failed, `failed_count` NULL or valid for one.
unsafe fn ended(doing: &str, copied: &Copied, failed: *mut u32, failed_count: *mut u32) -> Result<(), Fault> {
    // SAFETY: this function's own contract.
    unsafe { write_if(failed_count, copied.failed.len() as u32) }?;
    if !failed.is_null() {
        check_out("failed", failed)?;
        // SAFETY: this function's own contract.
        unsafe { std::ptr::copy_nonoverlapping(copied.failed.as_ptr(), failed, copied.failed.len()) };
    }
    verdict(doing, copied)
}

fn verdict(doing: &str, copied: &Copied) -> Result<(), Fault> {
    match copied.status {
        Status::Ok => Ok(()),
        status => Err(some_failed(doing, copied.failed.len(), status)),
    }
}

/// So many blocks failed, the first one with this status.
pub(crate) fn some_failed(doing: &str, failed: usize, status: Status) -> Fault {
    Fault::new(status, format!("{doing}: {failed} blocks failed: {status:?}"))
}
